"""Code that runs inside the isolation: standard library only, shipped into it as one zip archive.

    host ──control──► fork server ──fork──► session init (one per open) ──fork──► interpreter
      └───────────────────link────────────────────┘      └──────────channel──────────┘

The fork server imports once and forks. The session init is the first process of a session: it holds
the namespaces, the deadline, the nonces and the captured output, and never runs model-written code.
An interpreter runs nothing else. A forked session is a second interpreter under the same session
init.
"""

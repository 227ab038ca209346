"""Code that runs inside the isolation: standard library only, shipped into it as one zip archive.

    host ──control──► supervisor ──fork──► keeper (one per open) ──fork──► interpreter
      └────────────────link────────────────┘      └────────channel────────────┘

The supervisor is a fork server: it imports once and forks. A keeper is the init process of a
session: it holds the namespaces, the deadline, the nonces and the captured output, and never runs
model-written code. An interpreter runs nothing else. A forked session is a second interpreter under
the same keeper.
"""

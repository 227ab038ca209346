"""What runs inside the isolation: standard library only, shipped into it as one zip archive.

    host ──control──► supervisor (zygote) ──fork──► keeper, one per opened session ──fork──► interpreter
      └──────────────────────link───────────────────┘                └─────────channel────────────┘

The supervisor imports once and forks. A keeper holds the namespaces, the deadline, the nonces and
the captured output; it never runs model-written code. An interpreter runs nothing else. A forked
session is a second interpreter under the same keeper.
"""

"""Code that runs under another interpreter: standard library, Python 3.10 and newer, no agentrl.

`host.py` is started as a program; a `*_kind.py` knows one library. Nothing here is imported by us.
"""

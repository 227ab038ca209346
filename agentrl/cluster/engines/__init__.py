"""Engines on many machines. Apart, since workers for environments import nothing of torch.

`host.py` is what an engine's actor does, and knows nothing of Ray; `freight.py` is what its machine
needs; `replicas.py` has the actors, as one engine.
"""

"""Engines on many machines. Apart, since workers for environments import nothing of torch.

`host.py` is the code of an engine's actor, which knows nothing of Ray; `weight_cache.py` holds one
copy of the weights per machine; `replicas.py` has the actors, as one engine.
"""

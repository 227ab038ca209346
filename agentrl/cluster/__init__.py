"""The same parts on many machines: environments and engines in actors, which Ray starts and places.

`host.py` is what a worker for environments does, and knows nothing of Ray; `env.py` an environment
here whose world is there; `fleet.py` has the workers as their caller sees them, `ray_workers.py` as
actors. Worlds that were lost with one are made again in rollout/env_recovery.py. `engines/` is the
same for engines, and `connection.py` is how Ray is reached.
"""

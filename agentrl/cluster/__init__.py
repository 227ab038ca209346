"""The same parts on many machines: environments and engines in actors, which Ray starts and places.

`env_worker.py` is the code of an environment worker, which knows nothing of Ray; `remote_env.py` an
environment here that lives there; `env_pool.py` has the workers as their caller sees them, and
`ray_env_workers.py` as actors. Environments that were lost with a worker are made again in
rollout/env_recovery.py. `engines/` is the same for engines, and `connection.py` connects to Ray.
"""

"""The same parts on many machines: environments in workers, which Ray starts and places.

`host.py` is what a worker does, and knows nothing of Ray; `env.py` an environment here whose world
is there; `fleet.py` has the workers as their caller sees them, `ray_workers.py` as actors.
"""

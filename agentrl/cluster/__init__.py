"""The same parts on many machines: environments and engines in actors, which Ray starts and places.

                 environments                           engines
    here         env.py: the world is there; fleet.py   ray_engines.py; requests go over sockets of
                                                        engine/remote, weights by freight.py
    there        host.py, which knows nothing of Ray    engine_host.py, which knows nothing of Ray
    between      ray_workers.py                         ray_engines.py

`connection.py` is how Ray is reached. Lost worlds are made again in rollout/rebuilding.py.
"""

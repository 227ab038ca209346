"""The rollout scheduler: one mechanism for synchronous, partial and asynchronous rollouts.

    question                                file
    --------------------------------------  ------------
    what mode, how many, how old            policy.py
    when is a group done, and how           member.py
    what is queued, live, parked, ended     queue.py, of each member.py
    what the trainer gets, too old or not   batch.py
    how long anything may take              deadlines.py
    coroutines, deadlines, the engine       scheduler.py, with one slot.py per trajectory
    what is stuck, and for how long         watchdog.py, running.py
    which failures are too many             failure_limits.py
    how far a trajectory goes per step      segments.py
    which versions engines have             rolling_update.py
    how a group's rollouts come             topology.py

`engine/router.py` and `engine/health.py` choose among several engines. Everything but `scheduler`,
`slot` and `rolling_update` is free of clocks and coroutines.
"""

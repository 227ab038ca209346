"""The gate: one mechanism that makes synchronous, partial and asynchronous rollouts.

    question                                file
    --------------------------------------  ------------
    what mode, how many, how old            policy.py
    how many groups may be open             admission.py
    which tokens are too old                age.py
    when is a group done, and how           group.py
    who is queued, live, parked, ended      ledger.py, of each member.py
    what the trainer gets                   batch.py
    how long anything may take              deadline.py
    coroutines, deadlines, the engine       runner.py, with one seat.py per trajectory
    what is stuck, and for how long         watchdog.py, running.py
    what a durable record hears             keeping.py
    which failures are too many             alarm.py
    how far a trajectory goes per step      segments.py
    which of several engines                routing.py
    which versions engines have             rolling.py
    whether an engine gets new work         health.py

Everything but `runner`, `seat`, `rolling` and `routing` is free of clocks and coroutines.
"""

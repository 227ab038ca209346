"""Removing what a process left behind: by the reaper when it dies, by `agentrl gc` at any time.

    owner.py    who holds something, and whether that process is alive
    record.py   the leases on disk: what an owner holds, written before it is made
    plan.py     the decision: what may be removed
    remove.py   the act, per kind of resource (engine.py: containers, over the engine's socket)
    reaper.py   the process that waits for an owner's end

Standard library only, and no import of anything outside this package but `inside/files.py`: the
reaper runs it with `-I -S`, so that it starts in milliseconds and stays small beside a trainer.
"""

"""The process that outlives a trainer: waits for its end and removes what it still held.

One per owner, started with its first lease. It is in a session of its own and no child of the
owner, so neither a signal to the owner's group nor its end takes it along. It waits on a handle of
the process (a pidfd), which the kernel makes ready at the owner's end and never earlier; a process
id could have been given to somebody else.

A lease is deleted when its resource was absent for a while, not at the first look: an engine may
still be making the container that it was asked for. What cannot be removed (an engine that is down)
is tried again, ever less often, and after `PATIENCE_S` left to `agentrl gc`.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from agentrl_sandbox.reaping import record
from agentrl_sandbox.reaping.owner import LeaseOwner, PidNamespace
from agentrl_sandbox.reaping.plan import ORDER, Kind, LeasedResource, derive_state, removable
from agentrl_sandbox.reaping.remove import remove

PATIENCE_S = 600.0
SETTLED_S: Mapping[Kind, float] = {**dict.fromkeys(ORDER, 1.0), "container": 15.0}
"""Time for which a resource must have been absent before its lease is deleted."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


def clear_owner(folder: Path, owner: LeaseOwner, *, patience_s: float) -> None:
    """Remove what the leases of a dead owner name, and the leases; give up after some time."""
    here = PidNamespace.current()
    deadline_s = time.monotonic() + patience_s
    absent_since_s: dict[LeasedResource, float] = {}
    pause_s = _FIRST_PAUSE_S
    while records := {r.held.resource: r for r in record.read(folder, owner)}:
        failed = False
        resources = [r.held for r in records.values()]
        for choice in removable(resources, {owner: "dead"}, here=here):
            try:
                was_there = remove(choice.resource)
            except OSError:
                failed = True
                absent_since_s.pop(choice.resource, None)
                continue
            now_s = time.monotonic()
            since_s = now_s if was_there else absent_since_s.setdefault(choice.resource, now_s)
            absent_since_s[choice.resource] = since_s
            if now_s - since_s >= SETTLED_S[choice.resource.kind]:
                records[choice.resource].path.unlink(missing_ok=True)
        if time.monotonic() > deadline_s:
            return
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if failed else _FIRST_PAUSE_S
        time.sleep(pause_s)
    record.remove_folder(folder)


def clear_the_dead(directory: Path, but: LeaseOwner) -> None:
    """Remove what earlier owners left whose reapers died as well, with little patience."""
    here = PidNamespace.current()
    for owner, folder in record.folders(directory):
        if owner == but:
            continue
        locked = record.is_locked(folder)
        if derive_state(owner, here=here, locked=locked, running=owner.runs) != "dead":
            continue
        # Asked of the dead only: a live owner that starts its reaper must not find us in the way.
        if not record.is_locked(folder / record.REAPER):
            clear_owner(folder, owner, patience_s=2 * max(SETTLED_S.values()))


def main() -> None:
    """Wait for the owner's end and clear up. Arguments: folder, handle, lock.

    Descriptors are inherited: the handle, and the lock that says that a reaper waits.
    """
    folder, owner_fd, lock_fd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)  # the owner waits for the end of what we may have to say
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever ends everything of a user or a job ends the owner too, and we have work then.
        signal.signal(number, signal.SIG_IGN)
    owner = LeaseOwner.find(folder.name)
    assert owner is not None, f"{folder} is not named after an owner"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        # Apart, because an engine that hangs must not keep us from our own owner.
        os.close(lock_fd)
        clear_the_dead(folder.parent, owner)
        return
    poller = select.poll()
    poller.register(owner_fd, select.POLLIN)
    poller.poll()
    clear_owner(folder, owner, patience_s=PATIENCE_S)

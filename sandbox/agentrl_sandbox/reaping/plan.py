"""Decision on what may be removed, without a clock, a process or a file.

    the owner is      when                                                          removed
    alive             it holds its lock, or it runs in our world                    never
    dead              no lock, and it ran in an earlier boot or has ended in ours   always
    unknown           no owner is named, or one whose end we cannot see             when asked to

The lock sees an owner in another namespace of processes (a trainer in a container that shares the
directory of leases); the process id sees an owner whose directory of leases was deleted. So an
owner is dead when neither shows it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from agentrl_sandbox.reaping.owner import LeaseOwner, PidNamespace

Kind = Literal["process", "container", "cgroup", "directory"]
State = Literal["alive", "dead", "unknown"]

ORDER: tuple[Kind, ...] = ("process", "container", "cgroup", "directory")
"""Order of removal: whoever might still write comes before what is written to."""


@dataclass(frozen=True, slots=True)
class LeasedResource:
    """Something outside the memory of a process, that its end does not remove."""

    kind: Kind
    name: str
    """`process`: the mark in its environment. `container`: a label `key=value`, or an id.
    `cgroup`, `directory`: an absolute path."""
    engine: str = ""
    """The socket of the engine that runs a container."""


@dataclass(frozen=True, slots=True)
class FoundResource:
    """A resource as it was found: on a lease, or by looking around."""

    resource: LeasedResource
    owner: LeaseOwner | None
    """Process that made it, if that is written anywhere."""
    running: bool = False


def derive_state(owner: LeaseOwner, *, here: PidNamespace, locked: bool, running: bool) -> State:
    """Return the state of an owner, given whether its lock is held and it runs here."""
    if locked or running:
        return "alive"
    if owner.world.boot != here.boot or owner.world.namespace == here.namespace:
        return "dead"
    return "unknown"


def removable(
    held: Iterable[FoundResource],
    states: Mapping[LeaseOwner, State],
    *,
    here: PidNamespace,
    unknown_too: bool = False,
) -> list[FoundResource]:
    """Return the resources that may be removed, in the order of removal, each once.

    One live claim protects a resource, whatever else is written on it. What runs now and names an
    owner of another boot was not made on this machine: an engine may serve several.
    """
    held = list(held)
    protected = {h.resource for h in held if _state(h, states, here) == "alive"}
    target_states = ("dead", "unknown") if unknown_too else ("dead",)
    targets = {
        h.resource: h
        for h in reversed(held)
        if h.resource not in protected and _state(h, states, here) in target_states
    }
    return sorted(targets.values(), key=lambda h: (ORDER.index(h.resource.kind), h.resource.name))


def _state(held: FoundResource, states: Mapping[LeaseOwner, State], here: PidNamespace) -> State:
    if held.owner is None:
        return "unknown"
    if held.running and held.owner.world.boot != here.boot and states[held.owner] == "dead":
        return "unknown"
    return states[held.owner]

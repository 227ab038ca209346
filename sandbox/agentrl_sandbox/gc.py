"""`agentrl gc` for sandboxes: finds what dead owners left, with a lease and without, removes it."""

import os
import stat
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.runtime.leftovers import LeftoverResource, Outcome
from agentrl_sandbox.lease import LABEL_OWNER, LABEL_RUN
from agentrl_sandbox.reaping import engine, record, remove
from agentrl_sandbox.reaping.owner import LeaseOwner, PidNamespace
from agentrl_sandbox.reaping.plan import (
    FoundResource,
    LeasedResource,
    State,
    derive_state,
    removable,
)

DIRECTORIES = ("agentrl-sandbox-", "agentrl-container-")
"""Prefixes of the names of directories of sandboxes on the host. One may name no owner; any other
directory of ours does."""
_CGROUP_DEPTH = 8


@dataclass(slots=True)
class _Survey:
    """Everything of agentrl's on this machine, and what is known of who made it."""

    records: list[record.LeaseRecord] = field(default_factory=list[record.LeaseRecord])
    held: list[FoundResource] = field(default_factory=list[FoundResource])
    folders: dict[LeaseOwner, Path] = field(default_factory=dict[LeaseOwner, Path])
    silent: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Engines that do not answer, and what they said instead."""

    def states(self, here: PidNamespace) -> dict[LeaseOwner, State]:
        """Return the state of every owner that was met."""
        owners = {h.owner for h in self.held if h.owner is not None} | self.folders.keys()
        locked = {owner for owner, path in self.folders.items() if record.is_locked(path)}
        return {
            owner: derive_state(owner, here=here, locked=owner in locked, running=owner.runs)
            for owner in owners
        }


def collect(
    *, dry_run: bool, unknown_too: bool, lost_engines: Collection[str]
) -> Iterator[LeftoverResource]:
    """Yield what dead owners left, removed unless `dry_run`; then what could not be looked at.

    Containers of `lost_engines` are not looked for: their leases are deleted. `ConfigError` for one
    that answers or is on no lease, and when the directory of leases is not ours alone.
    """
    here = PidNamespace.current()
    survey = _take_survey()
    _check_lost(lost_engines, survey)
    states = survey.states(here)
    targets = removable(survey.held, states, here=here, unknown_too=unknown_too)
    failed: set[LeasedResource] = set()
    for candidate in targets:
        if candidate.resource.engine in lost_engines:
            outcome: Outcome = "found" if dry_run else "forgotten"
            yield _report(candidate, outcome, "only its lease: its engine is gone")
            continue
        leftover = _clear(candidate, dry_run=dry_run)
        if leftover is not None:
            yield leftover
            if leftover.outcome == "failed":
                failed.add(candidate.resource)
    removed = {h.resource for h in targets}
    if not unknown_too:
        for candidate in removable(survey.held, states, here=here, unknown_too=True):
            if candidate.resource not in removed:
                yield _report(candidate, "kept", "its owner is unknown")
    for socket, why in survey.silent:
        if socket in lost_engines:
            continue
        yield LeftoverResource(kind="engine", name=socket, owner="", outcome="failed", detail=why)
    if not dry_run:
        _forget(survey, states, removed - failed)


def _check_lost(engines: Collection[str], survey: _Survey) -> None:
    """Raise `ConfigError` for an engine that is not lost."""
    silent = {socket for socket, _ in survey.silent}
    sockets = {held.resource.engine for held in survey.held} - {""}
    for socket in engines:
        if socket in silent:
            continue
        if socket in sockets:
            raise ConfigError(
                f"the engine at {socket} answers; run agentrl gc without --forget, which removes "
                "its containers"
            )
        names = ", ".join(sorted(silent)) or "all engines answer"
        raise ConfigError(f"no lease names an engine at {socket}; those that are silent: {names}")


def _forget(
    survey: _Survey, states: dict[LeaseOwner, State], gone: Collection[LeasedResource]
) -> None:
    """Delete the leases of what is gone, and the folders of the dead that hold no more."""
    for lease in survey.records:
        if lease.held.resource in gone:
            lease.path.unlink(missing_ok=True)
    for owner, folder in survey.folders.items():
        if states[owner] == "dead":
            record.remove_folder(folder)


def _clear(held: FoundResource, *, dry_run: bool) -> LeftoverResource | None:
    """Remove a resource, or only look for it; None when there is none."""
    try:
        was_there = remove.exists(held.resource) if dry_run else remove.remove(held.resource)
    except OSError as error:
        return _report(held, "failed", str(error))
    return _report(held, "found" if dry_run else "removed") if was_there else None


def _report(held: FoundResource, outcome: Outcome, detail: str = "") -> LeftoverResource:
    owner = held.owner
    return LeftoverResource(
        kind=held.resource.kind,
        name=held.resource.name,
        owner="unknown" if owner is None else f"process {owner.pid}",
        outcome=outcome,
        detail=detail,
    )


# -- looking around -------------------------------------------------------------------------------


def _take_survey() -> _Survey:
    survey = _Survey()
    directory = record.state_directory()
    try:
        there = record.check_directory(directory, make=False)
    except record.StateError as error:
        raise ConfigError(str(error)) from error
    if there:
        survey.folders = dict(record.folders(directory))
        for owner, folder in survey.folders.items():
            survey.records += record.read(folder, owner)
    survey.held = [lease.held for lease in survey.records]
    survey.held += [
        FoundResource(LeasedResource("process", mark), LeaseOwner.find(mark), running=True)
        for mark in sorted(remove.find_marks())
    ]
    survey.held += _find_containers(survey)
    survey.held += _find_cgroups()
    survey.held += _find_directories()
    return survey


def _find_containers(survey: _Survey) -> Iterator[FoundResource]:
    leased = {h.resource.engine for h in survey.held if h.resource.kind == "container"}
    usual = engine.default_engine()
    for socket in sorted(leased | ({usual} if os.path.exists(usual) else set())):
        try:
            containers = engine.containers(socket, LABEL_RUN)
        except engine.ContainerEngineError as error:
            # What is on a lease fails by itself, in words of its own.
            survey.silent.append((socket, f"{error}; its containers are unknown"))
            continue
        for container in containers:
            owner = LeaseOwner.find(container.labels.get(LABEL_OWNER, ""))
            resource = LeasedResource("container", container.id, socket)
            yield FoundResource(resource, owner, running=container.running)


def _find_cgroups() -> Iterator[FoundResource]:
    """Yield the cgroups that name an owner, not those within them.

    Others of our name may hold processes of the user, trainers among them.
    """
    root = Path(remove.CGROUPS)
    for path, names, _ in os.walk(root):
        if len(Path(path).relative_to(root).parts) >= _CGROUP_DEPTH:
            names.clear()
        for name in [name for name in names if name.startswith(remove.PREFIX)]:
            names.remove(name)
            if (owner := LeaseOwner.find(name)) is not None:
                yield FoundResource(LeasedResource("cgroup", f"{path}/{name}"), owner)


def _find_directories() -> Iterator[FoundResource]:
    """Yield the directories of our name that belong to this user: of sandboxes, and of owners."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            owner = LeaseOwner.find(entry.name) if entry.name.startswith(remove.PREFIX) else None
            if owner is None and not entry.name.startswith(DIRECTORIES):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid():
                yield FoundResource(LeasedResource("directory", entry.path), owner)

"""Leases on disk: what an owner holds, written before it is made and deleted when it is gone.

/tmp/agentrl-UID/           0700, ours, or the directory that AGENTRL_STATE names
  OWNER/                    locked while the owner holds anything
    ID.lease                one resource, as JSON
    reaper                  locked while a reaper waits for this owner

Liveness is a lock and not a heartbeat: the kernel drops it at the owner's last instruction, however
that came, and no clock, pause or busy machine can drop it earlier. Not XDG_RUNTIME_DIR: that is
deleted when its user logs out, and a run may go on after that.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from agentrl_sandbox.reaping.owner import LeaseOwner
from agentrl_sandbox.reaping.plan import ORDER, FoundResource, LeasedResource

VARIABLE = "AGENTRL_STATE"
REAPER = "reaper"
_SUFFIX = ".lease"


class StateError(Exception):
    """The directory of leases cannot be trusted or used; the text says why and the way out."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease as it is on disk."""

    path: Path
    held: FoundResource


def state_directory() -> Path:
    """Return the directory of this user's leases. Nothing is made."""
    return Path(os.environ.get(VARIABLE) or f"/tmp/agentrl-{os.geteuid()}")


def check_directory(directory: Path, *, make: bool) -> bool:
    """Return whether the directory of leases is there; `StateError` if others could write to it."""
    try:
        if make:
            directory.mkdir(mode=0o700, exist_ok=True)
        info = os.lstat(directory)
    except FileNotFoundError:
        if not make:
            return False
        raise StateError(f"{directory.parent} does not exist; set {VARIABLE}") from None
    except OSError as error:
        raise StateError(f"{directory}: {error.strerror}; set {VARIABLE}") from error
    private = stat.S_ISDIR(info.st_mode) and not stat.S_IMODE(info.st_mode) & 0o077
    if not private or info.st_uid != os.geteuid():
        raise StateError(
            f"{directory} lists what may be killed and deleted, so it must be a directory of user "
            f"{os.geteuid()} with mode 0700, but it is {stat.filemode(info.st_mode)} of user "
            f"{info.st_uid}: remove it, or set {VARIABLE} to another directory"
        )
    return True


def folders(directory: Path) -> Iterator[tuple[LeaseOwner, Path]]:
    """Yield every owner that has a folder."""
    for path in sorted(directory.iterdir()):
        owner = LeaseOwner.find(path.name)
        if owner is not None and owner.text == path.name and path.is_dir():
            yield owner, path


def is_locked(path: Path) -> bool:
    """Return whether somebody holds the lock of a file or directory; False when it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who ask do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write(folder: Path, name: str, resource: LeasedResource, run: str) -> Path:
    """Write a lease; it is there whole or not at all. Not synced: a machine that stops ends all."""
    path = folder / f"{name}{_SUFFIX}"
    partial = folder / f"{name}.partial"
    partial.write_text(json.dumps({"run": run, **asdict(resource)}))
    partial.replace(path)
    return path


def read(folder: Path, owner: LeaseOwner) -> Iterator[LeaseRecord]:
    """Yield the leases of an owner. A damaged one, of a machine that stopped, is passed over."""
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
    except FileNotFoundError:
        return
    for path in paths:
        if (resource := _read_resource(path)) is not None:
            yield LeaseRecord(path, FoundResource(resource, owner))


def _read_resource(path: Path) -> LeasedResource | None:
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(values, dict):
        return None
    values = cast(dict[str, object], values)
    kind, name, engine = (values.get(key) for key in ("kind", "name", "engine"))
    if kind not in ORDER or not isinstance(name, str) or not isinstance(engine, str) or not name:
        return None
    return LeasedResource(kind, name, engine)


def remove_folder(folder: Path) -> None:
    """Delete an owner's folder if no lease is left in it."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]
        if any(_read_resource(folder / name) for name in names):
            return
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        return  # somebody else removes it now, or writes to it

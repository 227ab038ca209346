"""Why this machine lets nobody isolate, in words of its settings, and what to do then."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_LINUX = (5, 12)
"""Since then the kernel sets attributes of a whole tree of mounts."""
_KINDS = ("user", "mnt", "pid", "net", "ipc", "uts")
_CLONE = "kernel.unprivileged_userns_clone"
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
_PROCESS = (
    "set sandbox.backend: process and sandbox.allow_unisolated: true, which only limits resources "
    "and contains nothing: code can read and change your files, use your network, and signal your "
    "processes"
)

Read = Callable[[str], str]
"""Returns the text of a file, empty where there is none."""


def explain_ways_out(needed: str = "") -> str:
    """Return the remedies where namespaces are refused; `needed` goes first."""
    mends = [needed, *list_forbidding_settings()] if needed else [*list_forbidding_settings()]
    first = "; ".join(mends) or (
        "allow unprivileged user namespaces on this machine (sysctl user.max_user_namespaces)"
    )
    return (
        f"{first}; or set sandbox.backend: docker, where an engine creates the namespaces; or "
        f"{_PROCESS}"
    )


def list_forbidding_settings(read: Read | None = None, user_id: int | None = None) -> Iterator[str]:
    """Yield every setting that forbids namespaces to this process, with the command to change it.

    `read` and `user_id` default to this machine's files and this process's user.
    """
    read = read or read_if_there
    is_root = (os.geteuid() if user_id is None else user_id) == 0
    for kind in _KINDS:
        name = f"user.max_{kind}_namespaces"
        if _value(read, name) == "0":
            yield f"{name} is 0 on this machine: sysctl -w {name}=10000"
    if not is_root and _value(read, _CLONE) == "0":
        yield f"{_CLONE} is 0 on this machine: sysctl -w {_CLONE}=1"
    if not is_root and _value(read, _APPARMOR) not in ("", "0"):
        yield f"{_APPARMOR} is enabled on this machine: sysctl -w {_APPARMOR}=0"
    release = _value(read, "kernel.osrelease")
    if release and tuple(map(int, re.findall(r"\d+", release)[:2])) < _LINUX:
        yield (
            f"this kernel is Linux {release}, but at least 5.12 is required: use a newer one, or "
            "sandbox.backend: bubblewrap"
        )
    points = [line.split()[4] for line in read("/proc/self/mountinfo").splitlines()]
    if points and "/" not in points:
        yield (
            "this process is in a chroot, where the kernel creates no user namespaces: enter the "
            "directory with pivot_root or as a container instead"
        )
    if "\nSeccomp:\t2" in read("/proc/self/status"):
        yield (
            "this process runs under a system-call filter, as containers do: start the container "
            "with a profile that permits unshare, mount and pivot_root (docker run --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined)"
        )


def _value(read: Read, name: str) -> str:
    return read(f"/proc/sys/{name.replace('.', '/')}").strip()


def read_if_there(path: str) -> str:
    """Return the text of a file, empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""

"""One program of this machine in bubblewrap: what it sees, and the cgroup it is counted in.

For programs that are drawn or talked to rather than for code in a session: a browser, a desktop.
Such a program has no network interface, sees programs of `/usr` read-only and nothing else of this
machine, writes to memory, and is a user that nobody is. `confine` is the script that puts it there.
"""

import os
from collections.abc import Mapping, Sequence

from agentrl_sandbox.cgroup import CgroupLimits, CgroupRoot, ProcessCgroup
from agentrl_sandbox.root import bubblewrap_words, system_steps

_ETC = ("/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
UNSHARED = ("cgroup-try", "ipc", "net", "pid", "uts")


def bubblewrap_options(
    shown: Sequence[tuple[str, str]],
    *,
    writable_bytes: int,
    environ: Mapping[str, str],
    host_name: str,
    writable: Sequence[str] = ("/dev/shm", "/tmp"),
    more: Sequence[str] = (),
) -> list[str]:
    """Return bubblewrap's options: everything unshared, /usr read-only, memory to write to.

    `shown` are directories outside and where they are inside; `writable` are directories inside,
    each of `writable_bytes`, the last of which is the home unless `environ` says otherwise; `more`
    are further options, before the root becomes read-only.
    """
    options = [f"--unshare-{kind}" for kind in UNSHARED]
    options += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    options += ["--uid", "1000", "--gid", "1000", "--hostname", host_name]
    options += bubblewrap_words(system_steps(_ETC, shown, system_packages=True))
    options += ["--proc", "/proc", "--dev", "/dev"]
    for path in writable:
        options += ["--size", f"{writable_bytes}", "--tmpfs", path]
    home = writable[-1]
    for name, value in {"HOME": home, "TMPDIR": "/tmp", "TZ": "UTC", **environ}.items():
        options += ["--setenv", name, value]
    return [*options, *more, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", home]


def make_cgroup(name: str, memory_bytes: int, processes: int | None = None) -> ProcessCgroup | None:
    """Return a cgroup for one program and all it starts; None where none can be made."""
    cgroups = CgroupRoot.find()
    if cgroups is None:
        return None
    try:
        return cgroups.make(
            f"{name}-{os.urandom(2).hex()}",
            CgroupLimits(memory_bytes=memory_bytes, processes=processes),
        )
    except OSError:
        return None  # as where there are none: `agentrl doctor` says so

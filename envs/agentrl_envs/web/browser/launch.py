"""What starts a browser: the command Playwright is given, and the cgroup it runs in.

Inside bubblewrap a browser has a network namespace without any interface, sees this machine's
`/usr` read-only and nothing else of it, writes to memory, and is a user that nobody is. Chromium's
own sandbox works in there as well, and confines its renderers further.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl_envs.web.browser import confine
from agentrl_envs.web.browser.chromium import find, flags
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_sandbox import enter
from agentrl_sandbox.cgroup import Bounds, Cgroups, Group
from agentrl_sandbox.launch.users import own_block
from agentrl_sandbox.lease import Lease, new_mark

PROFILE = "/tmp/profile"
_ELSEWHERE = "/opt/browser"
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_ETC = ("/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_UNSHARED = ("cgroup-try", "ipc", "net", "pid", "uts")
_SHM_SHARE = 4
"""One part in so many of a browser's memory may be its shared memory, or its files."""
WAY_OUT = (
    "apt-get install bubblewrap and allow unprivileged user namespaces (agentrl doctor looks), or, "
    "for pages that are trusted, ask for browser isolation: none"
)


@dataclass(frozen=True, slots=True)
class Command:
    """How Playwright starts one browser, and what is held for it."""

    executable: str
    arguments: tuple[str, ...]
    environ: dict[str, str]
    leases: tuple[Lease, ...]
    """The processes, and the directory of the profile if it is one of this machine."""
    group: Group | None

    def clear(self) -> None:
        """Remove whatever is left. Idempotent; it blocks, for seconds at most."""
        for lease in self.leases:
            lease.clear()
        if self.group is not None:
            self.group.remove()


def prepare(settings: BrowserSettings) -> Command:
    """Return the command of one more browser. It blocks; `ConfigError` where none can be run."""
    program = find(settings.executable)
    leases = [Lease.take("process", f"browser-{new_mark()}")]
    environ = leases[0].environ
    group = _group(settings)
    doors = [] if group is None else _doors(group)
    plan: dict[str, object] = {"cgroups": doors, "enter": ""}
    if settings.isolation == "bubblewrap":
        plan |= {"enter": enter.__file__, "bubblewrap": _inside(settings, program, environ)}
    else:
        profile = os.path.join(tempfile.gettempdir(), f"agentrl-browser-{new_mark()}")
        leases.append(Lease.take("directory", profile))
        # Chromium refuses to confine its renderers for root.
        command = [program, *flags(profile=profile, own_sandbox=os.geteuid() != 0)]
        plan |= {"command": command, "environ": {"HOME": profile, "TZ": "UTC", **environ}}
    arguments = ("-I", "-S", confine.__file__, json.dumps(plan))
    return Command(sys.executable, arguments, dict(environ), tuple(leases), group)


def _inside(
    settings: BrowserSettings, program: str, environ: Mapping[str, str]
) -> dict[str, object]:
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise ConfigError(f"browsers run inside bubblewrap, and bwrap is not installed; {WAY_OUT}")
    shown, stage, inside = _shown(program)
    as_root = os.geteuid() == 0
    options = bubblewrap_options(
        shown, writable_bytes=settings.memory_bytes // _SHM_SHARE, environ=environ
    )
    return {
        "user_id": own_block().start if as_root else None,
        "users": None,
        "stage": stage if as_root else {},
        "program": bubblewrap,
        "options": [*options, inside, *flags(profile=PROFILE, own_sandbox=True)],
    }


def _shown(program: str) -> tuple[list[tuple[str, str]], dict[str, str], str]:
    """Return what to bind, what of it to stage for another user, and the program's path inside."""
    real = os.path.realpath(program)
    if real.startswith("/usr/"):
        return [], {}, real
    folder, name = os.path.split(real)
    staged = f"{enter.STAGE}/browser" if os.geteuid() == 0 else folder
    return [(staged, _ELSEWHERE)], {"browser": folder}, f"{_ELSEWHERE}/{name}"


def bubblewrap_options(
    shown: Sequence[tuple[str, str]], *, writable_bytes: int, environ: Mapping[str, str]
) -> list[str]:
    """Return bubblewrap's options: everything unshared, /usr read-only, memory to write to."""
    options = [f"--unshare-{kind}" for kind in _UNSHARED]
    options += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    options += ["--uid", "1000", "--gid", "1000", "--hostname", "browser"]
    options += ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for path in _ETC:
        options += ["--ro-bind-try", path, path]
    for source, target in shown:
        options += ["--ro-bind", source, target]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/dev/shm", "/tmp"):
        options += ["--size", f"{writable_bytes}", "--tmpfs", path]
    options += ["--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp", "--setenv", "TZ", "UTC"]
    for name, value in environ.items():
        options += ["--setenv", name, value]
    return [*options, "--remount-ro", "/", "--chdir", "/tmp"]


def _group(settings: BrowserSettings) -> Group | None:
    cgroups = Cgroups.find()
    if cgroups is None:
        return None
    try:
        return cgroups.make(
            f"browser-{os.urandom(2).hex()}", Bounds(memory_bytes=settings.memory_bytes)
        )
    except OSError:
        return None  # as where there are none: `agentrl doctor` says so


def _doors(group: Group) -> list[str]:
    directories = dict.fromkeys(group.directories.values())
    return [str(Path(directory, "cgroup.procs")) for directory in directories]

"""Start of a browser: the command Playwright is given, and the cgroup it runs in.

Inside bubblewrap a browser has a network namespace without any interface, sees this machine's
`/usr` read-only and nothing else of it, writes to memory, and is a user that nobody is. Chromium's
own sandbox works in there as well, and confines its renderers further.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl_envs.web.browser import relay
from agentrl_envs.web.browser.chromium import find, flags
from agentrl_envs.web.browser.settings import BrowserSettings
from agentrl_sandbox import confine, enter
from agentrl_sandbox.cgroup import ProcessCgroup
from agentrl_sandbox.launch.users import draw_block
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.program import bubblewrap_options, make_cgroup
from agentrl_sandbox.visible_files import is_visible

PROFILE = "/tmp/profile"
_ELSEWHERE = "/opt/browser"
_SHM_SHARE = 4
"""One part in so many of a browser's memory may be its shared memory, or its files."""
WAY_OUT = (
    "apt-get install bubblewrap and allow unprivileged user namespaces (check with agentrl "
    "doctor), or, for trusted pages, set the browser isolation to none"
)


@dataclass(frozen=True, slots=True)
class BrowserCommand:
    """Command by which Playwright starts one browser, with its leases and its cgroup."""

    executable: str
    arguments: tuple[str, ...]
    environ: dict[str, str]
    leases: tuple[ResourceLease, ...]
    """The processes, and the directory of the profile if it is one of this machine."""
    group: ProcessCgroup | None

    @property
    def mark(self) -> str:
        """Mark that its processes carry in their environment."""
        return self.leases[0].name

    def clear(self) -> None:
        """Remove whatever is left. Idempotent; it blocks, for seconds at most."""
        for lease in self.leases:
            lease.clear()
        if self.group is not None:
            self.group.remove()


def prepare(settings: BrowserSettings) -> BrowserCommand:
    """Return the command of one more browser. It blocks; `ConfigError` where none can be run."""
    program = find(settings.executable)
    leases = [ResourceLease.take("process", f"browser-{new_mark()}")]
    environ = leases[0].environ
    group = make_cgroup("browser", settings.memory_bytes)
    plan: dict[str, object] = {"cgroups": [] if group is None else group.join_files(), "enter": ""}
    if settings.isolation == "bubblewrap":
        plan |= {
            "enter": enter.__file__,
            "bubblewrap": _plan_bubblewrap(settings, program, environ),
        }
    else:
        profile = os.path.join(tempfile.gettempdir(), f"agentrl-browser-{new_mark()}")
        leases.append(ResourceLease.take("directory", profile))
        # Chromium refuses to confine its renderers for root.
        command = [program, *flags(profile=profile, own_sandbox=os.geteuid() != 0)]
        plan |= {"command": command, "environ": {"HOME": profile, "TZ": "UTC", **environ}}
    script = ("-I", "-S")
    program_of = (sys.executable, *script, confine.__file__, json.dumps(plan))
    arguments = (*script, relay.__file__, *program_of)
    return BrowserCommand(sys.executable, arguments, dict(environ), tuple(leases), group)


def _plan_bubblewrap(
    settings: BrowserSettings, program: str, environ: Mapping[str, str]
) -> dict[str, object]:
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise ConfigError(f"browsers run inside bubblewrap, but bwrap is not installed; {WAY_OUT}")
    visible_paths, stage, inside = _find_visible_paths(program)
    as_root = os.geteuid() == 0
    options = bubblewrap_options(
        visible_paths,
        writable_bytes=settings.memory_bytes // _SHM_SHARE,
        environ=environ,
        host_name="browser",
    )
    return {
        "user_id": draw_block().start if as_root else None,
        "users": None,
        "stage": stage if as_root else {},
        "program": bubblewrap,
        "options": [*options, inside, *flags(profile=PROFILE, own_sandbox=True)],
    }


def _find_visible_paths(program: str) -> tuple[list[tuple[str, str]], dict[str, str], str]:
    """Return the paths to bind, those to stage for another user, and the program's path inside."""
    real = os.path.realpath(program)
    if is_visible(Path(real)):
        return [], {}, real
    folder, name = os.path.split(real)
    staged = f"{enter.STAGE}/browser" if os.geteuid() == 0 else folder
    return [(staged, _ELSEWHERE)], {"browser": folder}, f"{_ELSEWHERE}/{name}"

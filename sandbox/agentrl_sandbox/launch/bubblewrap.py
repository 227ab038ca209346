"""A supervisor inside bubblewrap: namespaces of its own, and a view of this machine's programs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from socket import socket

from agentrl_sandbox import enter
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.inside.kernel import INSIDE_ID
from agentrl_sandbox.isolate import HOST_NAME
from agentrl_sandbox.launch.forbidden import explain_ways_out
from agentrl_sandbox.launch.local import StartedProcess, count_user_ids, start_isolated
from agentrl_sandbox.launch.shown import VisiblePaths, memory_file, supervisor_command
from agentrl_sandbox.program import UNSHARED
from agentrl_sandbox.root import ARCHIVE, FILES, bubblewrap_words

INSTALL = "apt-get install bubblewrap"
_CAPABILITIES = (
    *("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SYS_RESOURCE"),
)


@dataclass(frozen=True, slots=True)
class BubblewrapLauncher:
    """Namespaces through bubblewrap; sessions live in memory inside, and never on the host."""

    path: str
    packages: str = ""
    isolated = True

    async def start(self, control: socket) -> StartedProcess:
        """Start the supervisor inside; as root, become nobody first."""
        visible_paths = VisiblePaths.collect(self.packages)
        data = {**FILES, ARCHIVE: bundle()}
        fds = {path: memory_file("file", text) for path, text in data.items()}
        options = bubblewrap_options(bubblewrap_words(visible_paths.steps(), fds))
        options_fd = memory_file("agentrl-options", b"".join(o.encode() + b"\0" for o in options))
        program = [self.path, "--args", str(options_fd), *supervisor_command()]
        command, plan_fd = _plan_entry(program, visible_paths)
        all_fds = [*fds.values(), options_fd, plan_fd]
        return start_isolated(command, control, all_fds, self.packages)

    def user_ids(self, within_s: float) -> int:
        """Return the number of user ids of a pool here: 1 where all sessions share one.

        `OSError` or `subprocess.SubprocessError` when nothing can be isolated.
        """
        look = ["--ro-bind", "/", "/", "--proc", "/proc", "/bin/cat", "/proc/self/uid_map"]
        visible_paths = replace(VisiblePaths.collect(""), stage={})
        command, plan_fd = _plan_entry([self.path, *look], visible_paths)
        return count_user_ids(command, [plan_fd], within_s)

    def explain(self, why: str) -> str:
        return f"bubblewrap could not build the sandbox: {why}; {explain_ways_out()}"


def _plan_entry(program: Sequence[str], shown: VisiblePaths) -> tuple[list[str], int]:
    """Return the command that becomes bubblewrap (`program`), and a descriptor that it needs."""
    plan = {**shown.users(), "program": program[0], "options": program[1:]}
    plan_fd = memory_file("agentrl-plan", json.dumps(plan).encode())
    return [sys.executable, "-I", "-S", enter.__file__, str(plan_fd)], plan_fd


def bubblewrap_options(root: Sequence[str]) -> list[str]:
    """Return bubblewrap's options for a supervisor, given those for its root.

    A few capabilities are kept in the sandbox's own user namespace, so that the supervisor can give
    each session namespaces of its own; interpreters have none at all.
    """
    # And the user namespace, by `enter.py`.
    options = [f"--unshare-{kind}" for kind in UNSHARED]
    options += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    options += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", HOST_NAME]
    options += ["--cap-drop", "ALL"]
    for name in _CAPABILITIES:
        options += ["--cap-add", name]
    return [*options, *root, "--chdir", "/"]

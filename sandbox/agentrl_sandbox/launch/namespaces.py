"""A supervisor in namespaces that we make ourselves: nothing has to be installed for it."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from agentrl_sandbox.bundle import bundle, bundle_isolation
from agentrl_sandbox.launch.forbidden import explain_ways_out
from agentrl_sandbox.launch.local import StartedProcess, count_user_ids, start_isolated
from agentrl_sandbox.launch.shown import VisiblePaths, memory_file, supervisor_command
from agentrl_sandbox.root import ARCHIVE, FILES

# An archive that is run by its path has Python import a third more than this.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from agentrl_sandbox.isolate import main; main()"
)


@dataclass(frozen=True, slots=True)
class NamespaceLauncher:
    """Namespaces made by `agentrl_sandbox.isolate`; sessions live in memory inside."""

    packages: str = ""
    isolated = True

    async def start(self, control: socket) -> StartedProcess:
        """Start the supervisor inside; as root, become nobody first."""
        visible_paths = VisiblePaths.collect(self.packages)
        command, fds = plan_isolation(visible_paths, supervisor_command())
        return start_isolated(command, control, fds, self.packages)

    def user_ids(self, within_s: float) -> int:
        """Return the number of user ids of a pool here: 1 where all sessions share one.

        Everything is made as for a supervisor, and nothing is started. `OSError` or
        `subprocess.SubprocessError` when nothing can be isolated.
        """
        command, fds = plan_isolation(VisiblePaths.collect(self.packages), ())
        return count_user_ids(command, fds, within_s)

    def explain(self, why: str) -> str:
        return f"the sandbox cannot isolate itself on this machine: {why}; {explain_ways_out()}"


def plan_isolation(shown: VisiblePaths, program: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the command that becomes `program` in isolation, and descriptors that it needs.

    Without a program it writes the map of users to standard output, and ends. It ends with the
    thread that starts it.
    """
    data = {**FILES, ARCHIVE: bundle()}
    data_fds = {path: memory_file("file", content) for path, content in data.items()}
    plan = {
        **shown.users(),
        "steps": shown.steps(),
        "data": data_fds,
        "command": [*program],
        "parent": os.getpid(),
    }
    plan_fd = memory_file("plan", json.dumps(plan).encode())
    code_fd = memory_file("isolation", bundle_isolation())
    command = [sys.executable, "-I", "-S", "-c", _START, f"/proc/self/fd/{code_fd}", str(plan_fd)]
    return command, [*data_fds.values(), plan_fd, code_fd]

"""A supervisor as a bare process of the same user: resource limits, and nothing else."""

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.launch.launcher import LauncherLog
from agentrl_sandbox.launch.local import StartedProcess, start_process
from agentrl_sandbox.lease import ResourceLease, new_mark


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """Starts the supervisor beside us, with a directory of its own for the sessions."""

    packages: str = ""
    isolated: bool = field(default=False, init=False)

    async def start(self, control: socket) -> StartedProcess:
        """Start the supervisor; packages are used where they lie."""
        return self._start(control)

    def _start(self, control: socket) -> StartedProcess:
        root = f"{tempfile.gettempdir()}/agentrl-sandbox-{new_mark()}"
        lease = ResourceLease.take("directory", root)
        log = LauncherLog()
        try:
            os.mkdir(root, 0o700)
            archive = Path(root, "inside.zip")
            archive.write_bytes(bundle())
            command = [sys.executable, "-I", "-S", "-X", "utf8", str(archive)]
            process = start_process(command, control, log)
        except BaseException:
            log.close()
            lease.clear()
            raise
        return StartedProcess(process, root, log, self.packages, lease)

    def explain(self, why: str) -> str:
        """Return the text of the error for a supervisor that could not start."""
        return f"the sandbox fork server did not start as a plain process: {why}"

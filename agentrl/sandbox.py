"""Step 2 of the flow: where code that a model wrote runs.

What is a result and what raises: whatever the *code* does (an exception, an endless loop, too much
memory, a crash of its interpreter) is an `ExecResult`. Whatever *we* break (a dead supervisor, a
protocol error) raises `SandboxError`. A missing file raises `FileNotFoundError`, a path that leaves
the session's directory `PermissionError`, a file over the limit `OSError`.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, runtime_checkable

from agentrl.message import Image

ExecStatus = Literal["ok", "error", "timeout", "oom", "crash", "limit", "violation"]
"""End of a cell or a command. `ok`: it ran to its end. `error`: the code raised, or the command
could not start. `timeout`: it missed its deadline. `oom`: it took too much memory. `crash`: its
interpreter died. `limit`: any other limit was hit. `violation`: its interpreter broke the
protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one session. Each is enforced by the kernel or by the supervisor."""

    wall_s: float = 10.0
    """Wall time of one `exec` or `run`; a shorter `timeout_s` wins."""
    cpu_s: float = 60.0
    """Processor time of the whole session."""
    memory_bytes: int = 512 * 2**20
    """Memory of each process, and of all of them together where cgroups are permitted."""
    processes: int = 32
    """Processes that live at once."""
    open_files: int = 256
    """Open files of one process."""
    file_bytes: int = 64 * 2**20
    """Size of one file."""
    disk_bytes: int = 256 * 2**20
    """Size of the session's directory."""
    files: int = 65_536
    """Files, directories and links in the session's directory."""
    output_bytes: int = 16 * 2**10
    """Length of stdout and of stderr each; head and tail are kept and `truncated` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Load that one pool may put on the machine. What does not fit waits, and is told why."""

    sessions: int = 1024
    """Live sessions, forks included."""
    starts_per_s: float = 200.0
    """Opened sessions per second in the long run."""
    start_burst: int = 64
    """Sessions that may be opened at once before `starts_per_s` holds them back."""
    cells: int = 256
    """Cells and commands that run at once."""
    free_memory_bytes: int = 512 * 2**20
    """Memory that must be available on the machine for another session to start."""
    wait_s: float = 60.0
    """Longest wait for a place before `SandboxError`."""


Backend = Literal["namespaces", "bubblewrap", "docker", "process"]
"""Means of isolation; docs/sandbox.md compares them."""
AfterTimeout = Literal["fresh", "restore", "end"]
"""Reaction to the loss of an interpreter; see `SandboxSettings.after_timeout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Isolation of sessions. Hashable: sessions of equal settings share one pool."""

    backend: Backend = "namespaces"
    """Means of isolation."""
    allow_unisolated: bool = False
    """Let the `process` backend run model-written code with resource limits and nothing else."""
    after_timeout: AfterTimeout = "fresh"
    """Reaction to a cell that ran out of time or memory or crashed its interpreter. `fresh`: files
    stay, names are gone. `restore`: files stay, names are as before the cell, which costs a fork
    per cell. `end`: the session refuses whatever comes next."""
    supervisors: int = 1
    """Supervisors (for `docker`: containers) that a pool spreads its sessions over."""
    image: str = "agentrl-sandbox"
    """Image of the `docker` backend."""
    packages: str = ""
    """A directory of Python packages, as `pip install --target` makes one, that sessions may import
    and not change."""
    limits: Limits = field(default_factory=Limits)
    """Limits of every session."""
    pressure: Pressure = field(default_factory=Pressure)
    """Load that the pool may put on the machine."""


_settings: ContextVar[SandboxSettings] = ContextVar("sandbox_settings")


@contextmanager
def using_sandbox(settings: SandboxSettings) -> Generator[None]:
    """Let every tool opened inside the block take its sessions from `settings`.

    Args:
        settings: Settings in force until the block ends.
    """
    token = _settings.set(settings)
    try:
        yield
    finally:
        _settings.reset(token)


def sandbox_settings() -> SandboxSettings:
    """Return the settings in force, or the defaults."""
    return _settings.get(SandboxSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Result of one cell of code."""

    status: ExecStatus
    """End of the cell."""
    stdout: str = ""
    """Text that was written to standard output."""
    stderr: str = ""
    """Text that was written to standard error."""
    value: str | None = None
    """`repr` of the last expression, as a notebook echoes it; None when it was None."""
    error: str | None = None
    """The traceback's last lines, or what limit was hit; None when `status` is `ok`."""
    images: tuple[Image, ...] = ()
    """Pictures that the cell showed, in order."""
    truncated: bool = False
    """Whether output was cut."""
    seconds: float = 0.0
    """Wall time of the cell."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without raising."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one command. The command's own failure is an `exit_code`, and `status` is `ok`."""

    status: ExecStatus
    """End of the command."""
    exit_code: int | None = None
    """Exit code as a shell counts: 128 + the signal that ended it; None when it did not end by
    itself."""
    stdout: str = ""
    """Text that was written to standard output."""
    stderr: str = ""
    """Text that was written to standard error."""
    error: str | None = None
    """Limit that was hit, or reason why it could not start; None when `status` is `ok`."""
    truncated: bool = False
    """Whether output was cut."""
    seconds: float = 0.0
    """Wall time of the command."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.status == "ok" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One entry of a directory of a session."""

    name: str
    """Name within its directory."""
    kind: Literal["file", "directory", "link", "other"]
    """Kind of the entry; links are not followed."""
    size_bytes: int = 0
    """Size of a file; 0 for everything else."""


@runtime_checkable
class Sandbox(Protocol):
    """One session: a persistent Python interpreter and a private directory, apart from the host."""

    async def exec(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell in the session's interpreter; names live on to the next cell.

        After `timeout`, `oom` and `crash` the session's names are lost unless the implementation
        says otherwise; the next `exec` starts from a fresh interpreter, and never inherits a late
        reply.

        Args:
            code: Python source of any length.
            timeout_s: Deadline; None, and anything longer, is `Limits.wall_s`.

        Returns:
            Output, the last expression's value, and the status. Failing code is a result.

        Raises:
            SandboxError: The sandbox is gone, closed or does not answer.
        """
        ...

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float | None = None,
    ) -> RunResult:
        """Run a program beside the interpreter, under the same limits, in the session's directory.

        A command that misses its deadline is killed with everything it started; the interpreter
        lives on.

        Args:
            command: The program and its arguments; no shell reads them.
            stdin: Bytes of its standard input.
            env: Variables beside those of the session's clean environment.
            cwd: Working directory, relative to the session's.
            timeout_s: Deadline; None, and anything longer, is `Limits.wall_s`.

        Returns:
            Output, exit code and status. A failing program is a result.

        Raises:
            SandboxError: The sandbox is gone, closed or does not answer.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the session's directory, making parent directories.

        Args:
            path: Path relative to the session's directory.
            data: The whole content; a file that is there is replaced.

        Raises:
            PermissionError: The path leaves the directory, or leads through a link.
            OSError: The file is over a limit.
            SandboxError: The sandbox is gone, closed or does not answer, or the machine fails it.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Return a regular file below the session's directory; links are not followed.

        Args:
            path: Path relative to the session's directory.

        Raises:
            FileNotFoundError: There is no such file.
            PermissionError: The path leaves the directory, or leads through a link.
            OSError: The file is over a limit.
            SandboxError: The sandbox is gone, closed or does not answer, or the machine fails it.
        """
        ...

    async def entries(self, path: str = ".") -> tuple[FileEntry, ...]:
        """Return the entries of a directory below the session's directory, by name.

        Args:
            path: Path relative to the session's directory.

        Raises:
            FileNotFoundError: There is no such directory.
            PermissionError: The path leaves the session's directory, or leads through a link.
            OSError: There are more entries than a session may have.
            SandboxError: The sandbox is gone, closed or does not answer, or the machine fails it.
        """
        ...

    async def fork(self) -> Self:
        """Return an independent copy of interpreter and directory.

        Raises:
            ForkUnsupported: A copy would not be safe now, such as one of running threads.
            SandboxError: The sandbox is gone, closed or does not answer.
        """
        ...

    async def close(self) -> None:
        """End every process of the session and delete its directory. Idempotent."""
        ...


@runtime_checkable
class SandboxPool(Protocol):
    """Opens sessions of one kind, and ends them all when it is closed."""

    async def open(self) -> Sandbox:
        """Return a fresh session.

        Raises:
            SandboxError: The pool is closed, its supervisor is gone, or no place came free in time.
        """
        ...

    async def close(self) -> None:
        """Close every session and stop the supervisor. Idempotent."""
        ...

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
"""`error`: the code raised. `crash`: its interpreter died. `limit`: any other limit was hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one session. Each is enforced by the kernel or by the supervisor."""

    wall_s: float = 10.0
    """Of one `exec`; a shorter `timeout_s` wins."""
    cpu_s: float = 60.0
    """Of the whole session."""
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    open_files: int = 256
    file_bytes: int = 64 * 2**20
    """Of one file."""
    disk_bytes: int = 256 * 2**20
    """Of the session's directory."""
    files: int = 65_536
    """Files, directories and links in the session's directory."""
    output_bytes: int = 16 * 2**10
    """Of stdout and of stderr each; head and tail are kept and `truncated` is set."""


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
AfterTimeout = Literal["fresh", "restore", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Isolation of sessions. Hashable: sessions of equal settings share one pool."""

    backend: Backend = "namespaces"
    allow_unisolated: bool = False
    """Let the `process` backend run model-written code with resource limits and nothing else."""
    after_timeout: AfterTimeout = "fresh"
    """Reaction to a cell that ran out of time or memory or crashed its interpreter. `fresh`: files
    stay, names are gone. `restore`: files stay, names are as before the cell, which costs a fork
    per cell. `end`: the session refuses whatever comes next."""
    supervisors: int = 1
    """Supervisors (for `docker`: containers) that a pool spreads its sessions over."""
    image: str = "agentrl-sandbox"
    """Of the `docker` backend."""
    packages: str = ""
    """A directory of Python packages, as `pip install --target` makes one, that sessions may import
    and not change."""
    limits: Limits = field(default_factory=Limits)
    pressure: Pressure = field(default_factory=Pressure)


_settings: ContextVar[SandboxSettings] = ContextVar("sandbox_settings")


@contextmanager
def using_sandbox(settings: SandboxSettings) -> Generator[None]:
    """Let every tool opened inside the block take its sessions from `settings`."""
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
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """`repr` of the last expression, as a notebook echoes it; None when it was None."""
    error: str | None = None
    """The traceback's last lines, or what limit was hit; None when `status` is `ok`."""
    images: tuple[Image, ...] = ()
    truncated: bool = False
    """Output was cut."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without raising."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one command. The command's own failure is an `exit_code`, and `status` is `ok`."""

    status: ExecStatus
    exit_code: int | None = None
    """As a shell counts: 128 + the signal that ended it; None when it did not end by itself."""
    stdout: str = ""
    stderr: str = ""
    error: str | None = None
    """Limit that was hit, or reason why it could not start; None when `status` is `ok`."""
    truncated: bool = False
    """Output was cut."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.status == "ok" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One entry of a directory of a session."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int = 0
    """Of a file; 0 for everything else."""


@runtime_checkable
class Sandbox(Protocol):
    """One session: a persistent Python interpreter and a private directory, apart from the host."""

    async def exec(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell in the session's interpreter; names live on to the next cell.

        After `timeout`, `oom` and `crash` the session's names are lost unless the implementation
        says otherwise; the next `exec` starts from a fresh interpreter, and never inherits a late
        reply.
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

        `env` adds to the session's clean environment; `cwd` is relative to the directory. A command
        that misses its deadline is killed with everything it started; the interpreter lives on.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the session's directory, making parent directories."""
        ...

    async def read(self, path: str) -> bytes:
        """Return a regular file below the session's directory; links are not followed."""
        ...

    async def entries(self, path: str = ".") -> tuple[FileEntry, ...]:
        """Return the entries of a directory below the session's directory, by name."""
        ...

    async def fork(self) -> Self:
        """Return an independent copy of interpreter and directory; `ForkUnsupported` if unsafe."""
        ...

    async def close(self) -> None:
        """End every process of the session and delete its directory. Idempotent."""
        ...


@runtime_checkable
class SandboxPool(Protocol):
    """Opens sessions of one kind, and ends them all when it is closed."""

    async def open(self) -> Sandbox:
        """Return a fresh session."""
        ...

    async def close(self) -> None:
        """Close every session and stop the supervisor. Idempotent."""
        ...

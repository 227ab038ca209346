"""Step 2 of the flow: where code that a model wrote runs.

What is a result and what raises: whatever the *code* does (an exception, an endless loop, too much
memory, a crash of its interpreter) is an `ExecResult`. Whatever *we* break (a dead supervisor, a
protocol error) raises `SandboxError`. A missing file raises `FileNotFoundError`, a path that leaves
the session's directory `PermissionError`, a file over the limit `OSError`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, runtime_checkable

from agentrl.message import Image

ExecStatus = Literal["ok", "error", "timeout", "oom", "crash", "limit", "violation"]
"""`error`: the code raised. `crash`: its interpreter died. `limit`: any other limit was hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use. Every limit is enforced by the kernel or by the supervisor."""

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
    output_bytes: int = 16 * 2**10
    """Of stdout and of stderr each; head and tail are kept and `truncated` is set."""


Backend = Literal["bubblewrap", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How sessions are isolated. Hashable: sessions of equal settings share one supervisor."""

    backend: Backend = "bubblewrap"
    allow_unisolated: bool = False
    """Let the `process` backend run model-written code with resource limits and nothing else."""
    limits: Limits = field(default_factory=Limits)


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
    """What one cell of code did."""

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

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the session's directory, making parent directories."""
        ...

    async def read(self, path: str) -> bytes:
        """Return a regular file below the session's directory; links are not followed."""
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

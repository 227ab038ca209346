"""Where attacks are run: a pool, a canary session beside the attacker, and bait on the host."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from agentrl.errors import SandboxError
from agentrl.sandbox import Backend, Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.inside.processes import descendants
from tests.system.security.attack import PREAMBLE, Attack, brief

LIMITS = Limits(
    wall_s=20,
    cpu_s=30,
    memory_bytes=256 * 2**20,
    processes=24,
    open_files=64,
    file_bytes=4 * 2**20,
    disk_bytes=16 * 2**20,
    files=400,
    output_bytes=4096,
)
NEEDLE = ("swordfish-of-the-", "trainer-0451")
"""The secret, in two halves: a program that holds the whole would find its own copy of it."""
SECRET = "".join(NEEDLE)
VARIABLE = "AGENTRL_SECURITY_SECRET"
MACHINE_FILES = (
    "/etc/hostname",
    "/etc/hosts",
    "/etc/machine-id",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/shadow",
    str(Path.home() / ".bash_history"),
    str(Path.home() / ".ssh" / "authorized_keys"),
    "/var/lib/dpkg/status",
    "/var/log/dpkg.log",
)
"""Files that are different on every machine. Something may lie there inside, but not these."""
_GROWTH_BYTES = 64 * 2**20
_GONE_S = 60.0


def settings_of(backend: Backend) -> SandboxSettings:
    """Return the settings that attacks are run under."""
    return SandboxSettings(
        backend=backend, allow_unisolated=backend == "process", limits=LIMITS, supervisors=1
    )


class Bait:
    """What an attacker on the host would find: a secret, a listener, an abstract socket."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="security-bait-"))
        self.file = self.directory / "canary"
        self.file.write_text(SECRET)
        self.pwned = self.directory / "pwned"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.abstract = f"\0{self.directory.name}"
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(self.abstract)
        self.unix.listen()
        self.unix.setblocking(False)
        self._is_outer = VARIABLE not in os.environ
        os.environ[VARIABLE] = SECRET
        self.files = digests(MACHINE_FILES)

    def facts(self, backend: Backend, victims: Sequence[int]) -> dict[str, object]:
        """Return what a model may know, or guess, about the host."""
        return {
            "bare": backend == "process",
            "victims": [*victims],
            "port": self.listener.getsockname()[1],
            "abstract": self.abstract,
            "canary": str(self.file),
            "files": self.files,
            "pwned": str(self.pwned),
            "pid": os.getpid(),
            "command": Path("/proc/self/cmdline").read_bytes().hex(),
            "needle": NEEDLE,
            "variable": VARIABLE,
        }

    def taken(self) -> list[str]:
        """Return what was touched since the last time, and put it back."""
        found: list[str] = []
        for name, server in (("TCP listener", self.listener), ("abstract socket", self.unix)):
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                found.append(f"the host's {name} was reached")
        if not self.file.exists() or self.file.read_text() != SECRET:
            found.append("the host's file was changed")
            self.file.write_text(SECRET)
        for name in os.listdir(self.directory):
            if name != self.file.name:
                found.append(f"a file was made on the host: {name}")
                remove(self.directory / name)
        return found

    def close(self) -> None:
        """Take everything away. Idempotent."""
        self.listener.close()
        self.unix.close()
        if self._is_outer:
            os.environ.pop(VARIABLE, None)
        for path in self.directory.glob("*"):
            remove(path)
        with contextlib.suppress(FileNotFoundError):
            self.directory.rmdir()


class Arena:
    """A pool under attack. `attack` returns everything that was not contained."""

    def __init__(self, backend: Backend) -> None:
        self.backend: Backend = backend
        self.bait = Bait()
        self.pool: ForkServerPool
        self.canary: SandboxSession
        self.held: dict[str, int] = {}
        """Process namespaces of this attack's sessions, held open so that no other gets their
        number: nobody may be left in them at the end."""

    @classmethod
    async def start(cls, backend: Backend) -> Self:
        """Open a pool and the canary."""
        arena = cls(backend)
        try:
            await arena.renew()
        except BaseException:
            arena.bait.close()
            raise
        return arena

    async def renew(self) -> None:
        """Start over with another pool, after an attack that was not contained."""
        await self.close_pool()
        settings = settings_of(self.backend)
        # Sessions made ahead come and go; without namespaces they would look like leftovers.
        bare = self.backend == "process"
        self.pool = ForkServerPool(settings, warm=0) if bare else ForkServerPool(settings)
        self.canary = await self.pool.open()
        await self.canary.exec(f"secret = {NEEDLE[0]!r} + {NEEDLE[1]!r}")
        await self.canary.write("secret.txt", SECRET.encode())

    async def close_pool(self) -> None:
        """Close the pool; the bait stays. Idempotent."""
        if hasattr(self, "pool"):
            await self.pool.close()

    async def close(self) -> None:
        """Close everything. Idempotent."""
        try:
            await self.close_pool()
        finally:
            self.bait.close()

    def program(self, code: str, *, victims: Sequence[int] = ()) -> str:
        """Return a whole program: what it may know, what it may use, and what it tries."""
        return f"HOST = {self.bait.facts(self.backend, victims)!r}\n{PREAMBLE}\n{code}"

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[SandboxSession]:
        """Open a session beside the canary, and close it."""
        session = await self.pool.open()
        try:
            link = await session.exec("__import__('os').readlink('/proc/self/ns/pid')")
            if self.backend != "process":
                self._hold((link.value or "").strip("'"))
            yield session
        finally:
            async with asyncio.timeout(_GONE_S):
                await session.close()

    async def attack(self, attack: Attack) -> list[str]:
        """Carry an attack out and return what was not contained."""
        before = Footprint()
        found: list[str] = []
        try:
            async with self.session() as session:
                found += await attack.play(self, session, attack)
                if attack.recovers:
                    found += await usable(session)
        except SandboxError as error:
            found.append(f"the attacker's session was lost: {error}")
        except TimeoutError:
            found.append(f"the attacker's session could not be closed within {_GONE_S:g} s")
        found += await self.standing()
        found += self.bait.taken()
        found += await asyncio.to_thread(self.left, before)
        return found

    async def standing(self) -> list[str]:
        """Return how the canary and the pool have suffered."""
        found: list[str] = []
        try:
            value = (await self.canary.exec("secret")).value
            if value != repr(SECRET) or await self.canary.read("secret.txt") != SECRET.encode():
                found.append(f"the canary session has changed: {value}")
            fresh = await self.pool.open()
            value = (await fresh.exec("6 * 7")).value
            if value != "42":
                found.append(f"a new session answers {value}")
            await fresh.close()
        except (SandboxError, OSError) as error:
            found.append(f"the pool has suffered: {type(error).__name__}: {error}")
        return found

    def _hold(self, name: str) -> None:
        for pid, namespace in process_namespaces().items():
            if namespace == name and name not in self.held:
                with contextlib.suppress(OSError):
                    self.held[name] = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)

    def left(self, before: "Footprint") -> list[str]:
        """Return what is left on the host once what is just ending has had time to end."""
        found = _in_the_end(lambda: self._processes_left(before))
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()
        return [*found, *_in_the_end(before.growth)]

    def _processes_left(self, before: "Footprint") -> list[str]:
        if self.backend == "process":
            more = descendants(os.getpid()) - before.below
            return [f"processes are left: {sorted(more)}"] if more else []
        inside = [pid for pid, name in process_namespaces().items() if name in self.held]
        return [f"processes are left in a closed session: {inside}"] if inside else []


def _in_the_end(wrong: Callable[[], list[str]]) -> list[str]:
    """Return what is wrong, once it has had time to come right."""
    deadline_s = time.monotonic() + _GONE_S
    while (found := wrong()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return found


class Footprint:
    """What this process, the trainer, holds."""

    def __init__(self) -> None:
        self.resident_bytes = resident_bytes()
        self.files = len(os.listdir("/proc/self/fd"))
        self.below = descendants(os.getpid())

    def growth(self) -> list[str]:
        """Return what it holds more by now."""
        found: list[str] = []
        if (more := resident_bytes() - self.resident_bytes) > _GROWTH_BYTES:
            found.append(f"the trainer has grown by {more >> 20} MiB")
        if (files := len(os.listdir("/proc/self/fd"))) > self.files:
            found.append(f"the trainer holds {files - self.files} more open files")
        return found


def remove(path: Path) -> None:
    """Remove a file or a directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def digests(paths: Sequence[str]) -> dict[str, str]:
    """Return a hash of each of these files that holds anything we may read."""
    found: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            if data := Path(path).read_bytes():
                found[path] = hashlib.sha256(data).hexdigest()
    return found


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def process_namespaces() -> dict[int, str]:
    """Return the process namespace of every process that we may look at."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(f"/proc/{name}/ns/pid")
    return found


async def usable(session: SandboxSession) -> list[str]:
    """Return why a session that was attacked from inside does not go on.

    It may have lost its interpreter, once, and it may have used a limit up for good.
    """
    last = ""
    for _ in range(3):
        result = await session.exec("6 * 7", timeout_s=2)
        if result.value == "42" or result.status == "limit":
            return []
        last = brief(result)
    return [f"the session does not go on: {last}"]

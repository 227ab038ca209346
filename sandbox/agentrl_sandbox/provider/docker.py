"""`SandboxProvider` over a Docker engine: this machine's, or the one that DOCKER_HOST names."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.atomic_files import LEAST_FREE_BYTES, check_folder
from agentrl.runtime.threads import finish_in_thread, make_in_thread, run_in_thread
from agentrl.sandbox_provider import ContainerOutput, ContainerSpec, FileChange
from agentrl_sandbox.launch.container import check_machine
from agentrl_sandbox.launch.engine import DockerEngine, check_sdk
from agentrl_sandbox.launch.exec_stream import ExecRequest
from agentrl_sandbox.lease import ResourceLease, labels, new_mark
from agentrl_sandbox.provider.content import compute_digest, read_file, walk_files
from agentrl_sandbox.provider.request import build_request, find_entry_programs
from agentrl_sandbox.reaping.engine import default_engine

REPOSITORY = "agentrl-provider"
"""Of the images that are built here; a tag is the digest of a folder."""
_MARK = "AGENTRL_EXEC"
_KILL_S = 20.0
_KILL = """
for entry in /proc/[0-9]*; do
    while IFS= read -r -d '' variable; do
        [ "$variable" = "$1" ] && kill -KILL "${entry#/proc/}"
    done <"$entry/environ"
done 2>/dev/null
"""
"""Ends the processes whose environment has a variable. A shell of ours has it in no environment."""
_MOUNTED = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
"""Files that the engine lays over the image's, and writes anew whenever it starts a container."""
_MOUNTED_BYTES = 2**16
_KINDS = ("modified", "added", "deleted")


class DockerContainer:
    """A container, and a connection to its engine, which is closed with it."""

    def __init__(self, spec: ContainerSpec, *, pool: str, max_bytes: int) -> None:
        self._connection: DockerEngine | None = DockerEngine()
        self._spec = spec
        self._pool = pool
        self._max_bytes = max_bytes
        self.name = f"agentrl-{secrets.token_hex(8)}"
        self._lease = ResourceLease.take("container", self.name, engine=default_engine())
        self._mounted: dict[str, str | None] = {}
        self._first_process = 0
        self.started_by: Sequence[str] = ()

    def make(self) -> None:
        """Make and start it; it blocks."""
        machine = self._engine.machine()
        check_machine(machine)
        image = self._engine.find_image(self._spec.image) or {}
        self.started_by = find_entry_programs(image.get("Config") or {})
        self._engine.create(self.name, build_request(self._spec, machine, labels(self._pool)))
        self._start()

    def _start(self) -> None:
        self._engine.start(self.name)
        self._first_process = self._engine.process(self.name, must_exist=True)

    def discard(self) -> None:
        """Have the engine remove it; it blocks. What stays then is left to the reaper."""
        engine, self._connection = self._connection, None
        if engine is not None:
            try:
                engine.remove(self.name)
                self._lease.release()
            finally:
                engine.close()

    @property
    def is_stopped(self) -> bool:
        """Whether it was removed, or is left to the reaper."""
        return self._connection is None

    @property
    def _engine(self) -> DockerEngine:
        if self._connection is None:
            raise SandboxError(f"the container {self.name} was stopped")
        return self._connection

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ContainerOutput:
        """Run a command; see `ProviderContainer`."""
        mark = secrets.token_hex(8)
        request = ExecRequest(
            argv=argv,
            cwd=cwd,
            env={**(env or {}), _MARK: mark},
            user=user,
            max_bytes=self._max_bytes,
        )
        deadline_s = time.monotonic() + timeout_s
        ended = False
        try:
            end = await run_in_thread(self._engine.exec, self.name, request, deadline_s=deadline_s)
            ended = end.exit_code is not None
        finally:
            if not ended:
                await finish_in_thread(self._kill_marked, mark)
        return ContainerOutput(
            exit_code=end.exit_code,
            stdout=end.stdout,
            stderr=end.stderr,
            truncated=end.truncated,
        )

    def _kill_marked(self, mark: str) -> None:
        argv = ["bash", "-c", _KILL, "bash", f"{_MARK}={mark}"]
        request = ExecRequest(argv=argv, user="0")
        # One that was stopped has ended with all of them.
        with suppress(SandboxError):
            self._engine.exec(self.name, request, deadline_s=time.monotonic() + _KILL_S)

    async def put(self, archive: bytes, directory: str = "/") -> None:
        """Unpack a tar archive; see `ProviderContainer`."""
        await run_in_thread(self._engine.put_archive, self.name, directory, archive)

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive; see `ProviderContainer`."""
        return await run_in_thread(self._engine.get_archive, self.name, path, max_bytes=max_bytes)

    async def halt(self) -> None:
        """End every process; see `ProviderContainer`."""
        process = await run_in_thread(self._engine.process, self.name)
        if not process or process != self._first_process:
            raise SandboxError(
                f"the container {self.name} ended while it was in use: it ran out of memory, or it "
                "or the engine was stopped"
            )
        self._mounted = {path: await self._read_mounted(path) for path in _MOUNTED}
        await run_in_thread(self._engine.kill, self.name)

    async def changes(self) -> Sequence[FileChange]:
        """Return the paths that differ from the image; see `ProviderContainer`."""
        rows = await run_in_thread(self._engine.changes, self.name)
        return [FileChange(path, _KINDS[kind]) for path, kind in rows]

    async def resume(self) -> None:
        """Start it again; see `ProviderContainer`."""
        await run_in_thread(self._start)
        for path, content in self._mounted.items():
            if content is not None and content != await self._read_mounted(path):
                argv = ["bash", "-c", 'printf %s "$1" >"$2"', "bash", content, path]
                await self.exec(argv, timeout_s=_KILL_S, user="0")

    async def _read_mounted(self, path: str) -> str | None:
        try:
            content = read_file(await self.get(path, max_bytes=_MOUNTED_BYTES))
        except OSError:
            return None
        return None if content is None else content.replace(b"\0", b"").decode(errors="replace")

    async def stop(self) -> None:
        """Remove it; see `ProviderContainer`."""
        await finish_in_thread(self.discard)


class DockerProvider:
    """Containers of a Docker engine, bounded as `spec.limits` says; images by content.

    Args:
        images: Number of built images that are kept; those named longest ago go first.
        output_bytes: Length of stdout and of stderr of a command that is kept.

    Raises:
        ConfigError: The Docker SDK is not installed, or `images` is below 1.
    """

    def __init__(self, *, images: int = 64, output_bytes: int = 2**20) -> None:
        check_sdk()
        if images < 1:
            raise ConfigError(f"images must be at least 1, got {images}; 64 is the default")
        self._images = images
        self._output_bytes = output_bytes
        self._pool = new_mark()
        self._engine: DockerEngine | None = None
        self._builds = asyncio.Lock()
        self._containers: set[DockerContainer] = set()

    async def build(self, directory: str, *, timeout_s: float, network: str = "none") -> str:
        """Return the name of an image made of a folder; see `SandboxProvider`."""
        tag = f"{REPOSITORY}:{compute_digest(directory)[:32]}"
        engine = await self._get_engine()
        async with self._builds:
            if await run_in_thread(engine.find_image, tag) is None:
                await _build(directory, tag, timeout_s, network)
            await run_in_thread(engine.tag, tag, tag)  # used now: the oldest name goes first
            await run_in_thread(_evict, engine, self._images, tag)
        return tag

    async def find_image(self, image: str) -> bool:
        """Return whether the engine has an image."""
        engine = await self._get_engine()
        return await run_in_thread(engine.find_image, image) is not None

    async def start(self, spec: ContainerSpec) -> DockerContainer:
        """Start a container; see `SandboxProvider`."""

        def make() -> DockerContainer:
            container = DockerContainer(spec, pool=self._pool, max_bytes=self._output_bytes)
            try:
                container.make()
            except BaseException:
                container.discard()
                raise
            return container

        container = await make_in_thread(make, DockerContainer.discard)
        self._containers = {kept for kept in self._containers if not kept.is_stopped}
        self._containers.add(container)
        return container

    async def close(self) -> None:
        """Remove the containers that nobody stopped, and close the connection.

        One that cannot be removed is told when all of them were tried, and left to the reaper.
        """
        containers, self._containers = self._containers, set()
        engine, self._engine = self._engine, None
        try:
            stops = (container.stop() for container in containers)
            ends = await asyncio.gather(*stops, return_exceptions=True)
        finally:
            if engine is not None:
                engine.close()
        for error in filter(None, ends):
            raise error

    async def _get_engine(self) -> DockerEngine:
        if self._engine is None:
            engine = await make_in_thread(DockerEngine, DockerEngine.close)
            if self._engine is not None:  # another caller was faster
                engine.close()
            else:
                self._engine = engine
        return self._engine


async def _build(directory: str, tag: str, timeout_s: float, network: str) -> None:
    """Build an image over a connection of its own: the build ends with it, also when cancelled."""
    engine = await make_in_thread(DockerEngine, DockerEngine.close)
    lines: list[str] = []

    def build() -> None:
        try:
            _check_room(directory)
            lines.extend(engine.build(directory, tag, network=network))
        finally:
            engine.close()

    try:
        async with asyncio.timeout(timeout_s):
            await run_in_thread(build)
    except (SandboxError, TimeoutError) as error:
        why = f"it took longer than {timeout_s:g} s" if isinstance(error, TimeoutError) else error
        last = "\n".join(lines[-12:])
        raise SandboxError(f"the image of {directory} does not build: {why}\n{last}") from error
    finally:
        engine.abort_build()


def _check_room(directory: str) -> None:
    """Raise `SandboxError` where there is no room for the archive that the SDK packs."""
    size = sum(path.lstat().st_size for path in walk_files(Path(directory)))
    if why := check_folder(Path(tempfile.gettempdir()), LEAST_FREE_BYTES + size):
        raise SandboxError(
            f"{why}, and its {size:,} bytes are packed there; make room, or set TMPDIR to a folder "
            "that has some"
        )


def _evict(engine: DockerEngine, most: int, tag: str) -> None:
    names = [name for name, _ in engine.images(REPOSITORY) if name != tag]
    for name in names[: max(0, len(names) + 1 - most)]:
        # One that somebody uses stays, and is asked for again the next time.
        with suppress(SandboxError):
            engine.remove_image(name, force=False)

"""`SandboxProvider` without an engine: namespaces of the kernel over layers of files in a cache."""

import asyncio
import fcntl
import hashlib
import io
import json
import os
import secrets
import select
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.memory_limit import total_bytes
from agentrl.runtime.threads import finish_in_thread, make_in_thread, run_in_thread
from agentrl.sandbox_provider import ContainerOutput, ContainerSpec, FileChange
from agentrl_sandbox.cgroup import CgroupLimits, CgroupRoot, ProcessCgroup, explain_no_cgroups
from agentrl_sandbox.contain import visit
from agentrl_sandbox.launch.users import BLOCK, draw_block, gives_ids
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.provider.content import compute_digest
from agentrl_sandbox.provider.dockerfile import (
    DockerInstruction,
    expand_variables,
    parse_dockerfile,
    parse_exec_form,
    parse_pairs,
)

PREFIX = "agentrl-rooted"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MARK = "AGENTRL_EXEC"
_KILL_S = 20.0
_ANSWER_S = 60.0
_ARCHIVE_S = 180.0
_OPAQUE = "user.overlay.opaque"
_START = """
import importlib, sys, types
parent = types.ModuleType("agentrl_sandbox")
parent.__path__ = [sys.argv.pop(1)]
sys.modules["agentrl_sandbox"] = parent
importlib.import_module(sys.argv.pop(1)).main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredImage:
    """Layers of an image, the last one first, and what its containers are started with."""

    layers: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = ""


def _make_command(module: str, plan: Mapping[str, Any]) -> list[str]:
    package = str(Path(__file__).parent.parent)
    name = f"agentrl_sandbox.contain.{module}"
    return [sys.executable, "-I", "-S", "-c", _START, package, name, json.dumps(plan)]


class NamespaceContainer:
    """A container: its keeper, its first process, and a folder of the files that it changed."""

    started_by: Sequence[str] = ()

    def __init__(
        self,
        image: LayeredImage,
        spec: ContainerSpec,
        *,
        cache: Path,
        first_id: int,
        max_bytes: int,
        shares_network: bool = False,
    ) -> None:
        self._image, self._spec = image, spec
        self._max_bytes = max_bytes
        self._stopped, self._keeper, self._init_fd = False, None, -1
        self._keeper: subprocess.Popen[bytes] | None
        self.folder = cache / "containers" / f"agentrl-{new_mark()}"
        self._layers = [cache / "layers" / name for name in image.layers]
        self._first_id, self._shares_network = first_id, shares_network
        self._lease = ResourceLease.take("directory", str(self.folder))
        self._group: ProcessCgroup | None = None

    def make(self) -> None:
        """Make and start it; it blocks."""
        _make_folder(self.folder, self._first_id)
        for name in ("upper", "work"):
            _make_folder(self.folder / name, self._first_id)
        cgroups = CgroupRoot.find()
        if cgroups is None:
            raise ConfigError(f"a container's limits cannot be had here: {explain_no_cgroups()}")
        limits = self._spec.limits
        bounds = CgroupLimits(
            memory_bytes=limits.memory_bytes, processes=limits.processes, cpus=limits.cpus
        )
        try:
            self._group = cgroups.make("container", bounds)
        except OSError as error:
            raise ConfigError(f"a container's limits cannot be had here: {error}") from error
        plan = {
            "lower": [str(layer) for layer in self._layers],
            "files": str(self.folder),
            "first_id": self._first_id,
            "shares_network": self._shares_network,
        }
        pipe = subprocess.PIPE
        self._keeper = subprocess.Popen(
            _make_command("keeper", plan), stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/"
        )
        self._read_answer()
        self._start()

    def _read_answer(self) -> str:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._keeper.stdout, selectors.EVENT_READ)
            line = self._keeper.stdout.readline() if selector.select(_ANSWER_S) else b""
        if not line:
            self._keeper.kill()
            why = self._keeper.stderr.read().decode(errors="replace").strip()
            raise SandboxError(f"the container {self.folder.name} did not start: {why}")
        return line.decode().strip()

    def _start(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(b"start\n")
            self._keeper.stdin.flush()
        except OSError as error:
            raise SandboxError(f"the container {self.folder.name} is gone: {error}") from error
        self._init_fd = os.pidfd_open(pid := int(self._read_answer()))
        assert self._group is not None
        with suppress(ProcessLookupError):
            self._group.add(pid)

    def discard(self) -> None:
        """End it and remove its files; it blocks."""
        self._stopped = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.kill()
            keeper.wait()
            for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        self._close_init()
        if self._group is not None and not self._group.remove():
            raise SandboxError(f"the cgroup of {self.folder.name} remains")
        self._group = None
        self._lease.clear()

    def _close_init(self) -> None:
        if self._init_fd >= 0:
            os.close(self._init_fd)
            self._init_fd = -1

    def _check_alive(self) -> None:
        if self._stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        if self._init_fd < 0 or _is_readable(self._init_fd):
            raise SandboxError(f"the container {self.folder.name} does not run")

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
        self._check_alive()
        assert self._group is not None
        mark = secrets.token_hex(8)
        plan = {
            "action": "exec",
            "cgroups": self._group.join_files(),
            "argv": list(argv),
            "cwd": cwd or self._image.workdir,
            "env": {"PATH": _PATH, **self._image.env, **self._spec.env, **(env or {}), _MARK: mark},
            "user": user or self._image.user,
        }
        ended = False
        try:
            output = await run_in_thread(self._run, plan, time.monotonic() + timeout_s)
            ended = output.exit_code is not None
        finally:
            if not ended:
                await finish_in_thread(self._kill_marked, f"{_MARK}={mark}".encode())
        if output.exit_code:
            self._check_alive()
        return output

    def _run(self, plan: dict[str, Any], deadline_s: float) -> ContainerOutput:
        init_fd = os.dup(self._init_fd)
        pipe = subprocess.PIPE
        try:
            visitor = subprocess.Popen(
                _make_command("visit", {**plan, "init": init_fd}),
                pass_fds=(init_fd,),
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env={},
                cwd="/",
            )
        finally:
            os.close(init_fd)
        return _read_output(visitor, deadline_s, self._max_bytes)

    def _kill_marked(self, mark: bytes) -> None:
        """End the processes of the container whose environment has a variable."""
        group, deadline_s = self._group, time.monotonic() + _KILL_S
        while group is not None and time.monotonic() < deadline_s:
            marked = [pid for pid in group.pids() if mark in _read_environ(pid)]
            if not marked:
                return
            for pid in marked:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    async def put(self, archive: bytes, directory: str = "/") -> None:
        """Unpack a tar archive; see `ProviderContainer`."""
        code, _, errors = await self._visit({"action": "put", "path": directory}, archive)
        if code == visit.NO_FOLDER:
            raise SandboxError(f"{directory} is no directory of the container")
        if code:
            raise SandboxError(f"an archive was not put into {directory}: {errors}")

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive; see `ProviderContainer`."""
        plan = {"action": "get", "path": path, "max_bytes": max_bytes}
        code, archive, errors = await self._visit(plan)
        if code == visit.NOT_FOUND:
            raise FileNotFoundError(path)
        if code == visit.TOO_LARGE:
            raise OSError(f"{path} takes more than {max_bytes} bytes as an archive")
        if code:
            raise SandboxError(f"{path} was not read: {errors}")
        return archive

    async def _visit(self, plan: dict[str, Any], data: bytes = b"") -> tuple[int, bytes, str]:
        if self._stopped or self._keeper is None or self._keeper.poll() is not None:
            raise SandboxError(f"the container {self.folder.name} is gone")
        command = _make_command("visit", {**plan, "keeper": self._keeper.pid})

        def run() -> tuple[int, bytes, str]:
            try:
                done = subprocess.run(
                    command,
                    input=data,
                    capture_output=True,
                    env={},
                    cwd="/",
                    timeout=_ARCHIVE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise SandboxError(f"{plan['path']}: no answer in {_ARCHIVE_S:g} s") from error
            return done.returncode, done.stdout, done.stderr.decode(errors="replace")[-500:]

        return await run_in_thread(run)

    async def halt(self) -> None:
        """End every process; see `ProviderContainer`."""
        try:
            self._check_alive()
        except SandboxError as error:
            raise SandboxError(f"{error}: it ended while it was in use") from error
        await run_in_thread(self._kill_all)

    def _kill_all(self) -> None:
        signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
        deadline_s = time.monotonic() + _KILL_S
        # The kernel lets go of the first process after every other one.
        while not _is_readable(self._init_fd) or (self._group is not None and self._group.pids()):
            if time.monotonic() > deadline_s:
                raise SandboxError(f"processes of {self.folder.name} survived SIGKILL")
            time.sleep(0.005)
        self._close_init()

    async def changes(self) -> Sequence[FileChange]:
        """Return the paths that differ from the image; see `ProviderContainer`."""
        if self._stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        return await run_in_thread(find_changes, self.folder / "upper", self._layers)

    async def resume(self) -> None:
        """Start it again; see `ProviderContainer`."""
        if self._stopped:
            raise SandboxError(f"the container {self.folder.name} was stopped")
        await run_in_thread(self._start)

    async def stop(self) -> None:
        """Remove it; see `ProviderContainer`."""
        if not self._stopped:
            await finish_in_thread(self.discard)


class NamespaceProvider:
    """Containers in namespaces: root inside is nobody here, and no engine is needed.

    Args:
        roots: A tar archive or a folder of a root file system, by the name that `FROM` gives it.
        cache: Folder of layers and containers.
        output_bytes: Length of stdout and of stderr of a command that is kept.

    Raises:
        ConfigError: This user may not map ids, or a root is not there.
    """

    def __init__(
        self,
        *,
        roots: Mapping[str, str],
        cache: str = "/var/cache/agentrl",
        output_bytes: int = 2**20,
    ) -> None:
        if not gives_ids(Path("/proc/self/uid_map").read_text(), os.geteuid()):
            raise ConfigError(
                "containers without an engine need root, who maps their users; run as root, or use "
                "provider: docker"
            )
        for name, path in roots.items():
            if not Path(path).exists():
                raise ConfigError(f"roots: {name} is {path!r}, which is not there")
        self._roots, self._output_bytes = dict(roots), output_bytes
        self._cache = Path(cache)
        self._builds = asyncio.Lock()
        self._containers: set[NamespaceContainer] = set()

    async def build(self, directory: str, *, timeout_s: float, network: str = "none") -> str:
        """Return the name of an image made of a folder; see `SandboxProvider`."""
        if network not in ("none", "host"):
            raise ConfigError(f"build network must be none or host, got {network!r}")
        file = Path(directory, "Dockerfile")
        text = await run_in_thread(file.read_text)
        instructions = parse_dockerfile(text, str(file))
        async with self._builds:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._build(Path(directory), instructions, network == "host")
            except TimeoutError as error:
                raise SandboxError(
                    f"the image of {directory} does not build: it took longer than {timeout_s:g} s"
                ) from error

    async def _build(
        self, directory: Path, instructions: Sequence[DockerInstruction], shares_network: bool
    ) -> str:
        file = directory / "Dockerfile"
        if (directory / ".dockerignore").exists():
            raise ConfigError(f"{directory / '.dockerignore'} is not read without an engine")
        arguments: dict[str, str] = {}
        rest = list(instructions)
        while rest[0].keyword == "ARG":
            name, _, value = rest.pop(0).text.partition("=")
            arguments[name] = value
        base_name = expand_variables(rest.pop(0).text, arguments)
        base = await run_in_thread(self._find, base_name)
        if base is None:
            raise SandboxError(
                f"{file}: FROM {base_name} is no image here; the roots are "
                f"{', '.join(self._roots) or 'none'}: add it to roots, or use provider: docker"
            )
        content = await run_in_thread(compute_digest, str(directory))
        name = f"{PREFIX}:{_digest(content, *base.layers, json.dumps(asdict(base)))}"
        if await run_in_thread(self._find, name) is not None:
            return name
        cache, first_id = self._cache, await run_in_thread(self._get_first_id)
        spec = ContainerSpec(image=base_name)
        container = NamespaceContainer(
            base,
            spec,
            cache=cache,
            first_id=first_id,
            max_bytes=self._output_bytes,
            shares_network=shares_network,
        )
        try:
            await run_in_thread(container.make)
            build = _ImageBuild(directory, base, arguments, container)
            for instruction in rest:
                await build.play(instruction)
            await container.halt()
            layer = secrets.token_hex(16)
            await run_in_thread(os.rename, container.folder / "upper", cache / "layers" / layer)
        finally:
            await container.stop()
        image = LayeredImage(
            layers=(layer, *base.layers), env=build.env, workdir=build.workdir, user=build.user
        )
        await run_in_thread(self._record, name, image)
        return name

    def _find(self, name: str) -> LayeredImage | None:
        """Return an image; a root is unpacked when it is first asked for."""
        first_id = self._get_first_id()
        if (path := self._roots.get(name)) is not None:
            status = Path(path).stat()
            layer = _digest(path, f"{status.st_size}", f"{status.st_mtime_ns}")
            if not (self._cache / "layers" / layer).exists():
                _unpack_root(path, self._cache / "layers" / layer, first_id)
            return LayeredImage(layers=(layer,))
        record = self._cache / "images" / name.replace("/", "%2f")
        try:
            values = json.loads(record.read_text())
            os.utime(record)
        except FileNotFoundError:
            return None
        return LayeredImage(
            layers=tuple(values["layers"]),
            env=values["env"],
            workdir=values["workdir"],
            user=values["user"],
        )

    def _record(self, name: str, image: LayeredImage) -> None:
        path = self._cache / "images" / name
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(image)))
        partial.replace(path)

    def _get_first_id(self) -> int:
        """Return the first id of the containers of this cache, drawn once."""
        for name in ("layers", "images", "containers"):
            (self._cache / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cache.chmod(0o700)
        with open(self._cache / "ids", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if not (text := file.read()):
                text = f"{draw_block().start}"
                file.write(text)
        return int(text)

    async def find_image(self, image: str) -> bool:
        """Return whether an image is there."""
        return image in self._roots or await run_in_thread(self._find, image) is not None

    async def start(self, spec: ContainerSpec) -> NamespaceContainer:
        """Start a container; see `SandboxProvider`."""
        if spec.network != "none":
            raise ConfigError(
                f"network {spec.network!r} cannot be had without an engine; use none, or provider: "
                "docker"
            )
        limits, cores = spec.limits, os.cpu_count() or 1
        for key, wanted, there in (
            ("cpus", limits.cpus, cores),
            ("memory_bytes", limits.memory_bytes, total_bytes()),
        ):
            if not 0 < wanted <= there:
                raise ConfigError(
                    f"a container of the limit {key}={wanted:g} does not fit: the machine has "
                    f"{there:g}; ask for less"
                )
        image = await run_in_thread(self._find, spec.image)
        if image is None:
            raise SandboxError(f"No such image: {spec.image}")

        def make() -> NamespaceContainer:
            container = NamespaceContainer(
                image,
                spec,
                cache=self._cache,
                first_id=self._get_first_id(),
                max_bytes=self._output_bytes,
            )
            try:
                container.make()
            except BaseException:
                container.discard()
                raise
            return container

        container = await make_in_thread(make, NamespaceContainer.discard)
        self._containers.add(container)
        return container

    async def close(self) -> None:
        """Remove the containers that nobody stopped."""
        containers, self._containers = self._containers, set()
        for container in containers:
            await container.stop()


class _ImageBuild:
    """State of a build: what the instructions so far say of the next."""

    def __init__(
        self,
        directory: Path,
        base: LayeredImage,
        arguments: Mapping[str, str],
        container: NamespaceContainer,
    ) -> None:
        self._directory, self._container = directory, container
        self._before_from = arguments
        self._arguments: dict[str, str] = {}
        self.env, self.workdir, self.user = dict(base.env), base.workdir, base.user

    async def play(self, instruction: DockerInstruction) -> None:
        place = f"{self._directory / 'Dockerfile'}:{instruction.line}"
        variables = {**self._arguments, **self.env}
        text = instruction.text
        if instruction.keyword != "RUN":
            text = expand_variables(text, variables)
        match instruction.keyword:
            case "ARG":
                name, equals, value = text.partition("=")
                self._arguments[name] = value if equals else self._before_from.get(name, "")
            case "ENV":
                try:
                    self.env |= parse_pairs(text)
                except ValueError as error:
                    raise ConfigError(f"{place}: {error}") from error
            case "USER":
                self.user = text
            case "WORKDIR":
                self.workdir = str(PurePosixPath(self.workdir, text))
                await self._run(place, ["mkdir", "-p", "--", self.workdir], cwd="/", user="0")
            case "RUN":
                argv = parse_exec_form(text) or ("/bin/sh", "-c", text)
                await self._run(place, argv, cwd=self.workdir, user=self.user)
            case _:
                await self._copy(place, instruction, text)

    async def _run(self, place: str, argv: Sequence[str], *, cwd: str, user: str) -> None:
        env = {**self._arguments, **self.env}
        output = await self._container.exec(argv, timeout_s=86400, cwd=cwd, env=env, user=user)
        if output.exit_code != 0:
            last = (output.stdout + output.stderr).decode(errors="replace")[-2000:]
            raise SandboxError(f"{place} ended with exit code {output.exit_code}:\n{last}")

    async def _copy(self, place: str, instruction: DockerInstruction, text: str) -> None:
        *names, target = DockerInstruction(
            keyword="COPY", text=text, flags={}, line=instruction.line
        ).words
        sources: list[Path] = []
        for name in names:
            if instruction.keyword == "ADD" and ("://" in name or ".tar" in name):
                raise ConfigError(
                    f"{place}: ADD of {name!r} is not played without an engine; COPY and RUN tar"
                )
            relative = name.lstrip("/") or "."
            found = (
                sorted(self._directory.glob(relative))
                if any(mark in relative for mark in "*?[")
                else [self._directory / relative]
            )
            root = self._directory.resolve()
            if not found or not all(p.exists() and p.resolve().is_relative_to(root) for p in found):
                raise SandboxError(f"{place}: {name!r} is not in {self._directory}")
            sources += found
        path = PurePosixPath(self.workdir, target)
        into = target.endswith("/") or target in (".", "..") or len(sources) > 1
        if not into and not sources[0].is_dir():
            check = await self._container.exec(["test", "-d", str(path)], timeout_s=60, user="0")
            into = check.exit_code == 0
        uid, gid = await self._find_owner(place, instruction.flags.get("chown", ""))
        mode = instruction.flags.get("chmod", "")
        buffer = io.BytesIO()

        def own(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
            if mode and not member.issym():
                member.mode = int(mode, 8)
            return member

        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for source in sources:
                if source.is_dir():
                    for child in sorted(source.iterdir()):
                        archive.add(child, str(path / child.name)[1:], filter=own)
                else:
                    name = path / source.name if into else path
                    archive.add(source.resolve(), str(name)[1:], filter=own)
        place_made = path if into or sources[0].is_dir() else path.parent
        await self._run(place, ["mkdir", "-p", "--", str(place_made)], cwd="/", user="0")
        await self._container.put(buffer.getvalue())

    async def _find_owner(self, place: str, owner: str) -> tuple[int, int]:
        if not owner:
            return 0, 0
        script = 'stat -c "%u %g" "$1"'
        made = "/.agentrl-owner"
        await self._run(place, ["touch", made], cwd="/", user="0")
        await self._run(place, ["chown", owner, made], cwd="/", user="0")
        output = await self._container.exec(
            ["sh", "-c", script, "sh", made], timeout_s=60, user="0"
        )
        await self._run(place, ["rm", made], cwd="/", user="0")
        uid, gid = output.stdout.split()
        return int(uid), int(uid if ":" not in owner else gid)


def find_changes(upper: Path, layers: Sequence[Path]) -> list[FileChange]:
    """Return what an upper layer changes of those below it, the last of which is first."""
    changes: list[FileChange] = []

    def walk(folder: Path, below: Sequence[Path]) -> None:
        with os.scandir(folder) as entries:
            rows = sorted(entries, key=lambda entry: entry.name)
        for entry in rows:
            path = "/" + str(Path(entry.path).relative_to(upper))
            there = [place / entry.name for place in below if os.path.lexists(place / entry.name)]
            status = entry.stat(follow_symlinks=False)
            if _is_whiteout(status):
                if there and not _is_whiteout(os.lstat(there[0])):
                    changes.append(FileChange(path, "deleted"))
                continue
            is_there = bool(there) and not _is_whiteout(os.lstat(there[0]))
            changes.append(FileChange(path, "modified" if is_there else "added"))
            if entry.is_dir(follow_symlinks=False):
                folders = _list_merged(there) if is_there else []
                if _is_opaque(entry.path):
                    names = {name for place in folders for name in os.listdir(place)}
                    gone = sorted(names - set(os.listdir(entry.path)))
                    changes.extend(FileChange(f"{path}/{name}", "deleted") for name in gone)
                walk(Path(entry.path), folders)

    walk(upper, list(layers))
    return changes


def _list_merged(places: Sequence[Path]) -> list[Path]:
    """Return the folders of the layers that are seen together, from the top."""
    merged: list[Path] = []
    for place in places:
        if place.is_symlink() or not place.is_dir():
            break
        merged.append(place)
        if _is_opaque(str(place)):
            break
    return merged


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _make_folder(path: Path, owner: int) -> None:
    path.mkdir(mode=0o755, parents=True)
    path.chmod(0o755)
    os.chown(path, owner, owner)


def _unpack_root(source: str, target: Path, first_id: int) -> None:
    """Unpack a root file system, with its users moved to those of the containers."""
    partial = target.parent / f"agentrl-{new_mark()}"
    with ResourceLease.take("directory", str(partial)) as lease:
        _make_folder(partial, first_id)
        options = ["--numeric-owner", "--exclude=./dev/*", "--exclude=dev/*"]
        pack = ["tar", "-c", "-C", source, *options, "."] if os.path.isdir(source) else None
        unpack = ["tar", "-x", "-p", "-C", str(partial), *options]
        try:
            if pack is None:
                subprocess.run([*unpack, "-f", source], check=True, capture_output=True)
            else:
                with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
                    subprocess.run(unpack, stdin=packing.stdout, check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            lease.clear()
            why = error.stderr.decode(errors="replace")[-500:]
            raise SandboxError(f"the root {source} cannot be unpacked: {why}") from error
        for folder, folders, files in os.walk(partial):
            for name in (*folders, *files):
                path = f"{folder}/{name}"
                status = os.lstat(path)
                if status.st_uid < BLOCK:
                    uid, gid = first_id + status.st_uid, first_id + status.st_gid
                    os.chown(path, uid, gid, follow_symlinks=False)
                    if not os.path.islink(path):
                        os.chmod(path, status.st_mode & 0o1777)
        with suppress(OSError):  # another process was faster
            os.rename(partial, target)
        shutil.rmtree(partial, ignore_errors=True)


def _read_environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _read_output(
    visitor: subprocess.Popen[bytes], deadline_s: float, max_bytes: int
) -> ContainerOutput:
    """Read what a command writes until it ends, however long others hold its output open."""
    assert visitor.stdout is not None
    assert visitor.stderr is not None
    kept = {visitor.stdout: bytearray(), visitor.stderr: bytearray()}
    truncated, code = False, None
    end_fd = os.pidfd_open(visitor.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(end_fd, selectors.EVENT_READ)
            for stream in kept:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            ended = False
            while True:
                left_s = 0.0 if ended else deadline_s - time.monotonic()
                if left_s < 0:
                    break
                ready = [key.fileobj for key, _ in selector.select(left_s)]
                if ended and not ready:
                    break
                for stream in ready:
                    if stream == end_fd:
                        ended = True
                        selector.unregister(end_fd)
                        continue
                    data = stream.read(2**16)  # type: ignore[union-attr]
                    if not data:
                        selector.unregister(stream)
                        continue
                    room = max_bytes - len(kept[stream])  # type: ignore[index]
                    kept[stream] += data[:room]  # type: ignore[index]
                    truncated = truncated or len(data) > room
                if ended and time.monotonic() > deadline_s:
                    break
            if ended:
                code = visitor.wait()
    finally:
        os.close(end_fd)
        if code is None:
            visitor.kill()
            visitor.wait()
        visitor.stdout.close()
        visitor.stderr.close()
    out, err = (bytes(kept[stream]) for stream in (visitor.stdout, visitor.stderr))
    return ContainerOutput(exit_code=code, stdout=out, stderr=err, truncated=truncated)

"""Verification of an episode: after the agent's end, where it can no longer do anything.

the agent's container          halted: no process of the agent lives on
        │                      its changes are compared with the image, by the engine
        ├── shared ──────────► resumed; /tests and /logs/verifier made anew; tests put; run
        └── separate ────────► artefacts read, removed; another container is given them
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from agentrl.errors import SandboxError, VerifierError
from agentrl.sandbox_provider import (
    ContainerSpec,
    FileChange,
    ProviderContainer,
    SandboxProvider,
)
from agentrl_envs.harbor.archives import (
    LOG_FOLDERS,
    CleanArtifact,
    clean_artifact,
    pack_folders,
    pack_tree,
)
from agentrl_envs.harbor.rewards import (
    JSON_FILE,
    REWARD_BYTES,
    TEXT_FILE,
    choose_reward,
    parse_rewards,
)
from agentrl_envs.harbor.tampering import (
    LOADER_CACHE,
    LOADER_FILES,
    find_tampering,
    list_caches,
    list_entry_points,
    list_hidden,
)
from agentrl_envs.harbor.task_config import HealthcheckSection
from agentrl_envs.harbor.task_folder import HarborTask
from agentrl_sandbox.provider.content import read_file

AgentProcesses = Literal["end", "keep"]
ChangedPrograms = Literal["zero", "allow"]
ARTIFACTS = "/logs/artifacts"
OUTPUT_FILE = "/logs/verifier/test-stdout.txt"
_OUTPUT_BYTES = 2**22
_ENTRY_POINTS_BYTES = 2**20
_PLUGINS = b"pytest11"
"""Section of entry points that pytest loads when it starts."""
_SHOWN_CHARACTERS = 2000
_PREPARE_S = 60.0
_CLEAN = (
    'for name in /logs /tests; do if [ -L "$name" ] || { [ -e "$name" ] && [ ! -d "$name" ]; }; '
    'then rm -f -- "$name"; fi; done; rm -rf -- /logs/verifier /tests'
)
_MAKE_PLACE = 'mkdir -p -- "$2" && { [ "$2" = / ] || chmod 777 -- "$2"; }'
_MAKE_FOLDER = 'rm -rf -- "$1" && mkdir -p -- "$2"'
_RUN = f"(/tests/test.sh) >{OUTPUT_FILE} 2>&1"
_REMOVED_AT_A_TIME = 500
_PLACES = (
    "pwd -P; IFS=:; "
    'for folder in $PATH; do (cd -- "$folder" 2>/dev/null && pwd -P) || echo "$folder"; done'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborVerdict:
    """A verifier's verdict, and what it is based on."""

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    exit_code: int | None = None
    seconds: float = 0.0
    tampered: tuple[str, ...] = ()
    """Programs of the image that the agent changed, for which it is paid 0."""
    output: str = ""
    """End of what the verifier printed."""

    @property
    def info(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "rewards": dict(self.rewards),
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "tampered": list(self.tampered),
            "output": self.output,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlaces:
    """Folders of a container's programs."""

    workdir: str = "/"
    """Its directory, in which the agent may replace them."""
    search_path: tuple[str, ...] = ()
    """Folders of its `PATH`, in their order, without links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborVerifier:
    """Everything that verifies the episodes of one task."""

    task: HarborTask
    provider: SandboxProvider
    spec: ContainerSpec
    """Container of a verifier of its own; not used for a shared one."""
    own_tests: bool
    """Whether the image of a verifier of its own holds its tests."""
    env: Mapping[str, str]
    agent_processes: AgentProcesses = "end"
    changed_programs: ChangedPrograms = "zero"
    artifact_bytes: int = 2**28
    reward_key: str = ""
    places: ProgramPlaces = field(default_factory=ProgramPlaces)

    async def verify(self, agent: ProviderContainer) -> HarborVerdict:
        """Return the verdict on what an agent left in its container.

        Raises `VerifierError` where there is none, `SandboxError` for a container that is gone.
        """
        began_s = time.monotonic()
        await self._collect(agent)
        if self.task.config.verifier.separate:
            return await self._verify_apart(agent, began_s)
        if self.agent_processes == "end":
            await agent.halt()
        unsafe: Sequence[str] = ()
        if self.changed_programs == "zero":
            changes = await agent.changes() or ()
            tampered = find_tampering(
                changes,
                hiding=await _find_hiding(agent, changes, self.places.search_path),
                watched=agent.started_by,
                search_path=self.places.search_path,
                workdir=self.places.workdir,
            )
            if tampered:
                seconds = time.monotonic() - began_s
                return HarborVerdict(reward=0.0, tampered=tampered, seconds=seconds)
            plugins = await _find_plugins(agent, changes, self.places)
            unsafe = [*list_caches(changes), *plugins]
        if self.agent_processes == "end":
            await agent.resume()
        for at in range(0, len(unsafe), _REMOVED_AT_A_TIME):
            removed = unsafe[at : at + _REMOVED_AT_A_TIME]
            await self._make_ready(agent, ["rm", "-rf", "--", *removed])
        return await self._run_tests(agent, began_s, put_tests=True)

    async def _collect(self, agent: ProviderContainer) -> None:
        """Run the hooks that write artefacts, beside what the agent left running, as Harbor does.

        One that fails or is late changes nothing.
        """
        for hook in self.task.config.verifier.collect:
            user = "" if hook.user is None else str(hook.user)
            await agent.exec(["bash", "-c", hook.command], timeout_s=hook.timeout_sec, user=user)

    async def _verify_apart(self, agent: ProviderContainer, began_s: float) -> HarborVerdict:
        await agent.halt()
        artifacts: dict[str, CleanArtifact] = {}
        for source in dict.fromkeys((ARTIFACTS, *(a.source for a in self.task.config.artifacts))):
            try:
                archive = await agent.get(source, max_bytes=self.artifact_bytes)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise VerifierError(f"artefact {source} of {self.task.name!r}: {error}") from error
            if (artifact := clean_artifact(archive, source)) is not None:
                artifacts[source] = artifact
        await agent.stop()
        container = await self.provider.start(self.spec)
        try:
            await container.put(pack_folders(LOG_FOLDERS))
            if not self.own_tests:
                await put_loose_files(container, self.task)
            for source, artifact in artifacts.items():
                await _put_artifact(container, source, artifact)
            return await self._run_tests(container, began_s, put_tests=not self.own_tests)
        finally:
            await container.stop()

    async def _make_ready(self, container: ProviderContainer, argv: Sequence[str]) -> None:
        output = await container.exec(argv, timeout_s=_PREPARE_S, user="0")
        if output.exit_code != 0:
            raise VerifierError(
                f"the container of {self.task.name!r} could not be made ready: "
                f"{output.stderr.decode(errors='replace')[:500]}"
            )

    async def _run_tests(
        self, container: ProviderContainer, began_s: float, *, put_tests: bool
    ) -> HarborVerdict:
        verifier = self.task.config.verifier
        clean = _CLEAN if put_tests else "rm -rf -- /logs/verifier"
        await self._make_ready(container, ["bash", "-c", clean])
        await container.put(pack_folders(LOG_FOLDERS))
        if put_tests:
            await container.put(pack_tree(self.task.tests, "tests"))
        environment = verifier.environment if verifier.separate else None
        workdir = (environment or self.task.config.environment).workdir or ""
        ended = await container.exec(
            ["bash", "-c", _RUN],
            timeout_s=verifier.timeout_sec,
            cwd=workdir,
            env=self.env,
            user="" if verifier.user is None else str(verifier.user),
        )
        output = await _read(container, OUTPUT_FILE, _OUTPUT_BYTES) or b""
        excerpt = output.decode(errors="replace")[-_SHOWN_CHARACTERS:]
        if ended.timed_out:
            raise VerifierError(
                f"tests/test.sh of {self.task.name!r} took longer than verifier.timeout_sec, "
                f"{verifier.timeout_sec:g} s; it printed: {excerpt}"
            )
        try:
            rewards = parse_rewards(
                await _read_reward(container, JSON_FILE), await _read_reward(container, TEXT_FILE)
            )
            reward = choose_reward(rewards, self.reward_key)
        except VerifierError as error:
            raise VerifierError(
                f"{self.task.name!r}: {error} (exit code {ended.exit_code}; it printed: {excerpt})"
            ) from error
        return HarborVerdict(
            reward=reward,
            rewards=rewards,
            exit_code=ended.exit_code,
            seconds=time.monotonic() - began_s,
            output=excerpt,
        )


async def _put_artifact(container: ProviderContainer, source: str, artifact: CleanArtifact) -> None:
    """Put an artefact at its own path; a folder takes the place of the image's."""
    path = PurePosixPath(source)
    script = _MAKE_FOLDER if artifact.is_folder else _MAKE_PLACE
    argv = ["bash", "-c", script, "bash", str(path), str(path.parent)]
    output = await container.exec(argv, timeout_s=_PREPARE_S, user="0")
    if output.exit_code != 0:
        errors = output.stderr.decode(errors="replace")[:500]
        raise VerifierError(
            f"artefact {source} cannot be put into the verifier's container: {errors}"
        )
    await container.put(artifact.archive, str(path.parent))


async def put_loose_files(container: ProviderContainer, task: HarborTask) -> None:
    """Put `environment/` into the directory of a container whose image was not built of it."""
    folder, section = task.environment, task.config.environment
    if not (section.docker_image and folder.is_dir()) or (folder / "Dockerfile").exists():
        return
    workdir = section.workdir
    if not workdir:
        output = await container.exec(["bash", "-c", "pwd"], timeout_s=_PREPARE_S)
        workdir = output.stdout.decode(errors="replace").strip() or "/"
    await container.put(pack_tree(folder, "."), workdir)


async def wait_healthy(container: ProviderContainer, check: HealthcheckSection, file: str) -> None:
    """Wait until a command succeeds, run by the image's user, as Docker's HEALTHCHECK.

    What fails in the start period does not count; `retries` failures later are a `SandboxError`.
    """
    began_s = time.monotonic()
    failures = 0
    while True:
        starting = time.monotonic() - began_s < check.start_period_sec
        output = await container.exec(["bash", "-c", check.command], timeout_s=check.timeout_sec)
        if output.exit_code == 0:
            return
        failures += not starting
        if failures >= check.retries:
            ended = (
                f"took longer than {check.timeout_sec:g} s"
                if output.timed_out
                else f"ended with exit code {output.exit_code}"
            )
            printed = (output.stderr or output.stdout).decode(errors="replace")[:500]
            raise SandboxError(
                f"{file}: environment.healthcheck {check.command!r} failed {failures} times, and "
                f"{ended} at last: {printed}"
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def read_places(container: ProviderContainer, workdir: str) -> ProgramPlaces:
    """Return the folders of a container's programs, before an agent can change them."""
    argv = ["bash", "-c", _PLACES]
    output = await container.exec(argv, timeout_s=_PREPARE_S, cwd=workdir, user="0")
    directory, *folders = output.stdout.decode(errors="replace").splitlines() or ["/"]
    search_path = dict.fromkeys(f for f in folders if f.startswith("/") and f != "/")
    return ProgramPlaces(workdir=directory, search_path=tuple(search_path))


async def _find_hiding(
    container: ProviderContainer, changes: Sequence[FileChange], search_path: Sequence[str]
) -> frozenset[str]:
    """Return the new paths that hide something that the image has; the engine looks."""
    added = {change.path for change in changes if change.kind == "added"}
    is_cached = any(change.path in LOADER_FILES for change in changes)
    has_cache = not is_cached and await _has_path(container, LOADER_CACHE)
    there: dict[str, bool] = {}
    hiding: list[str] = []
    for path in added:
        for hidden in list_hidden(path, search_path, is_cached=is_cached, has_cache=has_cache):
            # Nothing of the image's is in a folder that is new.
            if hidden in added or str(PurePosixPath(hidden).parent) in added:
                continue
            if hidden not in there:
                there[hidden] = await _has_path(container, hidden)
            if there[hidden]:
                hiding.append(path)
                break
    return frozenset(hiding)


async def _find_plugins(
    container: ProviderContainer, changes: Sequence[FileChange], places: ProgramPlaces
) -> list[str]:
    """Return the new files that name plugins of pytest, or that cannot be read."""
    plugins: list[str] = []
    for path in list_entry_points(changes, places.search_path, places.workdir):
        content = await _read(container, path, _ENTRY_POINTS_BYTES)
        if content is None or _PLUGINS in content:
            plugins.append(path)
    return plugins


async def _has_path(container: ProviderContainer, path: str) -> bool:
    try:
        await container.get(path, max_bytes=2**12)
    except FileNotFoundError:
        return False
    except OSError:  # it is larger
        return True
    return True


async def _read_reward(container: ProviderContainer, path: str) -> bytes | None:
    try:
        archive = await container.get(path, max_bytes=REWARD_BYTES + 2**14)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VerifierError(str(error)) from error
    if (content := read_file(archive)) is None:
        raise VerifierError(f"{path} is no file; write a file")
    return content


async def _read(container: ProviderContainer, path: str, max_bytes: int) -> bytes | None:
    try:
        return read_file(await container.get(path, max_bytes=max_bytes))
    except OSError:
        return None

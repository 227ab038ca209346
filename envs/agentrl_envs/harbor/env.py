"""Harbor's task folders as an environment: a container, a shell in it, a verifier afterwards."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from agentrl.authoring.task_choice import choose_task
from agentrl.authoring.tool_env import check_reward, refuse_malformed
from agentrl.authoring.tool_schema import signature_of
from agentrl.env import Action, BaseEnv, Info, Observation, RescoreBy, Step
from agentrl.errors import ConfigError, SandboxError, ToolError, VerifierError, blame
from agentrl.message import Message, ToolCall
from agentrl.runtime.imports import import_callable
from agentrl.runtime.scope import shared
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import run_in_thread
from agentrl.sandbox_provider import ContainerSpec, ProviderContainer, SandboxProvider
from agentrl.task import Split, Task, split_of
from agentrl.tool import ToolContext, ToolResult
from agentrl_envs.harbor.archives import LOG_FOLDERS, pack_folders
from agentrl_envs.harbor.engine import check_engine
from agentrl_envs.harbor.oracle import FOLDER, play_oracle
from agentrl_envs.harbor.settings import Network, decide_limits, decide_networks, read_passed
from agentrl_envs.harbor.task_config import EnvironmentSection
from agentrl_envs.harbor.task_folder import HarborTask, find_tasks, resolve_env
from agentrl_envs.harbor.tools import ContainerTools
from agentrl_envs.harbor.verification import (
    AgentProcesses,
    ChangedPrograms,
    HarborVerifier,
    ProgramPlaces,
    put_loose_files,
    read_places,
    wait_healthy,
)

SYSTEM = (
    "You work in a Linux container. Do what you are asked for with the tools. When it is done, say "
    "so without calling a tool: that ends the task, and what you left is then checked."
)
_PROVIDERS = ("docker", "namespaces")
_ANSWER_DIGITS = 12
_NOT_RUNNING = "no episode is running; await env.reset() first"
Splits = Literal["hash", "all"]


@dataclass(slots=True, kw_only=True)
class _Episode:
    """Everything that is one episode's."""

    task: Task
    harbor_task: HarborTask
    container: ProviderContainer
    tools: ContainerTools
    verifier: HarborVerifier
    context: ToolContext
    turns: int = 0


class HarborEnv(BaseEnv):
    """Plays the tasks of a folder, each in a container of its own image.

    The opening message is `instruction.md`. The episode ends with a message that calls no tool,
    and, truncated, when the task's time is up or after `max_turns` messages. Then the agent's
    processes are ended, `tests/` is put into the container, and the verifier's reward file is read.
    A verifier that writes none raises `VerifierError`: the episode failed, and is never paid 0 for
    it. An agent that changed programs of the image by which it would be judged is paid 0.
    """

    rescore_by: RescoreBy = "never"
    """Never: the files left in a container are not on record."""
    needs = ("agentrl_envs.needs:missing_harbor",)

    def __init__(
        self,
        path: str,
        *,
        tasks: Sequence[str] = (),
        network: Network = "none",
        build_network: str = "none",
        pass_env: Sequence[str] = (),
        provider: str | SandboxProvider = "docker",
        provider_kwargs: Mapping[str, Any] | None = None,
        reward_key: str = "",
        agent_processes: AgentProcesses = "end",
        changed_programs: ChangedPrograms = "zero",
        splits: Splits = "hash",
        heldout: Sequence[str] = (),
        heldout_fraction: float = 0.1,
        max_turns: int | None = 50,
        command_timeout_s: float = 45.0,
        output_characters: int = 10_000,
        system: str = SYSTEM,
        cpus: float = 1.0,
        memory_mb: int = 2048,
        max_cpus: float | None = None,
        max_memory_mb: int | None = None,
        processes: int = 1024,
    ) -> None:
        """Read the task folders; nothing is started.

        Args:
            path: A task's folder, or one with tasks below it.
            tasks: Names of the tasks to play; all of them when left out.
            network: `none`, whatever a task says; or `task`, as it says.
            build_network: Network of the steps of a Dockerfile, in the provider's words.
            pass_env: Names of our variables that tasks may ask for with `${NAME}`.
            provider: `docker`; `namespaces`, which needs no engine; `module:name` of what makes a
                `SandboxProvider`; or one.
            provider_kwargs: Arguments of what makes the provider.
            reward_key: Key of the verifier's rewards that trains; `reward`, or else the only one.
            agent_processes: `end` them before the verifier runs, or `keep` them, for a task whose
                verifier asks a server that the agent started: what is kept can change the verdict.
            changed_programs: `zero` pays 0 where the agent changed programs of the image; `allow`
                verifies all the same, for tasks that are about those.
            splits: `hash` decides a task's split by its content; `all` gives every task to both.
            heldout: Names of the held-out tasks, in place of the hash.
            heldout_fraction: Share of all tasks that the hash holds out.
            max_turns: Messages of the agent before the episode is truncated; None sets no end.
            command_timeout_s: Longest time of one command, below `rollout.step_s`.
            output_characters: Length of a tool's answer.
            system: The system message; empty for none.
            cpus: Cores of a container whose task says none.
            memory_mb: Memory of a container whose task says none.
            max_cpus: Most cores of a container, whatever its task says.
            max_memory_mb: Most memory of a container, whatever its task says.
            processes: Processes of a container.
        """
        _check_choice("network", network, get_args(Network))
        _check_choice("agent_processes", agent_processes, get_args(AgentProcesses))
        _check_choice("changed_programs", changed_programs, get_args(ChangedPrograms))
        _check_choice("splits", splits, get_args(Splits))
        if isinstance(provider, str) and provider not in _PROVIDERS and ":" not in provider:
            raise ConfigError(
                f"provider must be {', '.join(_PROVIDERS)} or module:name of one of your own, got "
                f"{provider!r}; tasks are played in containers"
            )
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}; None sets no end")
        if not command_timeout_s > 0:
            raise ConfigError(f"command_timeout_s must be above 0, got {command_timeout_s}")
        if not 0 <= heldout_fraction <= 1:
            raise ConfigError(f"heldout_fraction must be from 0 to 1, got {heldout_fraction}")
        all_tasks = {task.name: task for task in find_tasks(path)}
        for key, names in (("tasks", tasks), ("heldout", heldout)):
            if isinstance(names, str):
                raise ConfigError(f"{key} must be a list of names, got {names!r}")
            if unknown := sorted({*names} - all_tasks.keys()):
                raise ConfigError(
                    f"{key} names {unknown}, but the tasks of {path} are {', '.join(all_tasks)}"
                )
        self.harbor_tasks = {name: all_tasks[name] for name in (tasks or all_tasks)}
        self._passed = read_passed(pass_env)
        self._network: Network = network
        self._build_network = build_network
        self._provider_name = provider
        self._provider_kwargs = dict(provider_kwargs or {})
        self._reward_key = reward_key
        self._agent_processes: AgentProcesses = agent_processes
        self._changed_programs: ChangedPrograms = changed_programs
        self._splits = splits
        self._heldout = frozenset(heldout)
        self._heldout_fraction = heldout_fraction
        self._max_turns = max_turns
        self._command_timeout_s = command_timeout_s
        self._output_characters = output_characters
        self._system = system
        self._limits: dict[str, Any] = {
            "cpus": cpus,
            "memory_mb": memory_mb,
            "max_cpus": max_cpus,
            "max_memory_mb": max_memory_mb,
            "processes": processes,
        }
        for task in self.harbor_tasks.values():
            decide_networks(task, network)
            self._resolve_envs(task)
        functions = (ContainerTools.bash, ContainerTools.read_file, ContainerTools.write_file)
        signatures = [signature_of(function) for function in functions]
        self._signatures = {signature.name: signature for signature in signatures}
        self._own_provider: SandboxProvider | None = None
        self._episode: _Episode | None = None
        self._resets = 0
        self._places: dict[str, ProgramPlaces] = {}

    # -- tasks ------------------------------------------------------------------------------------

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of a split once, in an order of the seed."""
        names = [name for name in self.harbor_tasks if self._is_in(name, split)]
        random.Random(derive("harbor", split, seed)).shuffle(names)
        for name in names:
            yield self._build_task(self.harbor_tasks[name], split)

    def _is_in(self, name: str, split: Split) -> bool:
        if self._splits == "all":
            return True
        if self._heldout:
            return (name in self._heldout) == (split == "heldout")
        digest = self.harbor_tasks[name].digest
        return split_of(digest, heldout_fraction=self._heldout_fraction) == split

    def _build_task(self, task: HarborTask, split: Split) -> Task:
        data = {"name": task.name, "digest": task.digest}
        # Tasks with one instruction and different files are different problems.
        answer = task.digest[:_ANSWER_DIGITS]
        return Task(prompt=task.instruction, answer=answer, id=task.name, split=split, data=data)

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of the oracle, which runs `solution/solve.sh`."""
        harbor_task = self._find_task(task)
        return play_oracle(harbor_task, seen, timeout_s=self._command_timeout_s)

    def _find_task(self, task: Task) -> HarborTask:
        name = str(task.data.get("name", ""))
        if (harbor_task := self.harbor_tasks.get(name)) is None:
            raise ConfigError(
                f"task {task.id!r} is none of these: {', '.join(self.harbor_tasks)}; its path has "
                "other tasks now"
            )
        if task.data.get("digest") != harbor_task.digest:
            raise ConfigError(
                f"{harbor_task.folder} is not what it was when task {task.id!r} was made"
            )
        return harbor_task

    # -- an episode -------------------------------------------------------------------------------

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a container of the task's image, building the image where it is not there yet."""
        await self._end()
        self._resets += 1
        options = options or {}
        seed = self._resets if seed is None else seed
        task = choose_task(self, seed=seed, options=options)
        harbor_task = self._find_task(task)
        sample = int(options.get("sample", 0))
        context = ToolContext(
            task_id=task.id,
            sample=sample,
            seed=derive("tools", seed, task.id, sample),
            data=task.data,
        )
        provider = await self._get_provider()
        container_env, verifier_env = self._resolve_envs(harbor_task)
        networks = decide_networks(harbor_task, self._network)
        section = harbor_task.config.environment
        spec = ContainerSpec(
            image=await self._get_image(provider, harbor_task),
            env=container_env,
            network=networks[0],
            limits=decide_limits(section, **self._limits),
        )
        verifier = await self._build_verifier(provider, harbor_task, spec, verifier_env)
        container = await provider.start(spec)
        try:
            tools = await self._prepare(container, harbor_task)
            places = await self._find_places(container, harbor_task)
        except BaseException:
            await container.stop()
            raise
        self._episode = _Episode(
            task=task,
            harbor_task=harbor_task,
            container=container,
            tools=tools,
            verifier=replace(verifier, places=places),
            context=context,
        )
        system = (Message("system", self._system),) if self._system else ()
        schemas = tuple(signature.schema for signature in self._signatures.values())
        return Observation((*system, *task.messages), tools=schemas), {}

    async def step(self, action: Action) -> Step:
        """Do what a message calls for, or verify what was left."""
        episode = self._episode
        if episode is None:
            raise RuntimeError(_NOT_RUNNING)
        episode.turns += 1
        if not (action.tool_calls or action.malformed):
            reward, info = await self._verify(episode)
            return Observation(()), reward, True, False, info
        results = refuse_malformed(action)
        for call in action.tool_calls:
            results.append(await self._act(episode, call))
        info: Info = {"tool_results": tuple(results)}
        answers = Observation(tuple(result.message for result in results))
        if episode.turns != self._max_turns and episode.tools.left_s > 0:
            return answers, 0.0, False, False, info
        reward, verdict = await self._verify(episode)
        return answers, reward, False, True, {**info, **verdict}

    async def close(self) -> None:
        """Remove the container, and the provider if it is the environment's own."""
        try:
            await self._end()
        finally:
            provider, self._own_provider = self._own_provider, None
            if provider is not None:
                await provider.close()

    async def _act(self, episode: _Episode, call: ToolCall) -> ToolResult:
        began_s = time.monotonic()
        status = "ok"
        try:
            if episode.tools.left_s <= 0:
                raise ToolError("The time of the task is up; this was not done.")
            if (signature := self._signatures.get(call.name)) is None:
                listed = ", ".join(self._signatures)
                raise ToolError(f"There is no tool {call.name!r}. The tools are: {listed}.")
            bound = signature.bind(call.arguments, episode.context)
            with blame(SandboxError, f"{call.name} in the container of task {episode.task.id!r}"):
                try:
                    content = await getattr(episode.tools, call.name)(**bound)
                except ToolError as refusal:
                    content, status = str(refusal), "error"
        except ToolError as refusal:
            content, status = str(refusal), "error"
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=content,
            status=cast("Any", status),
            seconds=time.monotonic() - began_s,
        )

    async def _verify(self, episode: _Episode) -> tuple[float, Info]:
        self._episode = None
        try:
            with blame(VerifierError, f"the verifier of task {episode.task.id!r}"):
                verdict = await episode.verifier.verify(episode.container)
        finally:
            await episode.container.stop()
        return check_reward(episode.task, verdict.reward), {"harbor": verdict.info}

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.container.stop()

    # -- what an episode is made of ---------------------------------------------------------------

    async def _get_provider(self) -> SandboxProvider:
        if not isinstance(self._provider_name, str):
            return self._provider_name
        if self._own_provider is not None:
            return self._own_provider
        key = ("harbor", self._provider_name, repr(sorted(self._provider_kwargs.items())))
        provider = await shared(key, self._open_provider)
        if provider is None:
            provider = self._own_provider = await self._open_provider()
        return provider

    async def _open_provider(self) -> SandboxProvider:
        tasks = tuple(self.harbor_tasks.values())
        if self._provider_name == "docker":
            from agentrl_sandbox.provider import DockerProvider

            await run_in_thread(check_engine, tasks)
            return DockerProvider(**self._provider_kwargs)
        if self._provider_name == "namespaces":
            from agentrl_envs.harbor.namespaces import open_namespaces

            return await run_in_thread(
                open_namespaces,
                tasks,
                self._provider_kwargs,
                network=self._network,
                build_network=self._build_network,
            )
        return import_callable(str(self._provider_name))(**self._provider_kwargs)

    async def _get_image(self, provider: SandboxProvider, task: HarborTask) -> str:
        section = task.config.environment
        if section.docker_image:
            return await _require_image(provider, task, "environment", section.docker_image)
        folder = str(task.environment)
        build_s = section.build_timeout_sec
        return await provider.build(folder, timeout_s=build_s, network=self._build_network)

    async def _build_verifier(
        self,
        provider: SandboxProvider,
        task: HarborTask,
        agent: ContainerSpec,
        env: Mapping[str, str],
    ) -> HarborVerifier:
        name, folder = task.verifier_image
        section = task.config.verifier.environment or task.config.environment
        image, own_tests = agent.image, False
        if task.config.verifier.separate and (name or folder):
            own_tests = True
            if folder is None:
                image = await _require_image(provider, task, "verifier.environment", name)
            else:
                image = await provider.build(
                    str(folder), timeout_s=section.build_timeout_sec, network=self._build_network
                )
        spec = ContainerSpec(
            image=image,
            env=self._resolve(task, section, "verifier.environment.env"),
            network=decide_networks(task, self._network)[1],
            limits=decide_limits(section, **self._limits),
        )
        return HarborVerifier(
            task=task,
            provider=provider,
            spec=spec,
            own_tests=own_tests,
            env=env,
            agent_processes=self._agent_processes,
            changed_programs=self._changed_programs,
            reward_key=self._reward_key,
        )

    async def _prepare(self, container: ProviderContainer, task: HarborTask) -> ContainerTools:
        section, agent = task.config.environment, task.config.agent
        user = "" if agent.user is None else str(agent.user)
        folders = (*LOG_FOLDERS, FOLDER[1:]) if user and task.has_solution else LOG_FOLDERS
        await container.put(pack_folders(folders))
        await put_loose_files(container, task)
        if section.healthcheck is not None:
            await wait_healthy(container, section.healthcheck, task.file)
        limit_s = agent.timeout_sec
        return ContainerTools(
            container=container,
            user=user,
            workdir=section.workdir or "",
            deadline_s=None if limit_s is None else time.monotonic() + limit_s,
            command_s=self._command_timeout_s,
            characters=self._output_characters,
        )

    async def _find_places(self, container: ProviderContainer, task: HarborTask) -> ProgramPlaces:
        """Return the folders of the programs of a task's image, read once."""
        if self._changed_programs == "allow" or task.config.verifier.separate:
            return ProgramPlaces()
        if (places := self._places.get(task.name)) is None:
            workdir = task.config.environment.workdir or ""
            places = self._places[task.name] = await read_places(container, workdir)
        return places

    def _resolve_envs(self, task: HarborTask) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables of a task's container, and of its verifier's program."""
        verifier = resolve_env(task.config.verifier.env, self._passed, f"{task.file}: verifier.env")
        return self._resolve(task, task.config.environment, "environment.env"), verifier

    def _resolve(self, task: HarborTask, section: EnvironmentSection, key: str) -> dict[str, str]:
        return resolve_env(section.env, self._passed, f"{task.file}: {key}")


async def _require_image(
    provider: SandboxProvider, task: HarborTask, section: str, image: str
) -> str:
    if not await provider.find_image(image):
        raise ConfigError(
            f"{task.file}: {section}.docker_image is {image!r}, which the provider does not have; "
            f"get it first (`docker pull {image}`)"
        )
    return image


def _check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {value!r}")

"""Environments of Gymnasium: in this process, or in processes of an interpreter that has them."""

import base64
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import agentrl.gym
from agentrl.env import Action, Env, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, ForkUnsupported, WordingError
from agentrl.gym.text_env import (
    GymnasiumTextEnv,
    build_opening,
    build_step,
    list_texts,
    refuse_action,
)
from agentrl.gym.wording.episode import GivenWords
from agentrl.message import Image
from agentrl.runtime.json_limits import JsonLimits
from agentrl.task import Split, Task
from agentrl_envs.adapters.foreign_env import ForeignEnv
from agentrl_envs.adapters.host import LibraryLocation, ask_library

AGENTRL = str(Path(agentrl.gym.__file__).parents[1])
"""Folder of the package, of which a host imports the words for environments."""
CLOSE_S = 5.0
"""Deadline of an environment's own close; then its process is ended. An episode whose close takes
10 s fails, and this one is to keep its reward."""


def open_gymnasium(id: str, *, python: str | None = None, **settings: Any) -> Env:
    """Return an environment of Gymnasium's, told in words.

    Args:
        id: Gymnasium's id, `module:Name-v0` or `module:Class`.
        python: Interpreter that has the environment; None plays it in this process.
        settings: Those of `GymnasiumTextEnv`, or with `python` of `HostedGymnasiumEnv`.
    """
    if python is None:
        return GymnasiumTextEnv(id, **settings)
    return HostedGymnasiumEnv(id, python=python, **settings)


class HostedGymnasiumEnv(ForeignEnv):
    """One Gymnasium environment whose episodes are processes of another interpreter.

    It lives on the main thread of its process, which a missed deadline ends. Words, rewards and
    ends are those of `GymnasiumTextEnv`. A fork copies the process, where the environment has no
    thread, file, socket or process of its own.
    """

    fork_strategy: ForkStrategy = "native"

    def __init__(
        self,
        id: str,
        *,
        python: str,
        instructions: str = "",
        actions: Sequence[str] = (),
        describe: str | None = None,
        act: str | None = None,
        imports: Sequence[str] = (),
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        **kwargs: Any,
    ) -> None:
        """`id`, `instructions`, `actions`, `describe`, `act` and `kwargs` as in `GymnasiumTextEnv`.

        Args:
            id: Id of the environment.
            python: Interpreter that has it, with Gymnasium.
            instructions: The rules.
            actions: Names of the actions.
            describe: `module:function` that `python` finds.
            act: `module:function` that `python` finds.
            imports: Modules that register environments, imported once.
            path: Folders with modules of your own.
            pass_env: Names of our variables that it gets; it sees no others.
            timeout_s: Deadline of every call.
            start_timeout_s: Deadline of the imports.
            kwargs: Arguments of the environment, as JSON has them.
        """
        _check_words(id, instructions, actions, describe=describe, act=act)
        settings: dict[str, Any] = {
            "agentrl": AGENTRL,
            "id": id,
            "instructions": instructions,
            "actions": list(actions),
            "describe": describe,
            "act": act,
            "kwargs": kwargs,
        }
        references = [reference for reference in (id, describe, act) if reference]
        modules = [name.rpartition(":")[0] for name in references]
        super().__init__(
            "gymnasium",
            id,
            settings,
            python,
            path,
            pass_env,
            timeout_s,
            start_timeout_s,
            imports=[*imports, *filter(None, modules)],
        )

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless seeds as tasks; a seed's own number decides its split.

        Raises `ConfigError` for what `python` cannot make, or no words express.
        """
        request = json.dumps(self._settings, sort_keys=True)
        self._prompt = _read_prompt(self._place, request)
        return super().tasks(split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        task = await self._choose_task(seed, options)
        await self._episode.open(self._settings)
        answer = await self._ask("reset", {"seed": task.seed})
        self._task = task
        return build_opening(task, _decode_parts(answer["parts"])), answer["info"]

    async def step(self, action: Action) -> Step:
        task = self._require_task()
        if action.tool_calls or action.malformed:
            params = {"why": "There are no tools here."}
            return refuse_action(action, await self._episode.ask("refuse", params))
        text, candidates = list_texts(action)
        answer = await self._ask("step", {"text": text, "candidates": candidates})
        if "refusal" in answer:
            return refuse_action(action, answer["refusal"])
        terminated, truncated = bool(answer["terminated"]), bool(answer["truncated"])
        if terminated or truncated:
            self._task = None
        content = _decode_parts(answer["parts"])
        reward = float(answer["reward"])
        return build_step(task, content, reward, terminated, truncated, answer["info"])

    async def fork(self) -> Self:
        if fault := await self._episode.ask("find_copy_fault", {}):
            raise ForkUnsupported(f"gymnasium:{self._name} cannot be copied by forking: {fault}")
        other = copy.copy(self)
        other._episode = await self._episode.fork()
        return other

    async def _end_episode(self) -> None:
        """Close the environment, which may hold programs of its own, then end its process."""
        try:
            await self._episode.finish("close", timeout_s=min(CLOSE_S, self._episode.timeout_s))
        finally:
            await super()._end_episode()

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._episode.ask(method, params)
        if "fault" in answer:
            raise WordingError(answer["fault"])
        return answer


def _check_words(id: str, instructions: str, actions: Sequence[str], **functions: Any) -> None:
    """Raise `ConfigError` for settings that are none; the functions are in another interpreter."""
    try:
        GivenWords(instructions=instructions, actions=actions).check()
        for name, function in functions.items():
            if function is not None and not isinstance(function, str):
                raise ValueError(f"{name} is {function!r:.80}; give module:function")
    except ValueError as error:
        raise ConfigError(f"gymnasium:{id}: {error}") from error


@cache
def _read_prompt(place: LibraryLocation, request: str) -> str:
    """Return the prompt of the tasks, asked of a host that ends with its answer."""
    params = json.loads(request)
    what = f"the environment gymnasium:{params['id']}"
    return str(ask_library(place, params, JsonLimits(), what=what)["prompt"])


def _decode_parts(parts: Sequence[Any]) -> list[str | Image]:
    return [
        part
        if isinstance(part, str)
        else Image(base64.b64decode(part["image"]), part["media_type"])
        for part in parts
    ]

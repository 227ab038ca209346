"""GEM's environments (https://github.com/axon-rl/gem): text in, text out, Gymnasium's five."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.message import Message
from agentrl_envs.adapters.foreign_env import ForeignEnv, refuse_calls


class GemEnv(ForeignEnv):
    """One of GEM's environments; a task is a seed of its `reset`.

    The whole message is the action. Rewards and ends are GEM's own, and so are its tools, which are
    written in the text. A fork copies the episode's process, random numbers included.
    """

    fork_strategy: ForkStrategy = "native"

    def __init__(
        self,
        env_id: str,
        *,
        python: str,
        kwargs: Mapping[str, Any] | None = None,
        imports: Sequence[str] = (),
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        """`python` is the interpreter that has GEM, `env_id` and `kwargs` are for `gem.make`.

        `imports` are modules that register environments, found in the folders of `path`. A request
        that takes more than `timeout_s` ends the episode as a failure.
        """
        settings = {"id": env_id, "kwargs": dict(kwargs or {}), "imports": list(imports)}
        super().__init__(
            "gem", env_id, settings, python, path, pass_env, timeout_s, start_timeout_s
        )

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        task = await self._choose_task(seed, options)
        await self._episode.open(self._settings)
        answer = await self._episode.ask("reset", {"seed": task.seed})
        self._task = task
        return Observation((Message("user", answer["text"]),), tools=()), {}

    async def step(self, action: Action) -> Step:
        self._require_task()
        if action.tool_calls or action.malformed:
            return refuse_calls(action, "There are no tools here; answer in words.")
        return self._parse_step(await self._episode.ask("step", {"text": action.text}))

    async def fork(self) -> Self:
        other = copy.copy(self)
        other._episode = await self._episode.fork()
        return other

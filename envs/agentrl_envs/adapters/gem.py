"""GEM's environments (https://github.com/axon-rl/gem): text in, text out, Gymnasium's five."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from agentrl.authoring.seed_tasks import seed_tasks
from agentrl.authoring.task_choice import choose_task
from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.adapters.foreign_env import ForeignEpisode, parse_step, refuse_calls
from agentrl_envs.adapters.host import place_of


class GemEnv:
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
        self._env_id = env_id
        self._settings = {"id": env_id, "kwargs": dict(kwargs or {}), "imports": list(imports)}
        place = place_of("gem", python, path, pass_env, start_timeout_s)
        self._episode = ForeignEpisode(place, timeout_s=timeout_s)
        self._task: Task | None = None
        self._resets = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless seeds as tasks; a seed's own number decides its split."""
        return seed_tasks("gem", self._env_id, split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin the episode of a task: what GEM shows is the first user message."""
        await self.close()
        self._resets += 1
        task = choose_task(self, seed=self._resets if seed is None else seed, options=options or {})
        await self._episode.open(self._settings)
        answer = await self._episode.ask("reset", {"seed": task.seed})
        self._task = task
        return Observation((Message("user", answer["text"]),), tools=()), {}

    async def step(self, action: Action) -> Step:
        """Do one action."""
        if self._task is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if action.tool_calls or action.malformed:
            return refuse_calls(action, "There are no tools here; answer in words.")
        step = parse_step(self._task, await self._episode.ask("step", {"text": action.text}))
        if step[2] or step[3]:
            self._task = None
        return step

    async def fork(self) -> Self:
        """Return a copy whose world is a copy of the episode's process."""
        other = copy.copy(self)
        other._episode = await self._episode.fork()
        return other

    async def close(self) -> None:
        """End the episode."""
        self._task = None
        await self._episode.close()

"""A world that is not run while it is told what it has been told before.

For environments that are functions of their seed and their actions, and only for them: as long as
the same actions come, recorded answers are given. At the first other action the world is brought to
that point, every answer compared, and goes on by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from agentrl.env import Action, Env, ForkStrategy, Info, Observation, Step
from agentrl.errors import EnvError, ForkUnsupported
from agentrl.events.history import ActionHistory
from agentrl.rollout.env_replay import ReplayMismatch, replay
from agentrl.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedEpisode:
    """Exchanges of an environment, from its reset on."""

    seed: int
    opening: Observation
    steps: tuple[tuple[Action, Step], ...] = ()


class ReplayingEnv:
    """An environment in front of another one, which it wakes when it must."""

    def __init__(
        self,
        inner: Env,
        remembered: RememberedEpisode | None,
        *,
        reset_s: float,
        step_s: float,
        on_mismatch: Callable[[], None],
    ) -> None:
        """Take the world, and what it said the last time; `on_mismatch` hears if that is untrue.

        A world that declares `fork_strategy = "none"` makes no such promise, and always runs.
        """
        self.inner = inner
        self.fork_strategy: ForkStrategy = inner.fork_strategy
        self.seen: RememberedEpisode | None = None
        """What was told and said this time."""
        self._known = None if inner.fork_strategy == "none" else remembered
        self._history: ActionHistory | None = None
        self._runs = False
        self._reset_s, self._step_s = reset_s, step_s
        self._on_mismatch = on_mismatch

    def tasks(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.tasks(*args, **kwargs)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode; of one that is known nothing is run yet."""
        episode, reset_options = self._known, options or {}
        task = reset_options.get("task")
        if episode is None or episode.seed != seed or not isinstance(task, Task):
            self._known, self._runs = None, True
            observation, info = await self.inner.reset(seed=seed, options=options)
        else:
            observation, info = episode.opening, {}
            self._history = ActionHistory.from_reset(
                task,
                sample=int(reset_options.get("sample", 0)),
                seed=episode.seed,
                observation=observation,
            )
        if seed is not None:
            self.seen = RememberedEpisode(seed=seed, opening=observation)
        return observation, info

    async def step(self, action: Action) -> Step:
        """Answer as before while nothing else is asked; `EnvError` if that was not the truth."""
        answer = self._find_answer(action)
        if answer is None:
            await self._wake()
            answer = await self.inner.step(action)
        elif self._history is not None:
            self._history = self._history.add_step(action, answer)
        if (episode := self.seen) is not None:
            steps = (*episode.steps, (action, answer))
            self.seen = RememberedEpisode(seed=episode.seed, opening=episode.opening, steps=steps)
        return answer

    async def fork(self) -> Self:
        raise ForkUnsupported(
            "an environment that replays recorded answers cannot be forked; set rollout.drafts to "
            "null to branch"
        )

    async def close(self) -> None:
        await self.inner.close()

    def _find_answer(self, action: Action) -> Step | None:
        if self._runs or self._known is None or self._history is None:
            return None
        at = len(self._history.steps)
        if at >= len(self._known.steps) or self._known.steps[at][0] != action:
            return None
        return self._known.steps[at][1]

    async def _wake(self) -> None:
        if self._runs or self._history is None:
            return
        try:
            await replay(
                lambda: self.inner, self._history, reset_s=self._reset_s, step_s=self._step_s
            )
        except ReplayMismatch as error:
            self._on_mismatch()
            raise EnvError(
                f"{error}; rollout.drafts.reuse: trust relies on recorded answers, so set it to "
                "verify"
            ) from error
        self._runs = True

"""An environment whose train prompts suggest one of several strategies, for NudgeRL."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Self, cast

from agentrl.env import (
    Action,
    GoldPlayer,
    Info,
    Observation,
    Step,
    count_milestones,
    reports_answer,
)
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.registry import make
from agentrl.rollout.env_wrapper import EnvWrapper
from agentrl.runtime.seeds import derive
from agentrl.task import Task


class NudgedEnv(EnvWrapper):
    """Another environment, where a train prompt ends with a strategy, or with none.

    Trajectories of a group take turns with the strategies; of each a share is left bare. Held-out
    prompts are always bare. The reward component `strategy` has its number, 0 for none.
    """

    suggests_strategies = True
    gives_hints = True

    def __init__(
        self,
        *,
        env: str,
        strategies: Sequence[str],
        kwargs: Mapping[str, Any] | None = None,
        bare: float = 0.5,
        wording: str = "Strategy: {strategy}",
    ) -> None:
        """Make the other environment.

        Args:
            env: Id of the other environment.
            strategies: Texts that prompts suggest, in a few words each.
            kwargs: Settings of the other environment.
            bare: Probability that a trajectory of a train task gets no strategy.
            wording: Text at the end of the prompt, with `{strategy}` in it.
        """
        texts = cast("Sequence[object]", strategies)
        are_texts = all(isinstance(one, str) and one for one in texts)
        if isinstance(strategies, str) or not texts or not are_texts:
            raise ConfigError(
                f"strategies is {strategies!r}, but it is a list of texts, at least one; two "
                "are usual"
            )
        if not 0 <= bare <= 1:
            raise ConfigError(f"bare is {bare}, but it is a probability, from 0 to 1")
        if "{strategy}" not in wording:
            raise ConfigError(f"wording is {wording!r}, but it lacks {{strategy}}; put it in")
        super().__init__(make(env, **(kwargs or {})))
        self._strategies = tuple(strategies)
        self._bare = bare
        self._wording = wording
        self._number = 0
        self.reports_answer = reports_answer(self.inner)
        self.milestones = count_milestones(self.inner)
        self.needs: tuple[str, ...] = getattr(self.inner, "needs", ())
        if isinstance(self.inner, GoldPlayer):
            self.gold = self.inner.gold

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        options = options or {}
        observation, info = await self.inner.reset(seed=seed, options=options)
        task, sample = options.get("task"), int(options.get("sample", 0))
        self._number = 0
        if isinstance(task, Task) and task.split == "train":
            self._number = self.choose_strategy(task.id, sample, seed=seed or 0)
        if self._number:
            text = self._wording.replace("{strategy}", self._strategies[self._number - 1])
            unhinted = observation.messages
            hinted = _append(unhinted, text)
            observation = replace(observation, messages=hinted, unhinted=unhinted)
        return observation, info

    async def step(self, action: Action) -> Step:
        observation, reward, terminated, truncated, info = await self.inner.step(action)
        components = {**info.get("reward_components", {}), "strategy": float(self._number)}
        return observation, reward, terminated, truncated, {**info, "reward_components": components}

    def around(self, inner: Any) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.inner = inner
        return other

    def choose_strategy(self, task_id: str, sample: int, *, seed: int) -> int:
        """Return the number of a trajectory's strategy, from 1, or 0 for none."""
        if Random(derive("strategy", seed, task_id, sample)).random() < self._bare:
            return 0
        return 1 + sample % len(self._strategies)


def _append(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return messages with a text at the end of the last one."""
    *before, last = messages
    content = last.content
    more = f"{content}\n\n{text}" if isinstance(content, str) else (*content, f"\n\n{text}")
    return (*before, replace(last, content=more))

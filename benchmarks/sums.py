"""Sums by a tool that adds two numbers: the task of `benchmarks/methods.py`.

The tool runs in this process, so that a training step costs little beside its policy. An agent adds
from the left, a call per turn, and then says the sum. The environment reports what methods ask for:
the answer, two milestones, and the first turn that was no step of that sum.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.config.learning.shaping import FIRST_ERROR_TURN
from agentrl.env import Action, Info, Observation, Step, call, say
from agentrl.learn.sample import TrainingGroup
from agentrl.message import Message
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of

LOW, HIGH = 11, 99
OUTLIER = 5.0
"""Distance of a noisy reward from what the environment paid."""


@agentrl.tool
async def add(a: int, b: int) -> int:
    """Return a plus b."""
    return a + b


class SumsEnv(ToolEnv):
    """A sum, and a tool that adds two numbers; 1 for the right sum, 0 else."""

    milestones = 2
    """The tool has shown the sum, and it was said."""

    def __init__(self, *, terms: Sequence[int] = (2, 3)) -> None:
        """Choose tasks.

        Args:
            terms: Numbers of terms, all equally likely.
        """
        self._terms = tuple(terms)
        self._shown: tuple[str, ...] = ()
        self._first_error = -1
        super().__init__(
            tasks=self._draw, tools=(add,), reward=score, answer=find_answer, gold=play
        )

    async def reset(self, **arguments: Any) -> tuple[Observation, Info]:
        self._shown, self._first_error = (), -1
        return await super().reset(**arguments)

    async def step(self, action: Action) -> Step:
        task, _ = self._require_running()
        turn, is_shown = self._turns, str(task.answer) in self._shown
        observation, reward, terminated, truncated, info = await super().step(action)
        self._shown += tuple(message.text for message in observation.messages)
        steps = [str(total) for total in accumulate(task.data["numbers"])][1:]
        if self._first_error < 0 and self._shown != tuple(steps[: len(self._shown)]):
            self._first_error = turn
        if terminated and self._first_error < 0 and len(self._shown) < len(steps):
            self._first_error = turn
        parts: dict[str, float] = {FIRST_ERROR_TURN: float(self._first_error)}
        if not is_shown:
            parts |= report(1, turn=turn, is_reached=str(task.answer) in self._shown)
        if terminated:
            parts |= report(2, turn=turn, is_reached=reward >= 1)
        return observation, reward, terminated, truncated, {**info, "reward_components": parts}

    def _draw(self, split: Split, seed: int) -> Iterator[Task]:
        random = Random(derive("sums", split, seed))
        while True:
            numbers = [random.randint(LOW, HIGH) for _ in range(random.choice(self._terms))]
            text = " + ".join(map(str, numbers))
            if split_of(text) == split:
                yield Task(prompt=text, answer=str(sum(numbers)), data={"numbers": numbers})


def report(number: int, *, turn: int, is_reached: bool) -> dict[str, float]:
    """Return the reward components of a milestone."""
    return {f"milestone/{number}": float(is_reached), f"milestone_turn/{number}": float(turn)}


async def score(task: Task, messages: Sequence[Message]) -> float:
    """Return 1 for the right sum, 0 for any other text."""
    return float(messages[-1].text.strip() == task.answer)


def find_answer(task: Task, messages: Sequence[Message]) -> str:
    """Return what was said last."""
    return messages[-1].text.strip()


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Add the next number to what was shown last; say the sum after the last one."""
    numbers: list[int] = task.data["numbers"]
    shown = [int(message.text) for message in seen if message.role == "tool"]
    if len(shown) == len(numbers) - 1:
        return say(str(shown[-1]))
    return call("add", a=shown[-1] if shown else numbers[0], b=numbers[len(shown) + 1])


def pay_noisily(group: TrainingGroup, *, chance: float = 0.1) -> list[float]:
    """Return a group's rewards, of which a share is far off in either direction."""
    rewards: list[float] = []
    for sample in group.samples:
        random = Random(derive("noise", group.task_id, sample.sample, sample.sampled_tokens))
        is_off = random.random() < chance
        rewards.append(sample.reward + is_off * random.choice((-OUTLIER, OUTLIER)))
    return rewards

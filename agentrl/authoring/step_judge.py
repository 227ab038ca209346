"""A judge of right answers that came of a wrong step (flawed positives), and its own reward.

`judge_steps(reward, judge)` is a reward function for a `ToolEnv`: whatever `reward` finds right is
shown to the judge, whose verdict is reported beside the reward, as the component
`FIRST_ERROR_TURN`. It changes no reward: `learn.reward_shaping: [{name: fapo}]` reads it. A judge
here is any function; models that judge are for users to bring.
Source: FAPO (arXiv 2510.22543) and its code.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, cast

from agentrl.authoring.tool_env import Judged, ScoredAnswer
from agentrl.config.learning.shaping import FIRST_ERROR_TURN
from agentrl.message import Message
from agentrl.runtime.threads import call_either
from agentrl.task import Task

R = TypeVar("R")

SOUND = -1
"""No turn is wrong."""

Judge = Callable[[Task, Sequence[Message]], Awaitable[int | None] | int | None]
"""Says which message of the agent is the first wrong one, counted from 0; `SOUND` for none, and
None where it cannot tell. The task holds the problem and the answer that is wanted."""

Scores = Callable[[Task, Sequence[Message]], Judged | Awaitable[Judged]]
"""A reward function of two parameters."""


def judge_steps(
    reward: Scores, judge: Judge, *, right_above: float = 0.0
) -> Callable[[Task, Sequence[Message]], Awaitable[ScoredAnswer]]:
    """Return `reward` with the judge's verdict beside it; only what is right is judged.

    A verdict that names no turn of the agent counts as none, and what has none counts as sound. A
    judge that raises fails the trajectory, as a reward function does.
    """

    async def score_and_judge(task: Task, messages: Sequence[Message]) -> ScoredAnswer:
        result = await call_either(reward, task, messages)
        whole = result if isinstance(result, ScoredAnswer) else ScoredAnswer(reward=result)
        parts = whole.reward if isinstance(whole.reward, Mapping) else None
        total = sum(parts.values()) if parts is not None else float(cast("float", whole.reward))
        components = dict(whole.info.get("reward_components", {}) if parts is None else parts)
        if total > right_above:
            verdict = await call_either(judge, task, messages)
            if verdict is not None and SOUND <= verdict < len(find_turns(messages)):
                components[FIRST_ERROR_TURN] = float(verdict)
        return ScoredAnswer(reward=total, info={**whole.info, "reward_components": components})

    return score_and_judge


def first_wrong(
    is_right: Callable[[Task, Sequence[Message]], bool],
) -> Callable[[Task, Sequence[Message]], int]:
    """Return a scripted judge: the first turn that `is_right` denies, seeing all up to it."""

    def judge(task: Task, messages: Sequence[Message]) -> int:
        for turn, at in enumerate(find_turns(messages)):
            if not is_right(task, messages[: at + 1]):
                return turn
        return SOUND

    return judge


def find_turns(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the agent's messages: each is one step to be judged."""
    return [at for at, message in enumerate(messages) if message.role == "assistant"]


def judge_reward(said: int | None, *, truth: int, steps: int) -> float:
    """Return a judge's reward for a solution of `steps` steps of which `truth` is first wrong.

    1 or -1 for a sound solution, by agreement; for a flawed one -1 if it is called sound, else 1
    less the distance over `steps`. What names no step, or is None, earns -1.
    """
    if said is None or not SOUND <= said < steps:
        return -1.0
    if truth == SOUND or said == SOUND:
        return 1.0 if said == truth else -1.0
    return 1.0 - abs(said - truth) / steps

"""Tasks of reasoning-gym, and what an answer to one scores."""

from itertools import islice

import pytest

from agentrl.env import say
from agentrl.task import Split, Task
from agentrl_envs.families import FAMILIES
from agentrl_envs.reasoning import ReasoningEnv
from agentrl_envs.reasoning.optional_pycosat import PYCOSAT_FAMILIES, lacks_pycosat

EACH_FAMILY = [
    pytest.param(family, marks=pytest.mark.pycosat) if family in PYCOSAT_FAMILIES else family
    for family in FAMILIES
]
"""As parameters of a test."""
USABLE_HERE = [family for family in FAMILIES if not lacks_pycosat(family)]


def first(env: ReasoningEnv, count: int, *, split: Split = "train", seed: int = 0) -> list[Task]:
    return list(islice(env.tasks(split, seed=seed), count))


async def score(env: ReasoningEnv, task: Task, text: str) -> float:
    await env.reset(seed=0, options={"task": task})
    try:
        _, reward, terminated, truncated, _ = await env.step(say(text))
    finally:
        await env.close()
    assert (terminated, truncated) == (True, False)
    return reward

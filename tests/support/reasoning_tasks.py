"""Tasks of reasoning-gym, and what an answer to one scores."""

from itertools import islice

from agentrl.env import say
from agentrl.task import Split, Task
from agentrl_envs.reasoning import ReasoningEnv


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

"""Calls of an environment: within a deadline, with its errors attributed, and its returns checked.

Episodes of a policy and of a player call here, so both fail in the same words.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.authoring.env_contract import check_opening, check_step
from agentrl.env import Action, Env, Observation, Step
from agentrl.errors import EnvError, blame
from agentrl.task import Task


async def reset_env(
    env: Env, task: Task, *, seed: int, options: Mapping[str, Any], reset_s: float | None
) -> Observation:
    """Reset the environment for `task` and return the first observation. Raises `EnvError`."""
    limit = asyncio.timeout(reset_s)
    deadline = _name_deadline("rollout.reset_s", reset_s)
    with blame(EnvError, f"reset of task {task.id}", deadline=deadline, limit=limit):
        async with limit:
            returned = await env.reset(seed=seed, options={"task": task, **options})
        return check_opening(env, returned)[0]


async def step_env(env: Env, task: Task, action: Action, *, step_s: float | None) -> Step:
    """Return the environment's step for an action. Raises `EnvError`."""
    limit = asyncio.timeout(step_s)
    deadline = _name_deadline("rollout.step_s", step_s)
    with blame(EnvError, f"step of task {task.id}", deadline=deadline, limit=limit):
        async with limit:
            returned = await env.step(action)
        return check_step(env, returned)


def _name_deadline(key: str, seconds: float | None) -> str:
    return "" if seconds is None else f"{key}, {seconds:g} s"

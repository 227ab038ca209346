"""Tasksets of verifiers (https://github.com/PrimeIntellect-ai/verifiers), from version 0.4 on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.authoring.tool_env import check_reward
from agentrl.env import Action, Info, Observation, Step
from agentrl.message import Message
from agentrl.runtime.json_limits import JsonLimits
from agentrl.task import Split, Task, split_of
from agentrl_envs.adapters.foreign_env import ForeignEnv, refuse_calls
from agentrl_envs.adapters.host import LibraryLocation, ask_library

TASKS_LIMITS = JsonLimits(text_bytes=2**28, values=5_000_000)
"""Of all tasks that are read of a taskset."""


class VerifiersEnv(ForeignEnv):
    """A taskset whose tasks are one question and one answer.

    The answer is scored by the taskset's own `@vf.reward` functions, where verifiers would score it
    without a runtime. A taskset that needs more (tools, containers, judges, stop conditions) is
    refused, because its reward would be another one. A task's prompt decides its split.
    """

    def __init__(
        self,
        taskset: str,
        *,
        python: str,
        config: Mapping[str, Any] | None = None,
        size: int = 1000,
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        """`taskset` is the id that verifiers imports, `config` are keys of its config.

        `python` is the interpreter that has both. The first `size` tasks are read, once a process.
        """
        settings = {"taskset": taskset, "config": dict(config or {})}
        super().__init__(
            "verifiers", taskset, settings, python, path, pass_env, timeout_s, start_timeout_s
        )
        self._size = size

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of a split in the taskset's order, whatever the seed."""
        request = json.dumps({**self._settings, "size": self._size}, sort_keys=True)
        for row in _read_rows(self._place, request):
            system = (Message("system", row["system"]),) if row["system"] else ()
            prompt = row["prompt"]
            messages = (
                (Message("user", prompt),)
                if isinstance(prompt, str)
                else tuple(Message(m["role"], m["content"]) for m in prompt)
            )
            task = Task(prompt=(*system, *messages), id=row["key"][:32], data={"data": row["data"]})
            if split_of(task.fingerprint) == split:
                yield Task(prompt=task.prompt, id=task.id, data=task.data, split=split)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        task = await self._choose_task(seed, options)
        await self._episode.open({**self._settings, **task.data})
        self._task = task
        return Observation(task.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        task = self._require_task()
        if action.tool_calls or action.malformed:
            return refuse_calls(action, "There are no tools here; answer in words.")
        self._task = None
        rows = [_build_row(message, sampled=False) for message in task.messages]
        rows.append(_build_row(action.message, sampled=True))
        scored = await self._episode.ask("score", {"messages": rows})
        reward = check_reward(task, float(scored["reward"]))
        info = {"reward_components": scored["components"], "metrics": scored["metrics"]}
        return Observation(()), reward, True, False, info


def _build_row(message: Message, *, sampled: bool) -> dict[str, Any]:
    return {"message": {"role": message.role, "content": message.text}, "sampled": sampled}


@cache
def _read_rows(place: LibraryLocation, asked: str) -> tuple[Mapping[str, Any], ...]:
    """Return a taskset's tasks, asked of a host that ends with its answer."""
    what = f"the tasks of {asked}"
    return tuple(ask_library(place, json.loads(asked), TASKS_LIMITS, what=what))

"""Reward functions with the signature of TRL's `reward_funcs`.

They are given lists with one entry per completion, and columns of the data set as keyword
arguments. Here every list has one entry: a conversation is scored when it has ended.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message
from agentrl.runtime.threads import run_user_code
from agentrl.task import Task

ABSENT = ("completion_ids", "trainer_state")
"""Arguments of TRL that an environment does not have."""
_CONTENT = ("prompt", "completion", "completion_ids")
"""Columns that are not handed over by their name."""


class TrlReward:
    """One reward function of TRL's."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Raise `ConfigError` for a function that needs what is not there, by its name."""
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters:
            if parameter.name in ABSENT and parameter.default is parameter.empty:
                raise ConfigError(
                    f"{name} takes {parameter.name!r}, which only a trainer has: an environment "
                    f"sees messages, no tokens and no steps; remove it, or write {parameter.name}="
                    "None and do without"
                )
        self._function = function
        self._name = name
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def check_columns(self, columns: Collection[str], *, has_environment: bool) -> None:
        """Raise `ConfigError` for a parameter that neither TRL nor a column of the rows gives."""
        names = ["prompts", "completions", "log_extra", "log_metric"]
        names += ["environments"] if has_environment else []
        names += [column for column in columns if column not in _CONTENT]
        for name, parameter in self._parameters.items():
            is_required = parameter.default is parameter.empty
            is_named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if is_named and is_required and name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"{self._name} takes {name!r}, which no column of the rows gives; {hint}it can "
                    f"take {', '.join(names)}"
                )

    async def score(
        self, task: Task, messages: Sequence[Message], environments: Sequence[object] | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return its reward, None where it gives none, and the metrics that it logged.

        Raises `EnvError` for what is no list of one number or None.
        """
        metrics: dict[str, float] = {}

        def log_metric(name: str, value: float) -> None:
            metrics[name] = float(value)

        def log_extra(column: str, values: Sequence[Any]) -> None:
            del column, values  # of a table of completions, which only TRL prints

        row: Mapping[str, Any] = task.data.get("row", {})
        columns = {name: [value] for name, value in row.items() if name not in _CONTENT}
        prompt, completion = split_conversation(task, messages)
        arguments: dict[str, Any] = {
            **columns,
            "prompts": [prompt],
            "completions": [completion],
            "log_extra": log_extra,
            "log_metric": log_metric,
        }
        if environments is not None:
            arguments["environments"] = list(environments)
        if not self._takes_all:
            arguments = {k: value for k, value in arguments.items() if k in self._parameters}
        if inspect.iscoroutinefunction(self._function):
            rewards = await self._function(**arguments)
        else:
            rewards = await run_user_code(self._function, **arguments)
            if inspect.isawaitable(rewards):
                rewards = await rewards
        return self._read(rewards), metrics

    def _read(self, rewards: Any) -> float | None:
        try:
            (reward,) = rewards
            if isinstance(rewards, str) or isinstance(reward, str | bytes | bytearray):
                raise TypeError  # float() would read it
            return None if reward is None else float(reward)
        except (TypeError, ValueError):
            raise EnvError(
                f"{self._name} returned {rewards!r:.120} for one completion; return a list with "
                "one number, or None, per completion"
            ) from None


def split_conversation(
    task: Task, messages: Sequence[Message]
) -> tuple[str | list[dict[str, Any]], str | list[dict[str, Any]]]:
    """Return prompt and completion as TRL has them.

    Both are lists of messages where the prompt of the data set is one; else both are texts.
    """
    opening = task.messages
    is_system_added = messages[0].role == "system" and opening[0].role != "system"
    begin = len(opening) + is_system_added
    if isinstance(task.prompt, str):
        return task.prompt, "".join(m.text for m in messages[begin:] if m.role == "assistant")
    return list(map(to_dict, messages[:begin])), list(map(to_dict, messages[begin:]))


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message as TRL's lists have it."""
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in message.tool_calls
    ]
    name = {"name": message.name} if message.name else {}
    tool_calls = {"tool_calls": calls} if calls else {}
    return {"role": message.role, **name, "content": message.text, **tool_calls}

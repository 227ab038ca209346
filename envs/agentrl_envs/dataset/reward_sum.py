"""Rewards as a config names them: one, or several with weights."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

from agentrl.authoring.tool_env import ScoredAnswer, compute_reward, count_required_parameters
from agentrl.authoring.toolset import ToolSet
from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message
from agentrl.runtime.imports import import_callable
from agentrl.task import Task
from agentrl_envs.dataset.final_answers import exact_reward
from agentrl_envs.dataset.llm_judge import JudgeReward, JudgeSettings
from agentrl_envs.dataset.math_reward import MathReward
from agentrl_envs.dataset.settings import (
    JUDGE_RULES,
    check_settings,
    find_key_fault,
    is_number,
    is_text,
)
from agentrl_envs.dataset.trl_reward import TrlReward

RewardName = str | Mapping[str, Any] | Callable[..., Any]
"""`exact`, `math`, `judge`, `module:function`, `trl:module:function`, or `{name: ..., weight: ...}`
with settings; or a function."""
TRL = "trl:"
NAMES = "exact, math, judge, module:function or trl:module:function"
PART_KEYS = ("name", "weight", "label")
"""Keys of a reward that is given with settings; a judge has more."""
COMPARING = ("exact", "math")
"""Rewards that compare with the reference, which every row must have."""


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One of several rewards."""

    label: str
    """Name in reports."""
    weight: float
    """Factor of its reward in the sum."""
    function: Callable[..., Any]
    """Reward function of a task and the messages, perhaps of the tools too; or a `TrlReward`."""

    @cached_property
    def sees_tools(self) -> bool:
        """Whether it is handed the `ToolSet`."""
        is_trl = isinstance(self.function, TrlReward)
        return not is_trl and count_required_parameters(self.function) > 2


class RewardSum:
    """Weighted sum of rewards, each a component of its own in reports.

    A function of TRL's may give None and is left out then; where nobody gives a number, the
    trajectory fails.
    """

    def __init__(self, parts: Sequence[RewardPart]) -> None:
        """Raise `ConfigError` for two parts of one name."""
        labels = [part.label for part in parts]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(
                    f"two rewards are called {label!r}; give each a `label` of its own"
                )
        self._parts = tuple(parts)

    @property
    def labels(self) -> Sequence[str]:
        """The names of its parts."""
        return [part.label for part in self._parts]

    @property
    def sees_tools(self) -> bool:
        """Whether one of them is handed the `ToolSet`."""
        return any(part.sees_tools for part in self._parts)

    def check_columns(self, columns: Collection[str], *, has_environment: bool = False) -> None:
        """Raise `ConfigError` for a part that takes what no column of the rows gives."""
        for part in self._parts:
            if isinstance(part.function, TrlReward):
                part.function.check_columns(columns, has_environment=has_environment)
            elif isinstance(part.function, JudgeReward):
                part.function.check_columns(columns)

    async def score(self, task: Task, messages: Sequence[Message]) -> ScoredAnswer:
        """Return the sum for a finished conversation, and its components in the info."""
        return await self.score_all(task, messages)

    async def score_with_tools(
        self, task: Task, messages: Sequence[Message], tools: ToolSet
    ) -> ScoredAnswer:
        """Return the sum for a finished conversation whose tools are as the episode left them."""
        return await self.score_all(task, messages, tools=tools)

    async def score_all(
        self,
        task: Task,
        messages: Sequence[Message],
        *,
        tools: ToolSet | None = None,
        environments: Sequence[object] | None = None,
        own_reward: tuple[str, float] | None = None,
    ) -> ScoredAnswer:
        """Return the sum; `own_reward` is one more part, of weight 1, and its name."""
        components: dict[str, float] = {} if own_reward is None else dict([own_reward])
        info: dict[str, Any] = {}
        for part in self._parts:
            if isinstance(part.function, TrlReward):
                reward, metrics = await part.function.score(task, messages, environments)
                if metrics:
                    info.setdefault("metrics", {}).update(metrics)
            else:
                extra_args = (tools,) if part.sees_tools else ()
                reward, part_info = await compute_reward(part.function, task, messages, *extra_args)
                info |= {k: v for k, v in part_info.items() if k != "reward_components"}
            if reward is not None:
                components[part.label] = part.weight * reward
        if not components:
            names = ", ".join(part.label for part in self._parts)
            raise EnvError(f"no reward function gave a number for task {task.id!r}: {names}")
        return ScoredAnswer(reward=components, info=info)

    async def close(self) -> None:
        """Release what the parts hold."""
        for part in self._parts:
            close = getattr(part.function, "close", None)
            if inspect.iscoroutinefunction(close):
                await cast("Awaitable[None]", close())


def build_rewards(given: RewardName | Sequence[RewardName]) -> RewardSum:
    """Return the rewards that a config names. Raises `ConfigError` for what is none."""
    return RewardSum([_build_part(one) for one in list_rewards(given)])


def list_rewards(given: RewardName | Sequence[RewardName] | None) -> list[RewardName]:
    """Return one or several rewards as a list."""
    if isinstance(given, str | Mapping) or callable(given):
        return [given]
    if not given:
        raise ConfigError(f"reward is {'null' if given is None else 'an empty list'}; name {NAMES}")
    return list(given)


def compares_answers(given: RewardName | Sequence[RewardName]) -> bool:
    """Return whether one of these rewards compares with the reference of a row."""
    names = [one.get("name") if isinstance(one, Mapping) else one for one in list_rewards(given)]
    return any(isinstance(name, str) and name in COMPARING for name in names)


def _build_part(given: RewardName) -> RewardPart:
    if not isinstance(given, str | Mapping) and not callable(given):
        raise ConfigError(f"reward {given!r:.80} is none; name {NAMES}")
    if not isinstance(given, str | Mapping):
        label = getattr(given, "__name__", type(given).__name__)
        return RewardPart(label=label, weight=1.0, function=given)
    settings = {"name": given} if isinstance(given, str) else dict(given)
    name, weight = settings.get("name"), settings.get("weight", 1.0)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a reward is given as {settings}, without its name; add `name`: {NAMES}")
    if not is_number(weight):
        raise ConfigError(f"the weight of reward {name!r} is {weight!r}; it must be a number")
    if name != "judge" and (fault := find_key_fault(settings, PART_KEYS)):
        raise ConfigError(f"reward {name!r} {fault}")
    function, label = _find_function(name, settings)
    label = settings.get("label", label)
    if not is_text(label):
        raise ConfigError(f"the label of reward {name!r} is {label!r:.80}; it must be a text")
    return RewardPart(label=label, weight=float(weight), function=function)


def _find_function(name: str, settings: Mapping[str, Any]) -> tuple[Callable[..., Any], str]:
    if name == "exact":
        return _score_exact, name
    if name == "math":
        return MathReward(), name
    if name == "judge":
        return JudgeReward(_build_judge(settings)), name
    entry_point = name.removeprefix(TRL)
    if ":" not in entry_point:
        raise ConfigError(f"reward {name!r} is none; name {NAMES}")
    function = import_callable(entry_point)
    label = entry_point.rpartition(":")[2]
    if name.startswith(TRL):
        return cast("Any", TrlReward(function, entry_point)), label
    if not 2 <= count_required_parameters(function) <= 3:
        raise ConfigError(
            f"reward {name} takes {inspect.signature(function)}; it must take a task and the "
            "messages (and perhaps the tools), or be named trl:module:function if it has TRL's "
            "signature"
        )
    return function, label


async def _score_exact(task: Task, messages: Sequence[Message]) -> float:
    return exact_reward(task, messages)  # so short that a thread would be most of its time


def _build_judge(given: Mapping[str, Any]) -> JudgeSettings:
    settings = {k: v for k, v in given.items() if k not in ("name", "weight", "label")}
    keys = [field.name for field in fields(JudgeSettings)]
    missing = [name for name in ("prompt", "url", "model") if name not in settings]
    if missing:
        raise ConfigError(
            f"a reward judge lacks {', '.join(missing)}; its keys are {', '.join(keys)}"
        )
    if fault := find_key_fault(settings, keys):
        raise ConfigError(f"a reward judge {fault}")
    check_settings(settings, JUDGE_RULES, of="a judge")
    if "scale" in settings:
        settings["scale"] = tuple(map(float, settings["scale"]))
    return JudgeSettings(**settings)

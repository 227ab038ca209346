"""A data set as an environment: rows are tasks, a function or a model scores what is said."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from agentrl.authoring.tool_env import ToolEnv
from agentrl.env import Action, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.registry import make, spec
from agentrl.runtime.imports import import_callable
from agentrl.task import Task
from agentrl.tool import LateTools, ToolSource
from agentrl_envs.dataset.final_answers import exact_answer, reference_answers
from agentrl_envs.dataset.math_reward import find_missing_math
from agentrl_envs.dataset.reward_sum import (
    RewardName,
    build_rewards,
    compares_answers,
    list_rewards,
)
from agentrl_envs.dataset.row_tasks import DataSource, TaskColumns, load_tasks, order_tasks
from agentrl_envs.dataset.rows import find_missing_reader
from agentrl_envs.dataset.settings import DATASET_RULES, check_settings

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

Gold = Callable[[Task, Sequence[Message]], Action]


class DatasetEnv(ToolEnv):
    """Questions of a file or of the Hugging Face hub, perhaps with tools; docs/datasets.md.

    The reward is paid for the last message, which calls no tool. A whole row is in
    `task.data["row"]`. A gold player says the answer, where the reward compares with it.
    """

    def __init__(
        self,
        *,
        path: str | Mapping[str, str],
        prompt: str = "prompt",
        answer: str | None = None,
        reward: RewardName | Sequence[RewardName] = "exact",
        tools: Sequence[ToolSource | LateTools | str | Mapping[str, Any]] = (),
        subset: str | None = None,
        split: str | Mapping[str, str] | None = None,
        split_column: str = "split",
        heldout_fraction: float = 0.1,
        system: str = "",
        gold: str | Gold | None = None,
        max_turns: int | None = None,
        tool_timeout_s: float = 30.0,
    ) -> None:
        """Read the rows and make the tasks; nothing is asked or started.

        Args:
            path: A file (parquet, JSON lines, JSON, CSV) or a name of the hub; or one by split,
                `{train: ..., heldout: ...}`.
            prompt: Column of the prompts, which are texts or message lists, or a template such as
                `{context} {question}`.
            answer: Column of the references; by default the column `answer`, if there is one.
            reward: `exact`, `math`, `module:function`, `trl:module:function`, a judge, or several
                with weights; see `agentrl_envs.dataset.reward_sum`.
            tools: Tools, as those of `ToolEnv`.
            subset: Configuration of a data set of the hub.
            split: Names of splits, `{train: ..., heldout: ...}`, or the only one to use; by default
                a hash of the prompt decides.
            split_column: Column of a file that has the names of splits.
            heldout_fraction: Share of the rows to hold out, where the hash decides.
            system: System message; empty for none.
            gold: `module:function` of a gold player, of a task and the messages so far.
            max_turns: Number of messages of the agent after which an episode ends.
            tool_timeout_s: Deadline of every call of a tool.
        """
        check_settings(locals(), DATASET_RULES, of="the data set")
        self._reward_names = reward
        self._rewards = build_rewards(reward)
        compares = compares_answers(reward)
        columns = TaskColumns(
            prompt=prompt, answer=answer, needs_answer=compares, has_system=bool(system)
        )
        source = DataSource(
            path=path,
            subset=subset,
            split=split,
            split_column=split_column,
            heldout_fraction=heldout_fraction,
        )
        tasks = load_tasks(source, columns)
        self._rewards.check_columns(tasks["train"][0].data["row"])
        super().__init__(
            tasks=order_tasks(tasks),
            reward=self._find_scorer(),
            tools=tools,
            system=system,
            answer=exact_answer if compares else None,
            gold=find_gold(gold, compares=compares and len(list_rewards(reward)) == 1),
            max_turns=max_turns,
            tool_timeout_s=tool_timeout_s,
        )

    async def fork(self) -> Self:
        other = await super().fork()
        other._rewards = build_rewards(self._reward_names)
        other._reward = other._find_scorer()
        return other

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._rewards.close()

    def _find_scorer(self) -> Callable[..., Any]:
        rewards = self._rewards
        return rewards.score_with_tools if rewards.sees_tools else rewards.score


def find_gold(given: str | Gold | None, *, compares: bool) -> Gold | None:
    """Return the gold player that was named, or the one that says the reference, or None."""
    if isinstance(given, str):
        return import_callable(given)
    return say_reference if given is None and compares else given


def say_reference(task: Task, seen: Sequence[Message]) -> Action:
    """Give the reference answer, between the tags that a system message asks for."""
    answer = reference_answers(task.answer)[0]
    uses_tags = any("<answer>" in message.text for message in seen if message.role == "system")
    return say(f"<answer>{answer}</answer>" if uses_tags else answer)


def find_missing_parts(config: "RunConfig") -> Iterator[str]:
    """Yield the faults that keep a data set from being read and judged here."""
    settings = {**spec(config.env.id).kwargs, **config.env.kwargs}
    try:
        check_settings(settings, DATASET_RULES, of="the data set")
        rewards = list_rewards(settings.get("reward") or "exact")
    except ConfigError as error:
        yield str(error)
        return
    path = settings.get("path", ())
    paths = path.values() if isinstance(path, Mapping) else [path] if path else []
    faults = [find_missing_reader(str(place)) for place in paths]
    for one in rewards:
        name = one.get("name") if isinstance(one, Mapping) else one
        if name == "math":
            faults.append(find_missing_math())
    if any(faults):
        yield from filter(None, faults)
        return
    try:
        make(config.env.id, **config.env.kwargs)
    except ConfigError as error:
        yield str(error)

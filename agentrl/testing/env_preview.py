"""Preview of an environment: its tasks and tools, and rewards of a few episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from agentrl.authoring.env_contract import describe_missing_tasks, read_tasks
from agentrl.authoring.gold import GoldEpisode, play, play_gold
from agentrl.env import Action, Env, GoldPlayer, Observation, ToolSchema, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import run_in_thread
from agentrl.task import SPLITS, Split, Task

COUNTED_TASKS = 10_000
"""Tasks of a split that are counted; there may be more, or no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvPreview:
    """Tasks, tools and rewards of an environment."""

    task_counts: Mapping[Split, int]
    """Number of tasks by split, at most `COUNTED_TASKS`."""
    example: Task
    """The first train task."""
    opening: tuple[Message, ...]
    """Messages that its episode opens with."""
    tools: tuple[ToolSchema, ...]
    """Schemas of the tools at its opening."""
    idle_rewards: tuple[float, ...]
    """Rewards of an agent that says nothing."""
    gold_rewards: tuple[float, ...] | None
    """Rewards of the gold player on the same tasks; None without one."""
    gold_turns: int = 0
    """Largest number of turns of the gold player."""

    def find_fault(self) -> str:
        """Return the reason why nothing can be learnt from these rewards, or an empty string."""
        if self.gold_rewards is None:
            return ""
        gold, idle = sum(self.gold_rewards), sum(self.idle_rewards)
        if gold > idle:
            return ""
        return (
            f"the gold player earned {gold:g} and an agent that says nothing {idle:g} on the same "
            f"{len(self.gold_rewards)} tasks; mend the reward, the answers or the gold player"
        )


async def preview_env(env: Env, *, episodes: int = 3, max_turns: int = 16) -> EnvPreview:
    """Count the tasks of an environment and play some of each split, then close it.

    Args:
        env: The environment.
        episodes: Number of tasks of each split to play.
        max_turns: Largest number of turns of an episode.

    Raises:
        ConfigError: A split has no tasks.
        EnvError: What an episode raises.
    """
    async with run_scope():
        try:
            return await _preview(env, episodes=episodes, max_turns=max_turns)
        finally:
            await env.close()


async def _preview(env: Env, *, episodes: int, max_turns: int) -> EnvPreview:
    tasks: dict[Split, Sequence[Task]] = {}
    for split in SPLITS:
        tasks[split] = await run_in_thread(_read_some, env, split)
        if not tasks[split]:
            raise ConfigError(describe_missing_tasks(env, split))
    sample = [task for split in SPLITS for task in tasks[split][:episodes]]
    idle = [await play(env, task, _say_nothing, max_turns=max_turns) for task in sample]
    gold: list[GoldEpisode] | None = None
    if isinstance(env, GoldPlayer):
        gold = [await play_gold(env, task, max_turns=max_turns) for task in sample]
    return EnvPreview(
        task_counts={split: len(some) for split, some in tasks.items()},
        example=sample[0],
        opening=idle[0].opening.messages,
        tools=tuple(idle[0].opening.tools or ()),
        idle_rewards=tuple(episode.reward for episode in idle),
        gold_rewards=None if gold is None else tuple(episode.reward for episode in gold),
        gold_turns=max((len(episode.actions) for episode in gold or ()), default=0),
    )


def _read_some(env: Env, split: Split) -> list[Task]:
    return list(islice(read_tasks(env, split, seed=0), COUNTED_TASKS))


async def _say_nothing(new: Observation, seen: tuple[Message, ...]) -> Action:
    return say("")

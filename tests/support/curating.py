"""A curator of numbered tasks, and steps of it that are played without a scheduler."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentrl.env import BaseEnv, Env
from agentrl.events.kinds import GroupRequest
from agentrl.rollout.curation.group_curation import GroupCuration
from agentrl.rollout.curation.rules import CurationRules
from agentrl.rollout.curation.task_curator import CuratedBatch, TaskCurator
from agentrl.rollout.scheduler.topology import GroupProgress, RolloutKey
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Tree

Score = Callable[[int, str, int], float | None]
"""Of a step, a task and a sample; None fails."""


class Numbers(BaseEnv):
    """An environment that is only ever asked for its tasks."""

    def __init__(self, count: int) -> None:
        self._count = count

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        for i in range(self._count):
            yield Task(prompt=f"{split} {i}", id=f"t{i}", split=split)

    async def reset(self, **_: object) -> object:
        raise AssertionError("a sampler never resets")

    step = reset


def curator(
    rules: CurationRules, *, tasks: int = 12, group_size: int = 4, **saved: Any
) -> TaskCurator:
    env: Env = Numbers(tasks)  # pyright: ignore[reportAssignmentType]
    stream = TaskSampler(env, seed=0)
    return TaskCurator(rules, stream, seed=1, group_size=group_size, max_turns=8, **saved)


def tokens_of(task: str, sample: int) -> int:
    return 1 + (int(task[1:]) + 2 * sample) % 7


@dataclass(frozen=True)
class Asked:
    """Samples `first_sample` and on of one group that were played."""

    number: int
    task: Task
    trajectories: int
    max_turns: int | None
    first_sample: int = 0


@dataclass
class Log:
    """Everything that was asked for in a step, and how often anything was."""

    asks: list[Asked] = field(default_factory=list[Asked])
    rounds: int = 0


def play_step(
    who: TaskCurator,
    wanted: int,
    score: Score,
    *,
    version: int | None = None,
    random: Random | None = None,
) -> tuple[CuratedBatch, Log]:
    """Play a step to its end as a scheduler in sync would, its groups one after the other.

    Within a round, groups end in the order `random` gives them.
    """
    step = who.state.steps
    at = step if version is None else version
    curation = GroupCuration(curator=who, wanted=wanted, version=at)
    number = who.state.groups
    batch, log = list[Tree](), Log()
    curation.flying = lambda: [tree.task for tree in batch]
    while len(batch) < wanted and (requests := curation.tasks(wanted - len(batch))):
        log.rounds += 1
        groups = [*enumerate(requests, number)]
        number += len(groups)
        kept: list[tuple[int, Tree]] = []
        log.asks += [
            Asked(n, r.task, r.trajectories or who.group_size, r.max_turns) for n, r in groups
        ]
        (random or Random(0)).shuffle(groups)
        for n, request in groups:
            tree = play_group(curation, n, request, who.group_size, score, step, at, log)
            if tree is not None:
                kept.append((n, tree))
        batch += [tree for _, tree in sorted(kept, key=lambda pair: pair[0])]
    return curation.batch(batch), log


def play_group(
    curation: GroupCuration,
    number: int,
    request: GroupRequest,
    group_size: int,
    score: Score,
    step: int,
    version: int,
    log: Log,
) -> Tree | None:
    """Play a group with its second phase; return its tree, or None where it was dropped."""
    target = request.trajectories or group_size
    tree, begun = Tree(request.task), 0
    while True:
        filled(tree, target - begun, step, version, score, first=begun)
        for leaf in tree.leaves[begun:]:
            curation.hooks.on_finished(RolloutKey(group=number, sample=leaf.sample), tree, leaf)
        begun = target
        state = GroupProgress(number=number, target=target, started=target, live=0)
        (more,) = curation.hooks.more([(state, tree.leaves)])
        if more == 0:
            return tree if curation.hooks.on_group(state, tree.leaves) else None
        log.asks.append(Asked(number, request.task, more, request.max_turns, target))
        target += more


def filled(
    tree: Tree, trajectories: int, step: int, version: int, score: Score, *, first: int = 0
) -> Tree:
    """Add trajectories to a tree: one turn each, some tokens long."""
    task_id = tree.task.id
    for sample in range(first, first + trajectories):
        root = tree.share(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        n = tokens_of(task_id, sample)
        node = Node(
            parent=root,
            source="sampled",
            token_ids=(7,) * n,
            logprobs=(-1.0,) * n,
            versions=(version,) * n,
            entropies=(float(sample),) * n,
            turn=0,
        )
        reward = score(step, task_id, sample)
        outcome: Outcome = Failed("env", "x") if reward is None else Finished(reward)
        tree.end(Leaf(node=tree.add(node), outcome=outcome, sample=sample, seconds=1.0))
    return tree

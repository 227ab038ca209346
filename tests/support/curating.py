"""A curator of numbered tasks, and the trees of what it asks for."""

from collections.abc import Callable, Iterable
from typing import Any

from agentrl.env import BaseEnv, Env
from agentrl.rollout.curation.curated_step import CurationRequest, TaskCurator
from agentrl.rollout.curation.rules import CurationRules
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


def filled(ask: CurationRequest, step: int, version: int, score: Score) -> Tree:
    """Return the tree of an ask: one turn per trajectory, some tokens long."""
    tree = ask.tree or Tree(ask.task)
    for sample in range(ask.first_sample, ask.first_sample + ask.trajectories):
        root = tree.share(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        n = tokens_of(ask.task.id, sample)
        node = Node(
            parent=root,
            source="sampled",
            token_ids=(7,) * n,
            logprobs=(-1.0,) * n,
            versions=(version,) * n,
            entropies=(float(sample),) * n,
            turn=0,
        )
        reward = score(step, ask.task.id, sample)
        outcome: Outcome = Failed("env", "x") if reward is None else Finished(reward)
        tree.end(Leaf(node=tree.add(node), outcome=outcome, sample=sample, seconds=1.0))
    return tree

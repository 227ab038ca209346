"""Seeds of the trees of a run whose tasks come more than once in a step, in virtual time.

Mutants seen caught: the repeat left out of a tree's seed; groups of before a resume not counted.
"""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.events.kinds import GroupDropped, GroupRequest
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.batch import RolloutBatch
from agentrl.run import build
from agentrl.run.extensions.branching import build_branching_topology, build_tree_planner
from agentrl.runtime.seeds import derive
from agentrl.store.run import RunStore
from agentrl.store.settings import StoreSettings
from agentrl.trajectory import Finished
from benchmarks.letters import LetterChat
from tests.unit.rollout.branching.test_gated import run
from tests.unit.rollout.branching.test_grow import TASK, Counting, grow, spoken, surprise

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "fan_out": {"rollout.branching.turns": [1]},
    "tree_grpo": {"rollout.group_size": 6},
    "aepo": {},
}


def build_config(topology: str, *, concurrency: int = 64) -> RunConfig:
    return load_config(
        "quickstart",
        {
            "rollout.tasks_per_step": 2,
            "rollout.group_size": 4,
            "rollout.concurrency": concurrency,
            "rollout.branching.topology": topology,
            **TOPOLOGIES[topology],
        },
    )


async def play_step(
    folder: Path, topology: str, *, concurrency: int = 64, record: RunStore | None = None
) -> RolloutBatch:
    """Play a step of two groups of one task as a run with this topology does."""
    config = build_config(topology, concurrency=concurrency)
    rollouts = RolloutRunner(
        make_env=Counting,
        engine=ScriptedEngine(spoken, logprob=surprise, token_s=1.0),
        chat=LetterChat(),
        limits=EpisodeLimits(),
        concurrency=concurrency,
    )
    trees = build_branching_topology(config, rollouts, folder=folder, vocabulary=128, record=record)
    gate = build.build_scheduler(
        config,
        rollouts,
        lambda count: [TASK] * count,
        on_stuck=print,
        version=0,
        record=record,
        trees=trees,
    )
    async with gate:
        return await gate.next_batch()


def read_tokens(batch: RolloutBatch) -> list[list[tuple[int, ...]]]:
    return [
        sorted(trajectory.token_ids for trajectory in tree.trajectories()) for tree in batch.trees
    ]


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("concurrency", [1, 64])
def test_a_task_that_comes_twice_in_a_step_is_played_with_other_seeds(
    tmp_path: Path, topology: str, concurrency: int
) -> None:
    batch = run(play_step(tmp_path, topology, concurrency=concurrency))
    first, second = read_tokens(batch)
    assert len(first) == len(second) == (6 if topology == "tree_grpo" else 4)
    assert not {*first} & {*second}
    assert all(isinstance(leaf.outcome, Finished) for tree in batch.trees for leaf in tree.leaves)


def test_the_first_tree_of_a_task_has_the_seeds_that_it_always_had(tmp_path: Path) -> None:
    config = build_config("fan_out")
    planner = build_tree_planner(config, vocabulary=128)
    assert planner is not None
    alone = run(grow(planner, seed=derive(config.run.seed, "rollouts", 0)))
    batch = run(play_step(tmp_path, "fan_out"))
    assert read_tokens(batch)[0] == sorted(t.token_ids for t in alone.tree.trajectories())


def test_a_repeated_task_keeps_its_seeds_after_a_resume(tmp_path: Path) -> None:
    """The task's first group is over before the kill: the next one is its second all the same."""
    whole = run(play_step(tmp_path, "fan_out"))
    store = tmp_path / "store"
    with RunStore.open(store, StoreSettings(), seed=0, position=lambda: 1, resume=False) as record:
        record.events.open_group(0, GroupRequest(task=TASK), size=4, step=0)
        record.events.emit(GroupDropped(group=0, reason="test"))
    with RunStore.open(store, StoreSettings(), seed=0, position=lambda: 1, resume=True) as record:
        record.restore({}, step=0)
        resumed = run(play_step(tmp_path, "fan_out", record=record))
    assert [group.state.number for group in resumed.groups] == [1, 2]
    assert read_tokens(resumed)[0] == read_tokens(whole)[1]

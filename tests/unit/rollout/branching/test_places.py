"""How many worlds a tree holds behind the gate.

Mutants seen caught: branches to come that take no room from new trees; a branch that waits although
there is a place.
"""

from random import Random

import pytest

from agentrl.rollout.branching.aepo import StaticRootSplit
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.fixed_topologies import FanOutTopology
from agentrl.rollout.branching.topology import AnyTopology
from tests.unit.rollout.branching.test_gated import Rig, Slow, run, sync
from tests.unit.rollout.branching.test_grow import Counting, always


@pytest.mark.parametrize(
    "topology", [always(8), FanOutTopology(budget=BranchBudget(leaves=8), turns=(1, 2))]
)
def test_few_roots_open_no_more_trees_than_there_is_room_for_their_branches(
    topology: AnyTopology,
) -> None:
    async def main() -> int:
        most = [0]

        def look(env: Counting) -> None:
            most.append(rig.open)

        policy = sync(mode="async", groups_per_step=8, concurrency=32, max_staleness=4)
        rig = Rig(topology, policy, on_step=look, env=Slow)
        Slow.random = Random(1)
        async with rig.gate() as gate:
            for version in range(3):
                await gate.next_batch()
                await gate.load_weights(None, version + 1)
        assert rig.open == 0
        return max(most)

    assert 24 < run(main()) < 32 + 8


def test_a_branch_plays_beside_its_parent_when_there_is_a_place() -> None:
    async def main() -> int:
        playing: list[int] = []

        def look(env: Counting) -> None:
            playing.append(sum(at.phase != "gate" for at in gate.activities()))

        rig = Rig(
            always(2, split=StaticRootSplit(roots=1)), sync(2, groups_per_step=1), on_step=look
        )
        async with rig.gate() as gate:
            await gate.next_batch()
        return max(playing)

    assert run(main()) == 2

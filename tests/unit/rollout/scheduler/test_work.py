"""How far a scheduler is, by tokens.

Mutants seen caught: tokens of what goes on left out; the mean of all instead of the ended ones;
what was under way before counted again; shares above one trajectory each.
"""

import asyncio

from agentrl.rollout.scheduler.work import RolloutWork, reporting


def test_a_trajectory_that_goes_on_counts_with_its_share_of_a_mean_one() -> None:
    work = RolloutWork(ended=2, ended_tokens=200, open=1, open_tokens=100)
    assert work.tokens == 300
    assert work.count_since(RolloutWork()) == 2.5
    before = RolloutWork(ended=1, ended_tokens=90, open=3, open_tokens=100)
    assert work.count_since(before) == 1 + 0.5 - 0.75


def test_long_trajectories_that_go_on_never_count_as_ended() -> None:
    """Where most guess in 5 tokens, three that call tools had counted as 60 that have ended."""
    work = RolloutWork(ended=50, ended_tokens=250, open=3, open_tokens=300)
    assert 52 < work.count_since(RolloutWork()) < 53


def test_nothing_is_known_of_lengths_before_one_has_ended() -> None:
    assert RolloutWork(open=5, open_tokens=500).count_since(RolloutWork()) == 0.0
    later = RolloutWork(ended=1, ended_tokens=100, open_tokens=0)
    assert later.count_since(RolloutWork(ended=0, open=2, open_tokens=900)) == 0.0, (
        "never less than none"
    )


async def test_reports_end_with_their_block() -> None:
    reports: list[int] = []
    third = asyncio.Event()

    def report() -> None:
        reports.append(1)
        if len(reports) == 3:
            third.set()

    async with reporting(report, every_s=0.0):
        await third.wait()
    count = len(reports)
    await asyncio.sleep(0)
    assert len(reports) == count
    assert [task for task in asyncio.all_tasks() if task.get_name() == "agentrl-progress"] == []

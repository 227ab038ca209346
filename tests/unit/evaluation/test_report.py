"""The report: golden numbers, failures apart, tasks as the unit, tags, and its three forms.

Seen caught: failures counted as zeros, a threshold that must be exceeded, tasks with too few
rewards kept in pass@k, trajectories pooled over tasks, template tokens counted as sampled, turns of
the prompt counted, the number of tasks taken before failures left, infinite JSON.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.evaluation.bootstrap import bootstrap_estimate
from agentrl.evaluation.interval import mean_estimate, rate_estimate
from agentrl.evaluation.report import HEADINGS, EvaluationReport
from agentrl.evaluation.reports import read_summary, save_report
from agentrl.task import Task
from agentrl.trajectory import (
    Failed,
    Finished,
    Leaf,
    Node,
    Outcome,
    Trajectory,
    Tree,
    Truncated,
)

BROKEN = Failed("tool", "the tool raised KeyError")


def play(
    name: str,
    outcomes: Sequence[Outcome | float],
    *,
    tags: tuple[str, ...] = (),
    turns: int = 1,
    tool_calls: int = 0,
) -> tuple[Trajectory, ...]:
    """Return one task's trajectories of `turns` turns, two sampled tokens in each."""
    tree = Tree(Task(prompt=f"task {name}", id=name, tags=tags))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2, 3), turn=0))
    for turn in range(turns):
        sampled = Node(
            parent=at,
            source="sampled",
            token_ids=(4, 5),
            logprobs=(-0.5, -0.5),
            versions=(0, 0),
            turn=turn,
        )
        at = tree.add(sampled)
        at = tree.add(Node(parent=at, source="template", token_ids=(6,), turn=turn + 1))
    for sample, outcome in enumerate(outcomes):
        if not isinstance(outcome, Finished | Truncated | Failed):
            outcome = Finished(outcome)
        leaf = Leaf(node=at, outcome=outcome, sample=sample, seconds=2.0, tool_calls=tool_calls)
        tree.end(leaf)
    return tree.trajectories()


def test_golden() -> None:
    """Three tasks of two samples: 2, 1 and 0 passes; pass@1 = 1/2, pass@2 = 2/3."""
    report = EvaluationReport.of(
        [*play("a", [1, 1]), *play("b", [0, 1]), *play("c", [0, 0])], k=(2,)
    )
    assert report.overall.pass_at[1] == rate_estimate([1, 0.5, 0], trials=[2, 2, 2])
    assert report.overall.pass_at[2] == rate_estimate([1, 1, 0], trials=[1, 1, 1])
    assert report.overall.all_pass == {2: rate_estimate([1, 0, 0], trials=[1, 1, 1])}
    assert report.overall.pass_at[1].mean == pytest.approx(1 / 2)
    assert report.overall.pass_at[2].mean == pytest.approx(2 / 3)
    assert report.overall.reward == report.overall.pass_at[1]
    assert (report.overall.tasks, report.overall.trajectories) == (3, 6)
    assert report.overall.outcomes == {"finished": 6}


def test_failures_are_apart_and_never_zeros() -> None:
    """A whole task broke: zeros for it would make pass@1 1/3 instead of 1/2."""
    report = EvaluationReport.of([*play("a", [1]), *play("b", [BROKEN, BROKEN]), *play("c", [0])])
    assert report.overall.pass_at[1] == rate_estimate([1, 0], trials=[1, 1])
    assert report.overall.reward == rate_estimate([1, 0], trials=[1, 1])
    assert report.overall.failed == 2
    assert report.overall.outcomes == {"failed_tool": 2, "finished": 2}
    assert report.summary()["n"] == 2
    assert report.overall.tasks == 3
    assert report.figures()["failed_fraction"] == 0.5


def test_a_task_with_too_few_rewards_is_left_out_of_pass_at_k() -> None:
    report = EvaluationReport.of([*play("a", [0, 1]), *play("b", [1, BROKEN])], k=(1, 2))
    assert report.overall.pass_at[1] == rate_estimate([0.5, 1], trials=[2, 1])
    assert report.overall.pass_at[2].tasks == 1
    assert report.overall.pass_at[2].mean == 1


def test_pass_at_k_of_fewer_picks_is_worth_one_trial_per_pick() -> None:
    """Every task has 1 pass in 4, so pass@2 is 1 - C(3, 2) / C(4, 2) = 1/2 for each."""
    report = EvaluationReport.of([t for name in "abcd" for t in play(name, [0, 1, 0, 0])], k=(2,))
    assert report.overall.pass_at[2] == rate_estimate([0.5] * 4, trials=[2] * 4)


def test_every_task_weighs_the_same() -> None:
    """Pooled over trajectories pass@1 would be 3/4."""
    report = EvaluationReport.of([*play("a", [1, 1, 1]), *play("b", [0, BROKEN, BROKEN])])
    assert report.overall.pass_at[1].mean == 0.5
    assert report.overall.reward is not None
    assert report.overall.reward.mean == 0.5


def test_the_threshold_is_enough_to_pass() -> None:
    trajectories = [*play("a", [0.5]), *play("b", [0.25])]
    assert EvaluationReport.of(trajectories, threshold=0.5).overall.pass_at[1].mean == 0.5


def test_truncated_trajectories_count_with_what_they_earned() -> None:
    ends = [Truncated("turns", 1.0), Truncated("tokens", 0.0), Truncated("seconds", 0.0)]
    overall = EvaluationReport.of(play("a", ends)).overall
    assert overall.pass_at[1].mean == pytest.approx(1 / 3)
    assert overall.failed == 0
    assert overall.outcomes == {
        "truncated_seconds": 1,
        "truncated_tokens": 1,
        "truncated_turns": 1,
    }


def test_rewards_that_are_no_passes_get_the_interval_that_fits_them() -> None:
    shares = EvaluationReport.of([*play("a", [0.2]), *play("b", [0.9]), *play("c", [1.0])])
    assert shares.overall.reward == rate_estimate([0.2, 0.9, 1.0], trials=None)
    other = EvaluationReport.of([*play("a", [-1]), *play("b", [2])])
    assert other.overall.reward == mean_estimate([-1, 2])
    above = EvaluationReport.of([*play("a", [0.5]), *play("b", [2])])
    assert above.overall.reward == mean_estimate([0.5, 2])


def test_bootstrap_intervals_are_of_one_value_per_task() -> None:
    """And Wilson's where every task agrees, since the bootstrap would claim to know for sure."""
    trajectories = [*play("a", [1, 1]), *play("b", [0, 1]), *play("c", [0, 0])]
    report = EvaluationReport.of(trajectories, k=(2,), interval="bootstrap", confidence=0.9)
    assert report.overall.pass_at[1] == bootstrap_estimate([1, 0.5, 0], confidence=0.9)
    assert report.overall.all_pass[2] == bootstrap_estimate([1, 0, 0], confidence=0.9)
    agreed = EvaluationReport.of([*play("a", [1]), *play("b", [1])], interval="bootstrap")
    assert agreed.overall.pass_at[1] == rate_estimate([1, 1], trials=[1, 1])
    other = EvaluationReport.of([*play("a", [-1]), *play("b", [2])], interval="bootstrap")
    assert other.overall.reward == bootstrap_estimate([-1, 2])
    assert other.to_json()["interval"] == "bootstrap"


def test_costs_are_means_over_trajectories_with_a_reward() -> None:
    short, long = play("a", [1], turns=1, tool_calls=0), play("b", [0], turns=4, tool_calls=3)
    broken = play("c", [BROKEN], turns=9, tool_calls=9)
    overall = EvaluationReport.of([*short, *long, *broken]).overall
    costs = {"turns": 2.5, "sampled_tokens": 5, "tool_calls": 1.5, "seconds": 2}
    assert overall.costs == costs


def test_tags_split_the_tasks() -> None:
    report = EvaluationReport.of(
        [
            *play("a", [1], tags=("sum", "easy")),
            *play("b", [0], tags=("sum",)),
            *play("c", [BROKEN], tags=("easy",)),
        ]
    )
    assert [*report.tags] == ["easy", "sum"]
    easy, total = report.tags["easy"], report.tags["sum"]
    assert (easy.tasks, easy.pass_at[1].mean, easy.failed) == (2, 1, 1)
    assert (total.tasks, total.pass_at[1].mean, total.failed) == (2, 0.5, 0)


def test_the_summary_is_what_people_quote() -> None:
    trajectories = [t for i in range(4) for t in play(str(i), [float(i > 0), 1.0])]
    report = EvaluationReport.of(trajectories, k=(2,))
    one = report.overall.pass_at[1]
    assert report.summary() == {
        "pass@1": 0.875,
        "ci95": [one.low, one.high],
        "n": 4,
        "pass@2": 1.0,
        "pass^2": 0.75,
        "reward": 0.875,
        "failed": 0,
    }
    assert [*report.summary()][:3] == ["pass@1", "ci95", "n"]
    assert "ci99" in EvaluationReport.of(trajectories, confidence=0.99).summary()


@pytest.mark.parametrize("outcomes", [[1.0, 0.0, 1.0], [BROKEN, BROKEN]])
def test_the_summary_is_read_back_from_a_run(tmp_path: Path, outcomes: list[Any]) -> None:
    trajectories = [one for name in "ab" for one in play(name, outcomes)]
    report = EvaluationReport.of(trajectories, k=(1, 2), confidence=0.9)
    assert read_summary(tmp_path, "before") is None
    save_report(report, tmp_path, "before")
    assert read_summary(tmp_path, "before") == report.summary()


def test_when_everything_failed_nothing_is_claimed() -> None:
    report = EvaluationReport.of([*play("a", [BROKEN]), *play("b", [BROKEN])])
    assert report.summary() == {
        "pass@1": None,
        "ci95": None,
        "n": 0,
        "reward": None,
        "failed": 2,
    }
    assert report.figures() == {"failed_fraction": 1.0}
    assert report.rows() == [("failed_tool", "2", "100.0%", "")]
    assert report.to_json()["turns"] is None


def test_json_is_strict_json() -> None:
    """A single task has no interval of its mean reward; JSON has no infinity."""
    report = EvaluationReport.of(play("a", [3.5], tags=("only",)))
    made = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert made["reward"] == {"mean": 3.5, "low": None, "high": None, "tasks": 1}
    assert made["pass@1"] == {"mean": 1.0, "low": 0.0, "high": 1.0, "tasks": 1}
    assert made["tags"]["only"]["pass@1"] == made["pass@1"]
    assert (made["threshold"], made["confidence"], made["trajectories"]) == (1.0, 0.95, 1)


def test_rows_are_text_for_a_table() -> None:
    report = EvaluationReport.of(
        [*play("a", [1], tags=("sum",)), *play("b", [BROKEN], tags=("sum",))]
    )
    rows = report.rows()
    assert {len(row) for row in rows} == {len(HEADINGS)}
    assert rows[0] == ("pass@1", "1.000", "0.000 .. 1.000", "1")
    assert ("failed_tool", "1", "50.0%", "") in rows
    assert rows[-2:] == [
        ("sum: reward", "1.000", "0.000 .. 1.000", "1"),
        ("sum: failed", "1", "", ""),
    ]
    assert ("reward", "3.500", "needs two tasks", "1") in EvaluationReport.of(
        play("a", [3.5])
    ).rows()


def test_a_k_beyond_the_samples_names_the_config() -> None:
    with pytest.raises(ConfigError, match=r"pass@3 of 2 samples.*evaluate\.samples_per_task"):
        EvaluationReport.of(play("a", [1, 0]), k=(3,))


def test_nothing_to_report_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        EvaluationReport.of([])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="task a has rewards"):
        EvaluationReport.of(play("a", [reward]))


outcomes = st.one_of(
    st.sampled_from([Finished(0.0), Finished(1.0), Truncated("turns", 0.0), BROKEN])
)


@given(st.lists(st.lists(outcomes, min_size=1, max_size=4), min_size=1, max_size=6), st.randoms())
def test_order_never_matters_and_failures_change_no_score(
    tasks: list[list[Outcome]], rng: Random
) -> None:
    groups = [play(str(i), ends) for i, ends in enumerate(tasks)]
    every = [trajectory for group in groups for trajectory in group]
    report = EvaluationReport.of(every)
    shuffled = rng.sample(every, len(every))
    assert EvaluationReport.of(shuffled).summary()["pass@1"] == pytest.approx(
        report.summary()["pass@1"]
    )
    assert sum(report.overall.outcomes.values()) == len(every)
    sound = [t for t in every if not isinstance(t.outcome, Failed)]
    if sound:
        alone = EvaluationReport.of(sound)
        assert alone.overall.estimates == report.overall.estimates
        assert alone.overall.costs == report.overall.costs

"""The table of methods beside their twins: what it asks of a run, and what it reads out of one."""

import pytest

from agentrl.config.load import load_config
from agentrl.config.method_table import OTHER, read_table, rows
from agentrl.evaluation.interval import IntervalEstimate
from benchmarks.commands import QUICKSTART
from benchmarks.method_rows import ROWS, SITUATIONS
from benchmarks.methods import (
    TWIN,
    BudgetSpent,
    Cell,
    Comparison,
    CurvePoint,
    MethodRun,
    RunMeter,
    compare,
    count_sampled,
    judge,
)


def run(name: str, *points: tuple[int, float], cpu_s: float = 1.0) -> MethodRun:
    curve = tuple(
        CurvePoint(step=at, tokens=tokens, reward=reward)
        for at, (tokens, reward) in enumerate([(0, 0.4), *points])
    )
    cell = Cell(name=name, situation="fresh")
    return MethodRun(cell=cell, curve=curve, tasks=100, cpu_s=cpu_s, age=0.0)


def test_every_method_that_is_no_default_has_a_row() -> None:
    names = {
        f"{slot}.{row[0]}"
        for slot, entries in read_table().items()
        if slot != OTHER
        for row in rows(entries)
    }
    assert {name for name in names if not name.endswith("(default)")} <= set(ROWS)


@pytest.mark.parametrize("name", [*ROWS, *SITUATIONS])
def test_every_row_and_every_twin_is_a_config_that_loads(name: str) -> None:
    situation = ROWS[name].situation if name in ROWS else name
    cell = Cell(name=name if name in ROWS else TWIN, situation=situation)
    config = load_config(QUICKSTART, {**cell.keys(steps=12), "policy.path": "policy"})
    assert config.run.name == cell.file_name


def test_what_was_dropped_counts_and_what_stood_of_a_draft_does_not() -> None:
    assert count_sampled({"rollout/sampled_tokens": 80, "drafts/saved_tokens": 30}) == 50
    wasted = {"curation/tokens_wasted": 60, "curation/tokens_wasted_fraction": 0.5}
    assert count_sampled({"rollout/sampled_tokens": 80, **wasted}) == 120


def test_a_run_ends_at_the_evaluation_that_finds_its_budget_spent() -> None:
    meter = RunMeter(budget=150)
    meter.add_step({"rollout/sampled_tokens": 100, "heldout/pass@1": 0.5}, 1.0)
    meter.add_step({"rollout/sampled_tokens": 100}, 1.0)
    with pytest.raises(BudgetSpent):
        meter.add_step({"rollout/sampled_tokens": 100, "heldout/pass@1": 0.6}, 1.0)
    assert [point.tokens for point in meter.points] == [100, 300]


def test_a_method_is_held_against_its_twin_at_the_same_tokens() -> None:
    twin = run(TWIN, (100, 0.7), (200, 0.85), cpu_s=2.0)
    own = run("advantage.rloo", (90, 0.85), (190, 0.95), (400, 1.0), cpu_s=3.0)
    (found,) = compare([own, twin])
    assert found == Comparison(runs=(own,), twins=(twin,))
    assert (found.bar, found.token_ratio, found.cpu_ratio) == (0.8, 0.45, 1.5)
    assert (found.estimate.mean, found.twin_estimate.mean) == (0.95, 0.85)


def test_intervals_that_overlap_say_nothing() -> None:
    low, middle, high = (
        IntervalEstimate(mean=at, low=at - 0.1, high=at + 0.1, tasks=9) for at in (0.2, 0.35, 0.5)
    )
    assert judge(low, middle) == judge(middle, high) == "no difference seen"
    assert (judge(high, low), judge(low, high)) == ("better", "worse")

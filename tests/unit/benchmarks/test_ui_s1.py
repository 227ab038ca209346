"""What the benchmark of UI-S1 on desktops makes of two evaluations. Nothing is started here.

Mutants seen caught: A less B; tasks of one side alone; shares taken for passes, or passes
for shares, in an interval or in a difference; ends changed; no sign; deadlines below those of a
desktop; more episodes than desktops; other templates than the config's command records.
"""

import json
import re

import pytest

from agentrl.config.load import load_config
from agentrl.evaluation.interval import IntervalEstimate
from benchmarks.ui_s1 import CASES, difference, estimate, shown


def figures(*shares: float) -> dict[str, dict[str, float]]:
    return {f"{i}": {"sop_score": x, "passed": float(x == 1)} for i, x in enumerate(shares)}


def test_a_difference_is_paired_and_leaves_out_what_one_has_not_played() -> None:
    before, after = figures(0.25, 0.5, 1.0, 0.0), figures(0.5, 0.75, 1.0)
    found = difference(before, after, "sop_score")
    assert (found.tasks, found.mean) == (3, pytest.approx(1 / 6))
    # Student's t of two degrees of freedom, 4.3027, times the deviation over the root of three.
    half = 4.302653 * (((1 / 12) ** 2 * 2 + (1 / 6) ** 2) / 2) ** 0.5 / 3**0.5
    assert (found.low, found.high) == pytest.approx((1 / 6 - half, 1 / 6 + half))


def test_a_difference_of_passes_keeps_a_width_where_no_task_differs() -> None:
    same = difference(figures(1.0, 0.0, 1.0), figures(1.0, 0.0, 1.0), "passed")
    assert same.low < same.mean == 0.0 < same.high
    shares = difference(figures(1.0, 0.0, 1.0), figures(1.0, 0.0, 1.0), "sop_score")
    assert (shares.low, shares.high) == (0.0, 0.0)


def test_passes_are_single_trials_and_shares_are_not() -> None:
    """Shares that differ little between tasks say more than so many coins would."""
    evaluated = figures(0.5, 0.5, 0.75, 0.5, 1.0)
    passed, score = estimate(evaluated, "passed"), estimate(evaluated, "sop_score")
    assert (passed.mean, score.mean) == pytest.approx((0.2, 0.65))
    assert score.high - score.low < passed.high - passed.low
    assert (passed.low, passed.high) == pytest.approx((0.023, 0.726), abs=0.02)


def test_a_difference_is_shown_with_its_sign() -> None:
    told = shown(difference(figures(0.5, 0.5), figures(0.5, 0.5), "sop_score"), "+")
    assert told == "+0.000 [+0.000, +0.000]"
    assert shown(IntervalEstimate(mean=0.5, low=0.25, high=0.75, tasks=2)) == "0.500 [0.250, 0.750]"


def test_desktops_have_the_time_they_are_given_and_no_episode_waits_for_one() -> None:
    case = CASES["desktops"]
    live = load_config(case.config, [f"{key}={value}" for key, value in case.rollout.items()])
    desktop = case.env_kwargs["desktop"]
    assert live.rollout.reset_s > desktop["open_s"]
    assert live.rollout.step_s > desktop["call_s"]
    assert live.rollout.concurrency < desktop["desktops"]


@pytest.mark.parametrize("name", CASES)
def test_the_command_in_the_config_records_what_the_config_reads(name: str) -> None:
    case = CASES[name]
    text = case.config.read_text(encoding="utf-8")
    command = " ".join(re.findall(r"^#   (?:  )?(.*?) ?\\?$", text, flags=re.MULTILINE))
    config = load_config(case.config, [])
    assert f"agentrl record {case.env} {config.env.kwargs['recordings']} " in command
    (kwargs,) = re.findall(r"--kwargs '(.*?)'", command)
    assert json.loads(kwargs).items() <= case.env_kwargs.items()
    assert config.env.kwargs["heldout_patches"] == -1, "or there is no accuracy of the steps"

"""Signs in the metrics: each planted sign is found, none in a healthy run, and said once.

Seen caught: a first window that moves along, the latest evaluation compared with the one before
instead of the best, reward ignored in `length_bias` and in `heldout_falls`, a sign said at every
step, `stop` that only warns.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agentrl.config.advice import read_situations
from agentrl.config.run import DiagnosticsSection
from agentrl.errors import LearnError
from agentrl.metrics.diagnostics import (
    RULES,
    RunDiagnostics,
    diagnose,
    find_memorised,
)

LIMITS = DiagnosticsSection(window=5)


Figure = Callable[[float], float] | float
"""A function of the progress from 0 to 1, or a constant."""

HEALTHY: dict[str, Figure] = {
    "reward/mean": lambda x: 0.2 + 0.6 * x,
    "advantage/zero_fraction": lambda x: 0.3 + 0.3 * x,
    "entropy": lambda x: 1.2 - 0.8 * x,
    "lengths/sampled_mean": lambda x: 100 + 150 * x,
}
LEVEL: dict[str, Figure] = {"reward/mean": 0.4, "lengths/sampled_mean": 100}
SIGNS: dict[str, dict[str, Figure]] = {
    "zero_advantage": {"advantage/zero_fraction": lambda x: 0.5 + 0.5 * x},
    "entropy_collapse": {"entropy": lambda x: 1.2 * 0.01**x},
    "length_bias": {"lengths/sampled_mean": lambda x: 100 + 200 * x, "reward/mean": 0.4},
    "heldout_falls": {"heldout/reward": lambda x: 0.5 + x - 1.3 * x * x},
    "template_collapse": {**LEVEL, "likeness/other_task": lambda x: 0.2 + 0.75 * x},
    "component_falls": {"component/right": lambda x: 0.6 - 0.5 * x, "component/style": 0.1},
}
LONGER: dict[str, Figure] = {"lengths/sampled_mean": lambda x: 100 + 900 * x}
BOTH_FALL: dict[str, Figure] = {
    "heldout/reward": lambda x: 0.8 - 0.5 * x,
    "reward/mean": lambda x: 0.6 - 0.4 * x,
    "lengths/sampled_mean": 100,
}
RISES: dict[str, Figure] = {"heldout/reward": lambda x: 0.5 + 0.3 * x}
NOTHING: dict[str, Figure] = {}
NO_SIGN: dict[str, dict[str, Figure]] = {
    "a template that earns": {"likeness/other_task": lambda x: 0.2 + 0.75 * x},
    "alike from the beginning": {**LEVEL, "likeness/other_task": 0.9},
    "alike, and not too much": {**LEVEL, "likeness/other_task": lambda x: 0.79 * x},
    "a part that falls with the reward": {
        "component/right": lambda x: 0.6 - 0.5 * x,
        "reward/mean": lambda x: 0.6 - 0.5 * x,
        "lengths/sampled_mean": 100,
    },
    "a part that falls a little": {"component/right": lambda x: 0.6 - 0.2 * x},
    "a cost that grows": {"component/cost": lambda x: -0.1 - 0.5 * x},
    "no part of the reward": {"rollout/tool_calls_mean": lambda x: 5 - 4.9 * x},
}
TEACHES_NOTHING: dict[str, Figure] = {"advantage/zero_fraction": 1.0}


def run(figures: Mapping[str, Figure] = NOTHING, steps: int = 30) -> list[dict[str, Any]]:
    """Return a healthy run, but for these figures."""
    return [
        {
            name: figure(step / (steps - 1)) if callable(figure) else figure
            for name, figure in (HEALTHY | dict(figures)).items()
        }
        for step in range(steps)
    ]


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [*diagnose(lines, LIMITS)]


def test_a_healthy_run_has_no_sign() -> None:
    assert names(run()) == []
    assert names([]) == []
    assert names([{}] * 40) == []
    assert names([dict.fromkeys(line) for line in run()]) == []


@pytest.mark.parametrize("name", SIGNS)
def test_a_planted_sign_is_found_with_advice(name: str) -> None:
    lines = run(SIGNS[name])
    found = diagnose(lines, LIMITS)
    assert [*found] == [name]
    assert len(found[name]) > 80
    assert names(lines[:4]) == [], "too few steps to tell"


@pytest.mark.parametrize("case", NO_SIGN)
def test_what_is_like_a_sign_and_is_none(case: str) -> None:
    assert names(run(NO_SIGN[case])) == []


def test_longer_and_better_is_no_bias() -> None:
    assert names(run(LONGER)) == []


def test_a_held_out_fall_with_a_training_fall_is_something_else() -> None:
    assert names(run(BOTH_FALL)) == []
    assert names(run(RISES)) == []


def test_the_best_evaluation_is_what_counts() -> None:
    """Three small steps down from the best, none of them an alarm alone."""
    lines = run(steps=20)
    for at, reward in ((4, 0.7), (9, 0.65), (14, 0.6), (19, 0.55)):
        lines[at]["heldout/reward"] = reward
    assert names(lines[:15]) == []
    assert names(lines) == ["heldout_falls"]


def test_a_watch_says_each_sign_once() -> None:
    said: list[str] = []
    watch = RunDiagnostics(LIMITS, say=said.append)
    for line in run(TEACHES_NOTHING, 40):
        watch.look(line)
    assert len(said) == 1
    assert said[0].startswith("zero_advantage: 100% of the advantages")


def test_a_warm_start_that_learnt_by_heart_is_named_as_the_cause() -> None:
    """Few demonstrations shown often until nothing is left to learn; a mutant that looks at the
    loss alone is caught by a warm start that has generalised."""
    text = find_memorised(demonstrations=28, times=685.7, loss=0.0003)
    assert text is not None
    assert text.startswith("28 demonstrations, loss 0.0003: memorised. Each was shown 686")
    assert find_memorised(demonstrations=10_000, times=2.9, loss=0.0003) is None
    assert find_memorised(demonstrations=28, times=685.7, loss=0.2) is None
    said: list[str] = []
    watch = RunDiagnostics(LIMITS, say=said.append, memorised=text)
    for line in run(TEACHES_NOTHING, 40):
        watch.look(line)
    (sign,) = said
    assert "memorised" in sign
    assert "easier or harder" not in sign


def test_a_watch_can_stop_the_run() -> None:
    watch = RunDiagnostics(DiagnosticsSection(window=5, action="stop"), say=lambda text: None)
    *before, last = run(TEACHES_NOTHING, 5)
    for line in before:
        watch.look(line)
    with pytest.raises(LearnError, match=r"zero_advantage.*diagnostics\.action: warn"):
        watch.look(last)


def test_every_rule_has_a_planted_sign() -> None:
    assert RULES.keys() == SIGNS.keys()


def test_situations_that_a_sign_names_exist() -> None:
    texts = [diagnose(run(figures), LIMITS)[name] for name, figures in SIGNS.items()]
    named = {*re.findall(r"agentrl methods --for ([a-z-]+)", " ".join(texts))}
    assert {"sparse-reward", "early-certainty"} <= named <= read_situations().keys()

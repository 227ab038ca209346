"""Comparing two evaluations: golden numbers, power, coverage, flips, and what cannot be paired.

Seen caught: A less B, McNemar one-sided and short of a term, no pseudo-pairs, pseudo-pairs of a
whole task each, a pair with a failure counted as lost, other evaluations paired all the same, half
of the unmatched counted, gained and lost swapped, Newcombe's ends mixed up, another threshold.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.app import main
from agentrl.errors import ConfigError
from agentrl.evaluation.compare import (
    TaskFlip,
    compare,
    mcnemar,
    sign_flip_p,
    subtract_paired,
    subtract_unpaired,
)
from agentrl.evaluation.interval import IntervalEstimate, rate_estimate
from agentrl.evaluation.reports import StoredReport, compare_reports, read_report
from agentrl.evaluation.sample import EvaluationSample
from agentrl.evaluation.scores import ScoringRules

RULES = ScoringRules(k=(1,), threshold=1.0, confidence=0.95)


def played(rewards: Sequence[Sequence[float | None]]) -> list[EvaluationSample]:
    """Return the samples of tasks `t0`, `t1`, ... with these rewards."""
    return [
        EvaluationSample(
            task=f"t{task}",
            fingerprint=f"f{task}",
            sample=sample,
            outcome="finished" if reward is not None else "failed_tool",
            reward=reward,
        )
        for task, own in enumerate(rewards)
        for sample, reward in enumerate(own)
    ]


def once(passed: Sequence[bool | int]) -> list[EvaluationSample]:
    return played([[float(one)] for one in passed])


def test_golden_of_one_sample_per_task() -> None:
    """8 tasks: both pass 3, A alone 1, B alone 3, neither 1. McNemar of 3 against 1 is 5/8."""
    a = once([1, 1, 1, 1, 0, 0, 0, 0])
    b = once([1, 1, 1, 0, 1, 1, 1, 0])
    found = compare(a, b, rules=RULES)
    assert (found.a.mean, found.b.mean, found.difference.mean) == (0.5, 0.75, 0.25)
    assert (found.test, found.p) == ("McNemar", 2 * (1 + 4) / 16)
    assert found.lost == (TaskFlip(task="t3", a=1, b=0),)
    assert [flip.task for flip in found.gained] == ["t4", "t5", "t6"]
    assert (found.pairs, found.failed, found.unmatched) == (8, 0, 0)
    # Half a pair in each cell: sum 2 of 10, squares 4 + 1, t(8) = 2.306004.
    half = 2.306004 * math.sqrt((5 / 10 - 0.2**2) / 10)
    assert (found.difference.low, found.difference.high) == pytest.approx(
        (0.2 - half, 0.2 + half), abs=1e-6
    )


def test_turned_round_everything_changes_sign() -> None:
    a, b = once([1, 1, 0, 0, 0]), once([1, 0, 1, 1, 0])
    one, other = compare(a, b, rules=RULES), compare(b, a, rules=RULES)
    assert one.difference.mean == -other.difference.mean
    assert (one.difference.low, one.difference.high) == pytest.approx(
        (-other.difference.high, -other.difference.low)
    )
    assert (one.unpaired.low, one.unpaired.high) == pytest.approx(
        (-other.unpaired.high, -other.unpaired.low)
    )
    assert one.p == other.p
    assert {f.task for f in one.gained} == {f.task for f in other.lost}


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (6, 0, 1 / 32), (0, 6, 1 / 32), (9, 1, 22 / 1024)],
)
def test_mcnemar_golden(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == p


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_a_valid_test(gained: int, lost: int) -> None:
    """Under the null a p-value is at most alpha no more often than alpha."""
    p, differ = mcnemar(gained, lost), gained + lost
    as_small = sum(math.comb(differ, i) for i in range(differ + 1) if mcnemar(i, differ - i) <= p)
    assert as_small / 2**differ <= p + 1e-12


def test_a_planted_difference_of_five_points_shows_only_when_paired() -> None:
    """Of 400 tasks A passes 200. B passes 25 more and loses 5: five points."""
    a = [1] * 200 + [0] * 200
    b = [0] * 5 + [1] * 195 + [1] * 25 + [0] * 175
    found = compare(once(a), once(b), rules=RULES)
    assert found.difference.mean == pytest.approx(0.05)
    assert found.difference.low > 0.02
    assert found.p < 0.001
    assert found.unpaired.mean == pytest.approx(0.05)
    assert found.unpaired.low < 0 < found.unpaired.high
    one, other = (rate_estimate([float(x) for x in xs], trials=[1] * 400) for xs in (a, b))
    assert one.high > other.low, "the two intervals overlap"


def test_a_difference_between_tasks_of_several_samples() -> None:
    """Every task half passes for A and three quarters for B, give or take: the tasks agree."""
    a = played([[1, 1, 0, 0]] * 30 + [[1, 0, 0, 0]] * 30)
    b = played([[1, 1, 1, 0]] * 30 + [[0, 1, 0, 0]] * 30)
    found = compare(a, b, rules=RULES)
    assert (found.test, found.difference.mean) == ("permutation", 0.125)
    assert found.difference.low > 0.08
    assert found.p < 0.001
    assert (len(found.gained), len(found.lost)) == (30, 0)
    assert found.gained[0] == TaskFlip(task="t0", a=0.5, b=0.75)


def test_equal_policies_keep_a_width() -> None:
    same = once([1, 0, 1, 0, 1])
    found = compare(same, same, rules=RULES)
    assert found.difference.mean == 0
    assert found.difference.low < -0.2
    assert found.difference.high > 0.2
    assert (found.p, found.gained, found.lost) == (1.0, (), ())


def test_bootstrap_intervals() -> None:
    a = played([[0, 1]] * 10 + [[0, 0]] * 10)
    b = played([[1, 1]] * 9 + [[0, 1]] + [[0, 0]] * 10)
    rules = ScoringRules(k=(1,), threshold=1.0, confidence=0.95, interval="bootstrap")
    found = compare(a, b, rules=rules)
    plain = compare(a, b, rules=RULES)
    assert found.difference != plain.difference
    assert found.difference.low > 0


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3))
def test_the_permutation_test_of_single_trajectories_is_mcnemar_s(
    gained: int, lost: int, same: int
) -> None:
    away = [1.0] * gained + [-1.0] * lost + [0.0] * same
    assert sign_flip_p(away) == pytest.approx(mcnemar(gained, lost))


def test_few_tasks_prove_little() -> None:
    """Kills: the bootstrap moved to mean 0, which is sure after one task of four samples."""
    assert sign_flip_p([0.25]) == 1.0
    assert sign_flip_p([0.5] * 5) == 2 / 2**5
    assert sign_flip_p([0.5, 0.25, -0.25]) == 0.75
    assert sign_flip_p([0.0] * 5) == 1.0
    assert sign_flip_p([0.5, -0.5, 0.25, -0.25]) == 1


def test_many_tasks_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [0.5] * 6 + [-0.25] * 4 + [0.25, -0.75]
    exact = sign_flip_p(away)
    monkeypatch.setattr("agentrl.evaluation.compare.EXACT_TASKS", 3)
    assert sign_flip_p(away) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p([0.5] * 40) == 1 / 20_001


def test_a_pair_that_broke_is_left_out_and_counted() -> None:
    a = played([[1.0], [None], [0.0], [1.0]])
    b = played([[1.0], [0.0], [1.0], [None]])
    found = compare(a, b, rules=RULES)
    assert (found.pairs, found.failed) == (2, 2)
    assert (found.a.mean, found.b.mean) == (0.5, 1)
    assert not found.lost
    with pytest.raises(ConfigError, match="every pair has a failed or missing one"):
        compare(played([[None]]), played([[1.0]]), rules=RULES)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (once([1, 1]), [], r"A has 2 tasks and B has 0, but none in common"),
        (once([1, 1, 0]), once([1, 1]), r"A has 1 tasks that B lacks.*--common"),
        (once([1, 1]), played([[1, 1], [1, 1]]), r"A has 2 trajectories of 2 tasks and B has 4"),
    ],
)
def test_what_cannot_be_paired_is_refused(
    a: list[EvaluationSample], b: list[EvaluationSample], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        compare(a, b, rules=RULES)


def test_common_compares_what_both_have() -> None:
    found = compare(once([1, 1, 0]), once([1, 0]), rules=RULES, common=True)
    assert (found.pairs, found.unmatched, found.difference.mean) == (2, 1, -0.5)


def test_a_task_that_is_there_twice_cannot_be_paired() -> None:
    twice = [*once([1]), *once([0])]
    with pytest.raises(ConfigError, match="2 trajectories of only 1 distinct"):
        compare(twice, once([1]), rules=RULES)


def test_the_threshold_says_what_passes() -> None:
    a, b = played([[0.4], [0.6]]), played([[0.7], [0.6]])
    strict = compare(a, b, rules=RULES)
    loose = compare(a, b, rules=ScoringRules(k=(1,), threshold=0.5, confidence=0.95))
    assert (strict.difference.mean, loose.difference.mean) == (0, 0.5)
    assert strict.reward.mean == loose.reward.mean == pytest.approx(0.15)


def test_a_threshold_that_is_no_number_is_refused(tmp_path: Path) -> None:
    report = read_report(stored(tmp_path / "a.json", once([1, 0])))
    with pytest.raises(ConfigError, match="threshold is nan, which no reward reaches"):
        compare_reports(report, report, threshold=math.nan)


def test_unpaired_is_newcombes_interval() -> None:
    """Newcombe 1998, table II (b): 9/10 against 3/10 is 0.1705 to 0.8090 by method 10."""
    one = IntervalEstimate(mean=0.3, low=0.10779, high=0.60322, tasks=10)
    other = IntervalEstimate(mean=0.9, low=0.59585, high=0.98213, tasks=10)
    found = subtract_unpaired(one, other)
    assert (found.low, found.high) == pytest.approx((0.1705, 0.8090), abs=2e-4)


@pytest.mark.parametrize(("tasks", "samples"), [(200, 1), (200, 4), (50, 4)])
@pytest.mark.parametrize(("rate", "gain"), [(0.5, 0.0), (0.5, 0.1), (0.1, 0.1), (0.8, 0.5)])
def test_paired_intervals_cover(tasks: int, samples: int, rate: float, gain: float) -> None:
    """Tasks differ in how often A passes; B passes a share `gain` of what is missing."""
    rng, hits, runs = np.random.default_rng(11), 0, 800
    for _ in range(runs):
        own = rng.beta(rate, 1 - rate, tasks)
        a = rng.binomial(samples, own) / samples
        b = rng.binomial(samples, own + (1 - own) * gain) / samples
        found = subtract_paired([*map(float, b - a)], trials=samples)
        hits += found.low <= (1 - rate) * gain <= found.high
    assert 0.93 <= hits / runs <= (0.985 if tasks == 50 else 0.975)


def stored(path: Path, samples: list[EvaluationSample], **about: object) -> Path:
    report = {
        "about": {"env": "demo/Sum-v0", "seed": 1, **about},
        "threshold": 1.0,
        "confidence": 0.9,
        "samples": [asdict(sample) for sample in samples],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report))
    return path


def test_reports_are_found_in_runs_and_folders(tmp_path: Path) -> None:
    samples = played([[1.0], [None]])
    stored(tmp_path / "run" / "evaluations" / "after.json", samples)
    stored(tmp_path / "run" / "evaluations" / "step-20.json", samples[:1])
    stored(tmp_path / "own" / "report.json", samples)
    assert read_report(tmp_path / "run").samples == tuple(samples)
    assert read_report(tmp_path / "run", "step-20").samples == tuple(samples[:1])
    assert read_report(tmp_path / "own").confidence == 0.9
    assert read_report(tmp_path / "own" / "report.json").about["env"] == "demo/Sum-v0"
    with pytest.raises(ConfigError, match=r"'before': its evaluations are after, step-20"):
        read_report(tmp_path / "run", "before")
    with pytest.raises(ConfigError, match="it holds no evaluation"):
        read_report(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"about": {}, "threshold": 1, "confidence": 1}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="is not an evaluation report"):
        read_report(tmp_path / "x.json")


def test_a_large_file_that_is_no_report_is_not_in_the_error(tmp_path: Path) -> None:
    """Mutant seen caught: the error as `repr`, which holds every byte of the file."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\xff" * 10_000)
    with pytest.raises(ConfigError, match=r"compared \(UnicodeDecodeError: ") as error:
        read_report(file)
    assert len(str(error.value)) < 500


def report(about: dict[str, object], threshold: float = 1.0) -> StoredReport:
    return StoredReport(
        path=Path("r.json"),
        about=about,
        threshold=threshold,
        confidence=0.9,
        samples=tuple(once([1, 0])),
    )


def test_reports_of_different_evaluations_are_refused() -> None:
    base: dict[str, object] = {"env": "x", "seed": 1}
    with pytest.raises(ConfigError, match=r"seed is 1 in A and 2 in B\. Repeat one evaluation"):
        compare_reports(report(base), report({**base, "seed": 2}))
    with pytest.raises(ConfigError, match="kwargs is None in A and 3 in B"):
        compare_reports(report(base), report({**base, "kwargs": 3}))
    with pytest.raises(ConfigError, match=r"threshold is 1 in A and 0\.5 in B"):
        compare_reports(report(base), report(base, 0.5))
    found = compare_reports(report(base), report(base, 0.5), threshold=0.2)
    assert (found.rules.threshold, found.rules.confidence) == (0.2, 0.9)


def test_rows_and_json() -> None:
    found = compare(once([1, 1, 0]), once([0, 1, 0]), rules=RULES)
    rows = {row[0]: row for row in found.rows()}
    assert rows["B - A"][1] == "-0.333"
    assert rows["p (McNemar)"][1] == "1"
    assert rows["tasks lost"][1] == "1"
    assert "failed pairs" not in rows
    made = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert made["lost"] == [{"task": "t0", "a": 1.0, "b": 0.0, "prompt": ""}]
    one = compare(once([1]), once([0]), rules=RULES)
    assert one.to_json()["reward"]["low"] is None
    assert {row[0]: row[2] for row in one.rows()}["reward, B - A"] == "needs two tasks"


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = stored(tmp_path / "a.json", once([1, 1, 0, 0]))
    b = stored(tmp_path / "b" / "report.json", once([1, 0, 1, 1])).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [*sys.path])
        shown, as_json = "", ""
        for flag in ("--no-json", "--json"):
            patch.setattr("sys.argv", ["agentrl", "compare", str(a), str(b), flag])
            with pytest.raises(SystemExit):
                main()
            shown, as_json = as_json, capsys.readouterr().out
    for text in (
        "B - A, unpaired",
        "+0.250",
        "McNemar",
        "gained",
        "t2",
        "lost",
        "t1",
        "agentrl view",
    ):
        assert text in shown
    assert json.loads(as_json)["difference"]["mean"] == 0.25

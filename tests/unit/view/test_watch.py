"""A frame of a run, live or over.

Mutants seen caught: silence counted from the newest look; a killed run called live; every outcome
counted as a failure.
"""

import io
import json
import os
import platform
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.view.frame import curve, frame, span
from agentrl.view.run_files import FileFaults, read_lock_owner
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import RunMonitor, RunStatus, phase_of, reward_curve, step_seconds
from benchmarks.made_run import MadeRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "made"
    return MadeRun(folder=place, groups=10, open_groups=1, size=4).make()


def standings(folder: Path, *times_s: float) -> list[RunStatus]:
    with RunReader(folder) as source:
        watch = RunMonitor(source)
        return [watch.look(now_s=now_s) for now_s in times_s]


def shown(standing: RunStatus) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(frame(standing))
    return captured.get()


def test_a_run_that_is_over(folder: Path) -> None:
    (standing,) = standings(folder, 0.0)
    assert (standing.phase, standing.step, standing.steps) == ("ended", 3, 3)
    assert standing.failures == {"tool": 2}
    assert standing.ended == 40
    assert standing.groups == {"trained": 10, "open": 1}
    assert standing.learning == pytest.approx(0.25)
    assert standing.left_s is None
    text = shown(standing)
    assert "2 tool, of 40 trajectories" in text
    assert "trains 25%, waits for groups 75%" in text
    assert "1.00 versions, at most 1" in text
    assert "4 left open" in text


def test_the_interval_is_over_groups() -> None:
    groups = [(1, 0.5), (2, 0.4), (2, 0.5), (2, 0.6)]
    ((_, one), (step, three)) = reward_curve(groups)
    assert (one.tasks, one.mean) == (1, 0.5)
    assert (step, three.tasks, three.mean) == (2, 3, pytest.approx(0.5))
    # Student's t with two degrees of freedom, times the standard error of 0.1 / sqrt(3).
    assert three.high - three.mean == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([], None),
        ([5.0], None),
        ([5.0, 8.0], 3.0),
        ([0.0, 4.0, 8.0, 36_000.0, 36_004.0, 36_008.0], 4.0),
        ([8.0, 5.0], 0.0),
    ],
)
def test_a_night_between_two_steps_is_no_pace(times: list[float], seconds: float | None) -> None:
    assert step_seconds(times) == seconds


def test_where_the_time_of_trajectories_went(folder: Path) -> None:
    (standing,) = standings(folder, 0.0)
    assert standing.shares is not None
    # Per group: 4 trajectories of 0.5 to 0.8 s, 7 sampled nodes of 0.2 s, 3 replies of 0.05 s.
    assert standing.shares.policy == pytest.approx(1.4 / 2.6)
    assert standing.shares.world == pytest.approx(0.15 / 2.6)
    assert standing.shares.other == pytest.approx(1 - 1.55 / 2.6)


def test_silence_is_counted_from_when_it_was_first_seen(folder: Path) -> None:
    first, second, third = standings(folder, 100.0, 130.0, 190.0)
    assert [one.quiet_s for one in first.flying] == [None] * 4
    assert [one.quiet_s for one in second.flying] == [30.0] * 4
    assert [one.quiet_s for one in third.flying] == [90.0] * 4
    assert "stuck" not in shown(second)
    assert shown(third).count("stuck") == 4


@pytest.mark.parametrize(
    ("owner", "phase"),
    [
        (None, "ended"),
        ("", "ended"),
        ({"pid": os.getpid(), "host": platform.node()}, "running"),
        ({"pid": 2**22 + 1, "host": platform.node()}, "killed"),
        ({"pid": 2**22 + 1, "host": "elsewhere"}, "running"),
    ],
)
def test_who_works_in_the_folder(tmp_path: Path, owner: object, phase: str) -> None:
    if owner is not None:
        (tmp_path / "lock").write_text(json.dumps(owner) if owner else "")
    assert phase_of(read_lock_owner(tmp_path, FileFaults())) == phase


def test_curves_and_spans() -> None:
    assert curve([0, 0.5, 1]) == "▁▅█"
    assert curve([2, 2]) == "▁▁"
    assert curve([]) == ""
    assert [span(s) for s in (1, 119.96, 120, 7199, 7200)] == [
        "1.0 s",
        "120.0 s",
        "2.0 min",
        "120.0 min",
        "2.0 h",
    ]


def test_the_command_prints_one_frame(folder: Path) -> None:
    result = CliRunner().invoke(app, ["watch", str(folder), "--once"])
    assert result.exit_code == 0, result.output
    assert "step 3 of 3" in result.output

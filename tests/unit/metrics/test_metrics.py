"""The numbers of a run on disk.

Mutants seen caught: no flush; NaN as NaN; a torn line glued to the next; truncation that keeps the
step after; the counter not counting; TensorBoard without purge_step; a sink that is asked again
after it failed; one that keeps the next from being closed.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.errors import ConfigError
from agentrl.metrics.mlflow_sink import flatten_config, to_mlflow_name
from agentrl.metrics.tensorboard_sink import TensorBoardSink
from agentrl.metrics.writer import NOT_FINITE, MetricsWriter, read_metrics


def figures(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if k != "time"} for line in read_metrics(folder)]


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"reward/mean": 0.5, "n": 3})
        assert figures(tmp_path) == [{"step": 1, "reward/mean": 0.5, "n": 3.0}]
        assert read_metrics(tmp_path)[0]["time"] > 0
        writer.write(2, {})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert not (tmp_path / "tensorboard").exists()


def test_what_json_cannot_say_is_null_and_counted(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"loss": float("nan"), "ratio": float("-inf"), "fine": 1.0})
        writer.write(2, {"loss": 1.0})
        assert writer.not_finite == 2
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert figures(tmp_path) == [
        {"step": 1, "loss": None, "ratio": None, "fine": 1.0, NOT_FINITE: 2},
        {"step": 2, "loss": 1.0},
    ]


def test_a_figure_cannot_take_the_place_of_the_step(tmp_path: Path) -> None:
    with (
        MetricsWriter(tmp_path) as writer,
        pytest.raises(ValueError, match=r"\['step'\] are reserved keys; rename the metric"),
    ):
        writer.write(1, {"step": 2.0})


def test_a_resumed_run_forgets_the_steps_it_does_again(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"x": step})
    with MetricsWriter(tmp_path) as writer:
        writer.truncate_after(2)
        writer.write(3, {"x": 30.0})
    assert figures(tmp_path) == [
        {"step": 1, "x": 1.0},
        {"step": 2, "x": 2.0},
        {"step": 3, "x": 30.0},
    ]


def test_a_line_torn_by_a_crash_is_no_line(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"x": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "x": 0.')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    with MetricsWriter(tmp_path) as writer:
        writer.write(2, {"x": 2.0})
    assert figures(tmp_path) == [{"step": 1, "x": 1.0}, {"step": 2, "x": 2.0}]


@pytest.mark.parametrize(
    "line", [b"what", b"\xff", b"[2]", b'{"step": \xe9}', b"{}", b'{"step":"2"}']
)
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2 is no line of metrics"):
        read_metrics(tmp_path)
    with pytest.raises(ConfigError, match="holds no run that has completed a step"):
        read_metrics(tmp_path / "elsewhere")


@given(st.dictionaries(st.text(), st.floats(), max_size=5))
def test_every_line_is_strict_json(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, float]
) -> None:
    line = {k: v for k, v in line.items() if k not in {"step", "time", NOT_FINITE}}
    folder = tmp_path_factory.mktemp("metrics")
    with MetricsWriter(folder) as writer:
        writer.write(7, line)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (text,) = (folder / "metrics.jsonl").read_text().splitlines()
    found = json.loads(text, parse_constant=refuse)
    assert {k: v for k, v in found.items() if k in line and v is not None} == {
        k: v for k, v in line.items() if abs(v) < float("inf")
    }


def test_tensorboard_shows_the_same_and_forgets_the_same(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, sinks=[TensorBoardSink(tmp_path)]) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": step, "bad": float("nan")})
    with MetricsWriter(tmp_path, sinks=[TensorBoardSink(tmp_path)]) as writer:
        writer.truncate_after(1)
        writer.write(2, {"loss": 20.0})
        writer.close()
        writer.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True)
    board.Reload()
    assert board.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [(1, 1.0), (2, 20.0)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_board_that_fails_is_a_sink_that_fails(tmp_path: Path) -> None:
    """Kills: a board that ends the run, and leaves other places open."""
    said: list[str] = []
    lasts = FailingSink(99)
    sinks = (TensorBoardSink(tmp_path), lasts)
    with MetricsWriter(tmp_path, sinks=sinks, say=said.append) as writer:
        writer.write(1, {"a": 1.0, "half \ud800": 1.0})
        (tmp_path / "tensorboard").rename(tmp_path / "gone")
        (tmp_path / "tensorboard").write_text("x")
        deadline_s = time.monotonic() + 60
        step = 1
        while not said and time.monotonic() < deadline_s:
            step += 1
            writer.write(step, {"a": 1.0})
            time.sleep(0.05)
    (text,) = said
    assert text.startswith("metrics.tensorboard failed (")
    assert lasts.steps == [line["step"] for line in read_metrics(tmp_path)] == [*range(1, step + 1)]
    assert lasts.closed == 1


def test_a_board_that_cannot_be_opened_says_so_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("x")
    with pytest.raises(ConfigError, match=r"tensorboard cannot be made .*metrics\.tensorboard to"):
        TensorBoardSink(tmp_path)


class FailingSink:
    """A place that takes some steps, and then none."""

    key = "metrics.elsewhere"

    def __init__(self, taken: int, *, closes: bool = True) -> None:
        self.steps: list[int] = []
        self.closed = 0
        self._taken = taken
        self._closes = closes

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.steps.append(step)
        if len(self.steps) > self._taken:
            raise OSError("gone")

    def close(self) -> None:
        self.closed += 1
        if not self._closes:
            raise TimeoutError("late")


def test_a_sink_that_fails_is_named_once_and_the_run_goes_on(tmp_path: Path) -> None:
    fails, lasts, sticks = FailingSink(1), FailingSink(9), FailingSink(9, closes=False)
    said: list[str] = []
    sinks = (fails, lasts, sticks)
    with MetricsWriter(tmp_path, sinks=sinks, say=said.append) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"x": step})
        writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert (fails.steps, lasts.steps, sticks.steps) == ([1, 2], [1, 2, 3], [1, 2, 3])
    assert (fails.closed, lasts.closed, sticks.closed) == (1, 1, 1)
    assert said == [
        "metrics.elsewhere failed (OSError: gone): the run goes on without it, and metrics.jsonl "
        "has every step",
        "metrics.elsewhere failed (TimeoutError: late): the run goes on without it, and "
        "metrics.jsonl has every step",
    ]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("reward/mean", "reward/mean"),
        ("heldout/pass@1", "heldout/pass_1"),
        ("tools//run:failed", "tools/run_failed"),
        ("../up", "up"),
        ("a/b/../c/", "a/c"),
        ("/", "_"),
    ],
)
def test_names_as_mlflow_allows_them(name: str, allowed: str) -> None:
    assert to_mlflow_name(name) == allowed


@given(st.text())
def test_every_name_becomes_one_that_mlflow_allows(name: str) -> None:
    allowed = to_mlflow_name(name)
    assert 0 < len(allowed) <= 250
    assert to_mlflow_name(allowed) == allowed
    assert not allowed.startswith(("/", "."))


def test_a_config_becomes_one_level_of_text() -> None:
    config = {"run": {"name": "a", "steps": 3, "seeds": [1, 2]}, "env": {"kwargs": {}}, "x": None}
    assert dict(flatten_config(config)) == {
        "run.name": "a",
        "run.steps": "3",
        "run.seeds": "[1, 2]",
        "env.kwargs": "{}",
        "x": "null",
    }
    assert len(dict(flatten_config({"system": "a" * 9000}))["system"]) == 6000

"""Hand-edited files of a run: each invalid value is reported, and the rest is shown.

Mutants seen caught: a line without a step kept; true taken for 1; NaN left to the page; the first
fault of a key replaced by the last; a family without scores ending the whole table; pid 0 and -1
asked for; the list of faults without an end.
"""

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.errors import ConfigError
from agentrl.view.document import build_index
from agentrl.view.frame import frame
from agentrl.view.live import build_live_state
from agentrl.view.run_files import SHOWN_FAULTS, FileFaults
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import RunMonitor, RunStatus
from benchmarks.made_run import MadeRun

HOST = platform.node()
ESTIMATE = {"mean": 0.5, "low": None, "high": 0.75, "tasks": 6}
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MadeRun(folder=tmp_path_factory.mktemp("runs") / "made", groups=2, size=2).make()


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def read_index(folder: Path) -> dict[str, Any]:
    with RunReader(folder, environ={}) as source:
        faults = FileFaults()
        source.read_decisions(faults)
        index = build_index(source, [], {}, [], name="run", faults=faults)
    json.dumps(index, allow_nan=False)
    return index


def read_status(folder: Path) -> RunStatus:
    with RunReader(folder, environ={}) as source:
        status = RunMonitor(source).look(now_s=0.0)
    json.dumps(build_live_state(status), allow_nan=False)
    frame(status)
    return status


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "the line is not a JSON object (it is a list); it is left out"),
        (DEEP, "the line is not a JSON object (it is nested too deep); it is left out"),
        ('{"time": 2}', "step is missing, expected a whole number; the line is left out"),
        ('{"step": "2"}', 'step is "2", expected a whole number; the line is left out'),
        ('{"step": true}', "step is true, expected a whole number; the line is left out"),
        ('{"step": NaN}', "step is NaN, expected a whole number; the line is left out"),
        ('{"step": -1}', "step is -1, expected a whole number; the line is left out"),
        ('{"step": 2}', "time is missing, expected seconds"),
        (
            '{"step": 2, "time": "x"}',
            'time is "x", expected a finite number or null; it is left out',
        ),
        (
            '{"step": 2, "time": 2, "entropy": NaN}',
            "entropy is NaN, expected a finite number or null; it is left out",
        ),
        (
            '{"step": 2, "time": 2, "seconds/learn": [1]}',
            "seconds/learn is a list, expected a finite number or null; it is left out",
        ),
        (
            '{"step": 2, "time": 2, "age/mean": false}',
            "age/mean is false, expected a finite number or null; it is left out",
        ),
        (
            f'{{"step": 2, "time": 2, "entropy": 1{"0" * 400}}}',
            f"entropy is 1{'0' * 38}…, expected a finite number or null; it is left out",
        ),
    ],
)
def test_an_invalid_metric_is_reported_and_the_others_are_shown(
    run: Path, line: str, problem: str
) -> None:
    good = '{"step": 3, "time": 3.0, "entropy": 0.25, "seconds/learn": null}'
    (run / "metrics.jsonl").write_text(f"{line}\n{good}\n")
    index, status = read_index(run), read_status(run)
    assert index["run"]["faults"] == [f"metrics.jsonl:1: {problem}"] == list(status.faults)
    assert index["metrics"]["step"][-1] == status.step == 3
    assert index["metrics"]["entropy"][-1] == status.figures["entropy"] == 0.25
    assert len(index["metrics"]["step"]) == 1 + ("line" not in problem)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ("3", ": is 3, expected a JSON object; it is left out"),
        (DEEP, ": cannot be read ("),
        ("\ufffd{", ": cannot be read ("),
        ({"pass@1": ESTIMATE}, ": confidence is missing, expected a number; intervals are"),
        ({"tags": [1]}, ": tags is a list, expected scores by family; they are left out"),
        ({"tags": {"a": 3}}, ": tags.a is 3, expected scores; the family is left out"),
        ({"reward": [0.5]}, ": reward is a list, expected an estimate or null; it is left out"),
        (
            {"reward": {**ESTIMATE, "mean": float("nan")}},
            ": reward.mean is NaN, expected a number; reward is left out",
        ),
        (
            {"reward": {"low": 0, "high": 1, "tasks": 6}},
            ": reward.mean is missing, expected a number; reward is left out",
        ),
        (
            {"tags": {"b": {"pass@1": {**ESTIMATE, "high": "1"}}}},
            ': tags.b.pass@1.high is "1", expected a number; tags.b.pass@1 is left out',
        ),
    ],
)
def test_an_invalid_score_is_reported_and_the_others_are_shown(
    run: Path, report: str | dict[str, Any], problem: str
) -> None:
    if isinstance(report, dict):
        rest = {"pass@1": ESTIMATE} if "pass@1" in report else {"confidence": 0.9}
        report = json.dumps({"pass@1": ESTIMATE, **rest, **report})
    (run / "report.json").write_text(report)
    index = read_index(run)
    (fault,) = index["run"]["faults"]
    assert fault.startswith(f"report.json{problem}")
    if report.startswith("{"):
        assert index["run"]["evaluation"]["overall"] == {"pass@1": ESTIMATE}
        assert "a" not in index["run"]["evaluation"]["families"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("summary.json", "[1]", "summary.json: is a list, expected a JSON object; it is left out"),
        (
            "summary.json",
            '{"before": 3, "after": {"pass@1": 0.5, "ci95": [0.25, 1]}}',
            "summary.json: before is 3, expected scores; they are left out",
        ),
        (
            "summary.json",
            '{"before": {"pass@1": "x"}, "after": {"pass@1": 0.5, "ci95": [0.25, 1]}}',
            'summary.json: before.pass@1 is "x", expected a number or null; it is left out',
        ),
        (
            "summary.json",
            '{"before": {"pass@1": 0.5, "ci95": ["a", 1]}, "after": null}',
            "summary.json: before.ci95 is a list, expected two numbers; it is left out",
        ),
        (
            "environment.json",
            '{"cpu": 1}',
            "environment.json: is an object, expected a list; it is left out",
        ),
        (
            "environment.json",
            "[NaN]",
            "environment.json: cannot be read (a number in the JSON is not finite (NaN), which "
            "JSON does not support; write a finite number or null); it is left out",
        ),
    ],
)
def test_an_invalid_fact_is_reported_and_the_others_are_shown(
    run: Path, name: str, text: str, problem: str
) -> None:
    (run / name).write_text(text)
    index = read_index(run)
    assert index["run"]["faults"] == [problem]
    if '"after": {' in text:
        assert index["run"]["summary"] == {"after": {"pass@1": 0.5, "ci95": [0.25, 1]}}
    assert index["metrics"]["step"] == [1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "is a list, expected a JSON object; it is left out"),
        ("{}", "host is missing, expected a machine's name; the run is shown as ended"),
        (
            json.dumps({"host": HOST}),
            "pid is missing, expected a process id; the run is shown as ended",
        ),
        *(
            (
                json.dumps({"host": HOST, "pid": pid}),
                f"pid is {json.dumps(pid)}, expected a process id; the run is shown as ended",
            )
            for pid in ("x", 0, -1, True, 10**12)
        ),
    ],
)
def test_an_invalid_lock_is_reported_and_the_run_is_shown(
    run: Path, text: str, problem: str
) -> None:
    (run / "lock").write_text(text)
    status = read_status(run)
    lock_line = f"lock: {problem}"
    assert (status.phase, status.step, status.faults) == ("ended", 1, [lock_line])


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff", DEEP.encode()])
def test_a_lock_without_a_signature_is_no_fault_and_broken_text_is(run: Path, data: bytes) -> None:
    (run / "lock").write_bytes(data)
    status = read_status(run)
    assert status.phase == "ended"
    assert bool(status.faults) == bool(data.strip())


def test_the_faults_of_one_key_are_one_line(run: Path) -> None:
    lines = [{"step": step, "time": 1.0, "entropy": [step]} for step in range(1, 1002)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_index(run)["run"]["faults"] == [
        "metrics.jsonl:1: entropy is a list, expected a finite number or null; it is left out "
        "(so do 1,000 more lines)"
    ]


def test_many_faults_are_counted_and_hide_secrets() -> None:
    faults = FileFaults()
    for number in range(50):
        faults.add("metrics.jsonl", f"key{number}", "is wrong")
    lines = faults.lines(lambda text: text.replace("key0", "hidden"))
    assert len(lines) == SHOWN_FAULTS
    assert lines[0] == "metrics.jsonl: hidden is wrong"
    assert lines[-1] == "31 more keys of these files have invalid values"


@pytest.mark.parametrize("data", [b"3\n", b"\xff\n"])
def test_a_broken_log_of_branches_is_reported(run: Path, data: bytes) -> None:
    (run / "branches.jsonl").write_bytes(data)
    (fault,) = read_index(run)["run"]["faults"]
    assert fault.startswith("branches.jsonl: no decision about branches is shown: ")
    assert fault.endswith("delete this line")


@pytest.mark.parametrize(
    ("name", "text"),
    [("branches.jsonl", ""), ("credit/00000001.credit", ""), ("policy/tokenizer.json", DEEP)],
)
def test_the_page_is_written_without_a_file_that_cannot_be_read(
    run: Path, tmp_path: Path, name: str, text: str
) -> None:
    """Mutants seen caught: a reader's `OSError` taken for one of the page, which was then said not
    to be writable; a tokenizer nested too deep."""
    (run / name).unlink()
    if text:
        (run / name).write_text(text)
    else:
        (run / name).mkdir()  # whoever is root may read any file
    page = tmp_path / "run.html"
    result = CliRunner().invoke(app, ["view", str(run), "--no-open", "--out", str(page)])
    assert result.exit_code == 0, result.stderr
    assert page.is_file()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("run: {steps: many}", "config.yaml: run.steps is 'many', expected a whole number"),
        ("run: {steps: true}", "config.yaml: run.steps is True, expected a whole number"),
        ("policy: {path: [a]}", r"config.yaml: policy.path is \['a'\], expected a path"),
        ("view: {redact: abc}", "config.yaml: view.redact is 'abc', expected a list of regular"),
        ('view: {redact: ["["]}', r"config.yaml: view.redact is \['\['\], expected regular"),
        ("view: {redact: [3]}", r"config.yaml: view.redact is \[3\], expected regular"),
    ],
)
def test_a_config_with_a_wrong_value_is_named(run: Path, config: str, words: str) -> None:
    (run / "config.yaml").write_text(config)
    with pytest.raises(ConfigError, match=words):
        RunReader(run, environ={})


def test_the_commands_print_the_faults(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "time": NaN}\n')
    line = "metrics.jsonl:1: time is NaN, expected a finite number or null; it is left out"
    options = ["view", str(run), "--no-open", "--out", str(tmp_path / "run.html")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0
    assert f"{run}/{line}\n" in result.stderr
    result = CliRunner().invoke(app, ["watch", str(run), "--once"])
    assert result.exit_code == 0
    assert line in " ".join(result.output.split())
    assert "step 1 of 1" in result.output

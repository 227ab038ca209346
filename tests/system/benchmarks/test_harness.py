"""The benchmark harness: what it counts, pairs, flags and writes."""

import ast
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import Benchmark, Contender, Measurement, Run
from benchmarks.measure import Calibration, measure, tree_cpu_s
from benchmarks.quick import ELSEWHERE, expected_rows, missing_rows


def burn(cpu_s: float) -> None:
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass


def set_up_counter() -> Run:
    return lambda: sum(1.0 for _ in range(200_000))


def set_up_costly() -> Run:
    burn(1.0)
    return lambda: 1.0


def set_up_environment() -> Run:
    seen = float(os.environ["AGENTRL_BENCHMARK_TEST"])
    return lambda: seen


def set_up_that_dies(code: int = 3) -> Run:
    os._exit(code)


def set_up_that_hangs() -> Run:
    time.sleep(60)
    return lambda: 1.0


def run_of(rate: float, *, noisy: bool = False) -> Measurement:
    return Measurement(work=rate, wall_s=2.0, cpu_s=1.0, noisy=noisy)


def quiet(**arguments: object) -> Benchmark:
    return Benchmark("test", console=Console(file=StringIO(), width=200), **arguments)  # pyright: ignore[reportArgumentType]


def test_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    """Kills: ratio of the medians (5 / 10), unpaired order, inverted ratio, mean (4.17)."""
    bench = quiet()
    ours = [run_of(10), run_of(5), run_of(2)]
    theirs = [run_of(1), run_of(10), run_of(1)]
    row = bench.ratio("speed", ours, theirs, peer="other", goal=2.5)
    assert (row.value, row.ok, row.unit, row.peer) == (2.0, False, "x", "other")
    spread = bench.spreads["speed"]
    assert (spread.smallest, spread.largest, spread.noisy_runs, spread.runs) == (0.5, 10, 0, 6)


def test_a_cost_is_time_per_work_and_lower_is_better() -> None:
    bench = quiet()
    row = bench.cost("step", [run_of(1e5)], goal=20)
    assert (row.value, row.unit, row.ok) == (pytest.approx(10), "us", True)
    by_wall = bench.cost("step by wall", [run_of(1e5)], by="wall", goal=19)
    assert (by_wall.value, by_wall.ok) == (pytest.approx(20), False)


def test_a_rate_is_work_per_second() -> None:
    bench = quiet()
    row = bench.rate("tokens", [run_of(30), run_of(10), run_of(20)], unit="tokens", goal=20)
    assert (row.value, row.unit, row.ok) == (20, "tokens/CPU-s", True)
    assert bench.rate("by wall", [run_of(30)], unit="tokens", by="wall").value == 15


def test_a_metric_is_stated_once() -> None:
    bench = quiet()
    bench.rate("tokens", [run_of(1)], unit="tokens")
    with pytest.raises(ValueError, match="'tokens' already"):
        bench.rate("tokens", [run_of(1)], unit="tokens")


def test_every_contender_runs_once_per_round_in_changing_order() -> None:
    seen: list[str] = []

    def contender(name: str) -> Contender:
        def run() -> float:
            seen.append(name)
            return float(len(seen))

        return Contender(set_up=lambda: run)

    names = "abcd"
    runs = quiet(rounds=3).compare({name: contender(name) for name in names})
    rounds = ["".join(seen[i : i + 4]) for i in range(0, 12, 4)]
    assert [sorted(r) for r in rounds] == [sorted(names)] * 3
    assert len(set(rounds)) > 1
    for name in names:
        assert [run.work for run in runs[name]] == [
            4 * number + order.index(name) + 1 for number, order in enumerate(rounds)
        ]


def test_set_up_is_not_measured() -> None:
    assert measure(Contender(set_up=set_up_costly)).cpu_s < 0.5


def test_an_own_process_is_measured_inside_and_sees_its_environment() -> None:
    run = measure(Contender(set_up=set_up_counter, own_process=True))
    assert run.work == 200_000
    assert run.cpu_s > 0
    environ = {"AGENTRL_BENCHMARK_TEST": "7"}
    seen = measure(Contender(set_up=set_up_environment, own_process=True, environ=environ))
    assert seen.work == 7
    assert "AGENTRL_BENCHMARK_TEST" not in os.environ


def test_an_environment_needs_an_own_process() -> None:
    with pytest.raises(ValueError, match="own_process=True"):
        Contender(set_up=set_up_counter, environ={"OMP_NUM_THREADS": "1"})


def test_a_contender_that_dies_or_hangs_is_named() -> None:
    with pytest.raises(RuntimeError, match="set_up_that_dies ended with exit code 3"):
        measure(Contender(set_up=set_up_that_dies, own_process=True))
    with pytest.raises(RuntimeError, match=r"set_up_that_dies.*code=5.* ended with exit code 5"):
        measure(Contender(set_up=partial(set_up_that_dies, code=5), own_process=True))
    with pytest.raises(TimeoutError, match=r"set_up_that_hangs was not done after 0\.2 s"):
        measure(Contender(set_up=set_up_that_hangs, own_process=True, timeout_s=0.2))


def test_cpu_seconds_count_living_and_ended_descendants() -> None:
    """Kills: own process only, direct children only, and ended children only."""
    grandchild = (
        "import subprocess, sys, time\n"
        "burn = 'import time, sys\\nwhile time.process_time() < 0.3: pass\\n'\n"
        "burn += 'print(flush=True); sys.stdin.read()'\n"
        "child = subprocess.Popen([sys.executable, '-c', burn])\n"
        "child.wait()\n"
    )
    before = tree_cpu_s()
    child = subprocess.Popen(
        [sys.executable, "-c", grandchild], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        living = tree_cpu_s() - before
        child.stdin.close()
        child.wait(timeout=60)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    ended = tree_cpu_s() - before
    assert living >= 0.28
    assert ended >= 0.28
    assert ended < 2 * living


@pytest.mark.parametrize(
    ("before", "after", "disturbed"),
    [
        (Calibration(1.0, 1.0), Calibration(1.05, 1.05), False),
        (Calibration(1.0, 1.0), Calibration(1.2, 1.2), True),
        (Calibration(1.2, 1.2), Calibration(1.0, 1.0), True),
        (Calibration(1.0, 1.0), Calibration(1.2, 1.0), True),
        (Calibration(1.2, 1.0), Calibration(1.0, 1.0), True),
    ],
)
def test_a_slower_or_waiting_kernel_flags_the_run(
    before: Calibration, after: Calibration, disturbed: bool
) -> None:
    assert before.disturbed(after) is disturbed


def test_noisy_runs_stay_in_and_are_counted() -> None:
    bench = quiet()
    bench.rate("tokens", [run_of(1, noisy=True), run_of(3)], unit="tokens")
    assert bench.rows[0].value == 2
    assert str(bench.spreads["tokens"]) == "1..3, 1/2 runs noisy"


def test_the_report_has_the_agreed_shape(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.json"
    out = StringIO()
    arguments = ["--json", str(file), "--rounds", "2"]
    bench = Benchmark.from_command_line("shape", "A benchmark.", arguments)
    bench.console = Console(file=out, width=200)
    assert bench.rounds == 2
    runs = bench.compare({"counter": Contender(set_up=set_up_counter)})
    bench.rate("count", runs["counter"], unit="steps")
    bench.row("size", 3, unit="files", goal=2, better="lower")
    bench.finish()
    report = json.loads(file.read_text())
    assert [*report][:3] == ["name", "machine", "rows"]
    assert report["name"] == "shape"
    assert report["machine"].keys() >= {"cpu", "cores", "memory_bytes", "load_average", "python"}
    keys = {"metric", "value", "unit", "peer", "goal", "ok"}
    assert [row.keys() for row in report["rows"]] == [keys, keys]
    assert report["rows"][1] == {
        "metric": "size",
        "value": 3,
        "unit": "files",
        "peer": None,
        "goal": 2,
        "ok": False,
    }
    assert len(report["runs"]["counter"]) == 2
    assert "NO" in out.getvalue()


def test_quick_means_one_round() -> None:
    bench = Benchmark.from_command_line("quick", None, ["--quick", "--rounds", "9"])
    assert (bench.rounds, bench.quick) == (1, True)


# --- the quick form of all of them ----------------------------------------------------------------


def test_a_missing_row_is_named() -> None:
    report = {"rows": [{"metric": "a"}, {"metric": "c"}]}
    assert missing_rows(["a", "b", "c", "d"], report) == ["b", "d"]
    assert missing_rows(["a"], {}) == ["a"]
    assert missing_rows([], report) == []


def test_every_benchmark_that_results_name_is_run_by_ci(root: Path) -> None:
    """`make bench-quick` runs those of rows.json."""
    text = (root / "docs/results.md").read_text() + (root / "docs/comparison.md").read_text()
    named = {*re.findall(r"benchmarks[/.](\w+)(?:\.py| )", text)}
    assert named - ELSEWHERE.keys() <= expected_rows().keys()
    assert "make bench-quick" in (root / ".ci/run").read_text()
    assert all(expected_rows().values())


def test_no_benchmark_reaches_into_private_parts(root: Path) -> None:
    own = {"self", "cls", "made", "other"}
    found = list[str]()
    # TRL's trainer has no public place to measure a rollout at: theirs.py is a subclass of it.
    files = {*root.glob("benchmarks/**/*.py")} - {root / "benchmarks/beside_trl/theirs.py"}
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                inside = isinstance(node.value, ast.Name) and node.value.id in own
                inside |= (isinstance(node.value, ast.Name), node.attr) == (True, "_exit")
                found += [] if inside else [f"{file.name}:{node.lineno} {node.attr}"]
            if isinstance(node, ast.ImportFrom):
                found += [f"{file.name} {n.name}" for n in node.names if re.match("_[a-z]", n.name)]
    assert not found

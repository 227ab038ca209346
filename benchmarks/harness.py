"""What every benchmark shares: contenders measured side by side, a table, a JSON file.

A benchmark is a script. It names contenders, has them compared, states its rows and finishes:

    def ours() -> Run:                            # not measured: set-up and warm-up
        engine = Engine(...)
        return lambda: engine.generate_all()      # measured; returns the work done, here tokens

    if __name__ == "__main__":
        bench = Benchmark.from_command_line("engines", __doc__)
        runs = bench.compare({"ours": Contender(set_up=ours), "peer": Contender(set_up=peer)})
        bench.rate("gen96, ours", runs["ours"], unit="tokens")
        bench.ratio("gen96, ours", runs["ours"], runs["peer"], peer="peer", goal=2.5)
        bench.finish()

What makes the figures comparable: contenders take turns in a new random order in every round; a
ratio compares two runs of one round; a figure is the median of the rounds, with the smallest and
the largest beside it; the measure is CPU seconds of the whole process tree, which a busy neighbour
disturbs less than wall seconds. A calibration kernel before and after each run tells whether the
machine changed meanwhile; such runs are flagged and stay in.
"""

import argparse
import json
import os
import platform
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Contender, Measurement, Run, measure

__all__ = ["Benchmark", "Contender", "Measurement", "Row", "Run", "machine", "parser"]

Better = Literal["higher", "lower"]
Measure = Literal["cpu", "wall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, with what it is measured against."""

    metric: str
    value: float
    unit: str
    peer: str | None = None
    """What the figure is relative to, in words; None when it stands alone."""
    goal: float | None = None
    """In the row's unit."""
    ok: bool | None = None
    """Whether the goal is reached; None without a goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the median of a row hides."""

    smallest: float
    largest: float
    noisy_runs: int
    runs: int

    def __str__(self) -> str:
        noisy = f", {self.noisy_runs}/{self.runs} runs noisy" if self.noisy_runs else ""
        return f"{self.smallest:.4g}..{self.largest:.4g}{noisy}"


@dataclass(slots=True)
class Benchmark:
    """Collects rows and the runs behind them. Owned by one script."""

    name: str
    rounds: int = 3
    quick: bool = False
    """Do as little as shows that the benchmark works: one round, small sizes."""
    json_file: Path | None = None
    seed: int = 0
    """Of the order in which contenders take turns."""
    console: Console = field(default_factory=Console)
    rows: list[Row] = field(default_factory=list[Row])
    spreads: dict[str, Spread] = field(default_factory=dict[str, Spread])
    """By metric, for the rows that stand for several runs."""
    runs: dict[str, list[Measurement]] = field(default_factory=dict[str, list[Measurement]])
    notes: list[str] = field(default_factory=list[str])
    """What is to be said below the table: what was not measured, and why."""

    @classmethod
    def from_command_line(
        cls, name: str, description: str | None, arguments: Sequence[str] | None = None
    ) -> Self:
        """Make a benchmark from `--json`, `--rounds` and `--quick`."""
        return cls.from_arguments(name, parser(description).parse_args(arguments))

    @classmethod
    def from_arguments(cls, name: str, arguments: argparse.Namespace) -> Self:
        """Make a benchmark from what `parser`, perhaps with own arguments added, has parsed."""
        rounds = 1 if arguments.quick else arguments.rounds
        return cls(name, rounds=rounds, quick=arguments.quick, json_file=arguments.json)

    def compare(self, contenders: Mapping[str, Contender]) -> dict[str, list[Measurement]]:
        """Run every contender once per round, shuffled, and return their runs in round order."""
        order = random.Random(self.seed)
        runs: dict[str, list[Measurement]] = {name: [] for name in contenders}
        for number in range(self.rounds):
            for name in order.sample(sorted(contenders), len(contenders)):
                run = measure(contenders[name])
                runs[name].append(run)
                noisy = ", the machine was busy" if run.noisy else ""
                self.console.print(
                    f"round {number + 1}/{self.rounds}  {name}: {run.work:g} in "
                    f"{run.cpu_s:.2f} CPU s, {run.wall_s:.2f} s{noisy}",
                    highlight=False,
                )
        for name, own in runs.items():
            self.runs.setdefault(name, []).extend(own)
        return runs

    def row(
        self,
        metric: str,
        value: float,
        *,
        unit: str,
        peer: str | None = None,
        goal: float | None = None,
        better: Better = "higher",
    ) -> Row:
        """State a figure; with a goal it is ok when it is at least as good."""
        ok = None
        if goal is not None:
            ok = value >= goal if better == "higher" else value <= goal
        row = Row(metric=metric, value=value, unit=unit, peer=peer, goal=goal, ok=ok)
        self.rows.append(row)
        return row

    def middle(
        self,
        metric: str,
        values: Sequence[float],
        *,
        unit: str,
        peer: str | None = None,
        goal: float | None = None,
        better: Better = "higher",
    ) -> Row:
        """State the median of one figure of several runs that time themselves."""
        self._spread(metric, values, [])
        value = statistics.median(values)
        return self.row(metric, value, unit=unit, peer=peer, goal=goal, better=better)

    def rate(
        self,
        metric: str,
        runs: Sequence[Measurement],
        *,
        unit: str,
        by: Measure = "cpu",
        goal: float | None = None,
    ) -> Row:
        """State the median work per second, where `unit` names the work."""
        values = [_rate(run, by) for run in runs]
        per = "CPU-s" if by == "cpu" else "s"
        self._spread(metric, values, runs)
        return self.row(metric, statistics.median(values), unit=f"{unit}/{per}", goal=goal)

    def cost(
        self,
        metric: str,
        runs: Sequence[Measurement],
        *,
        unit: str = "us",
        by: Measure = "cpu",
        goal: float | None = None,
    ) -> Row:
        """State the median time per unit of work, in `unit`: `s`, `ms` or `us`. Lower is better."""
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        values = [scale / _rate(run, by) for run in runs]
        self._spread(metric, values, runs)
        return self.row(metric, statistics.median(values), unit=unit, goal=goal, better="lower")

    def ratio(
        self,
        metric: str,
        ours: Sequence[Measurement],
        theirs: Sequence[Measurement],
        *,
        peer: str,
        by: Measure = "cpu",
        goal: float | None = None,
    ) -> Row:
        """State how many times the peer's rate ours is: the median of the rounds' ratios."""
        pairs = zip(ours, theirs, strict=True)
        values = [_rate(one, by) / _rate(other, by) for one, other in pairs]
        self._spread(metric, values, [*ours, *theirs])
        return self.row(metric, statistics.median(values), unit="x", peer=peer, goal=goal)

    def report(self) -> dict[str, Any]:
        """Return everything as JSON: `name`, `machine`, `rows`, and the runs behind the rows."""
        return {
            "name": self.name,
            "machine": machine(),
            "rows": [asdict(row) for row in self.rows],
            "spreads": {metric: asdict(spread) for metric, spread in self.spreads.items()},
            "runs": {name: [asdict(run) for run in runs] for name, runs in self.runs.items()},
            "notes": self.notes,
        }

    def finish(self) -> None:
        """Print the table, and write the JSON file where one was asked for."""
        self.console.print(self.table())
        for note in self.notes:
            self.console.print(note, markup=False, highlight=False)
        if self.json_file is not None:
            self.json_file.parent.mkdir(parents=True, exist_ok=True)
            self.json_file.write_text(json.dumps(self.report(), indent=2) + "\n")
            self.console.print(f"written to {self.json_file}", highlight=False)

    def table(self) -> Table:
        """Return the rows as a table for people."""
        table = Table(title=self.name)
        for heading in ("metric", "value", "unit", "min..max", "peer", "goal", "ok"):
            table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
        for row in self.rows:
            goal = "" if row.goal is None else f"{row.goal:.4g}"
            ok = {True: "yes", False: "NO", None: ""}[row.ok]
            spread = str(self.spreads.get(row.metric, ""))
            value = f"{row.value:.4g}"
            table.add_row(row.metric, value, row.unit, spread, row.peer or "", goal, ok)
        return table

    def _spread(self, metric: str, values: Sequence[float], runs: Sequence[Measurement]) -> None:
        if metric in self.spreads:
            raise ValueError(f"there is a row {metric!r} already; give this one its own name")
        self.spreads[metric] = Spread(
            smallest=min(values),
            largest=max(values),
            noisy_runs=sum(run.noisy for run in runs),
            runs=len(runs),
        )


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments every benchmark has; a script may add its own."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    made.add_argument("--rounds", type=positive, default=3, help="runs per contender (default 3)")
    made.add_argument("--quick", action="store_true", help="one round, small sizes")
    return made


def machine() -> dict[str, Any]:
    """Describe the machine and the software that made the figures."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": list(os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {
            name: _version(name) for name in ("agentrl", "numpy", "torch", "transformers")
        },
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def positive(text: str) -> int:
    """Read a number of the command line that must be 1 or more."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def _rate(run: Measurement, by: Measure) -> float:
    return run.work_per_cpu_s if by == "cpu" else run.work_per_wall_s

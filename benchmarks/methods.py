"""Every method beside its neutral twin: one table.

A method runs in the situation it is for (`method_rows.py`): stale data for corrections, groups of
two for MC-GRPO, tasks that come again for samplers. Its twin is GRPO in the same situation, from
the same warm-started policy and seed; all methods of a situation share it. The policy and the task
are tiny (`sums.py`), so that a row takes some fifteen seconds of one core.

The twin trains a number of steps, and the tokens that it sampled are the budget of the others: they
train until an evaluation, every 3 steps, at which they have sampled as many. What was sampled and
dropped counts.

- `to B`: sampled tokens up to the first evaluation of at least B, the highest of `BARS` that the
  twin reaches; relative to the twin's.
- `held out`: pass@1 at the evaluation closest to the budget, with Wilson's interval over tasks.
  Where it overlaps the twin's, the table says that no difference was seen. It knows nothing of
  seeds that were not run.
- `CPU`: processor seconds per training step without evaluations, relative to the twin's.

What is finished is kept in `--folder`, and a further call goes on with the rest. `--only loss.gspo`
runs that row and its twin.
"""

import json
import shutil
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from agentrl.config.advice import FIGURES
from agentrl.config.load import load_config
from agentrl.errors import AgentrlError
from agentrl.evaluation.interval import IntervalEstimate, rate_estimate
from agentrl.run.train import train, warmstart
from agentrl.runtime.progress import NOTHING
from benchmarks.commands import QUICK_WARMSTART, QUICKSTART
from benchmarks.harness import Benchmark, parser
from benchmarks.method_rows import BASE, ROWS, SITUATIONS, Keys

BARS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
FURTHER = 2
"""How many times the steps of its twin a method may take to sample as much."""
QUICK: Keys = {"rollout.tasks_per_step": 2, "evaluate.tasks": 8}
QUICK_STEPS = 3
QUICK_ROWS = ("advantage.rloo", "correction.none")
TWIN = "grpo"
RECORDED = Path(__file__).parent / "recorded" / "methods.json"
"""Runs of which docs/results.md has the figures."""


class BudgetSpent(Exception):
    """Ends a run that has sampled as many tokens as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the table: a method in its situation, or the twin of a situation."""

    name: str
    """Name of a row, or `TWIN`."""
    situation: str
    seed: int = 0

    @property
    def file_name(self) -> str:
        """Return the name of its run and of its file."""
        return f"{self.situation}-{self.name}-{self.seed}"

    def keys(self, *, steps: int) -> dict[str, Any]:
        """Return its keys over the quickstart's, where its twin takes that many steps."""
        own = {} if self.name == TWIN else ROWS[self.name].keys
        return {
            **BASE,
            "run.steps": FURTHER * steps,
            "run.name": self.file_name,
            "run.seed": self.seed,
            **SITUATIONS[self.situation].keys,
            **own,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """An evaluation of a run, and what the run had cost."""

    step: int
    tokens: int
    """Sampled so far, what was dropped among them."""
    reward: float
    """Held-out pass@1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRun:
    """What came out of a cell."""

    cell: Cell
    curve: tuple[CurvePoint, ...]
    """From before the first step."""
    tasks: int
    """Number of held-out tasks."""
    cpu_s: float
    """Processor seconds per training step."""
    age: float
    """Mean age of the tokens that trained, in versions."""

    @classmethod
    def read(cls, known: Mapping[str, Any]) -> Self:
        """Return what `asdict` made a mapping of."""
        fields = dict(known)
        fields["cell"] = Cell(**known["cell"])
        fields["curve"] = tuple(CurvePoint(**point) for point in known["curve"])
        return cls(**fields)

    def passes(self, budget: int) -> list[float]:
        """Return 1 per held-out task that passed and 0 per other one, at the evaluation closest to
        a budget of sampled tokens."""
        reward = min(self.curve[1:], key=lambda point: abs(point.tokens - budget)).reward
        passed = round(reward * self.tasks)
        return [1.0] * passed + [0.0] * (self.tasks - passed)

    def tokens_to(self, bar: float) -> int | None:
        """Return the sampled tokens at the first evaluation of at least `bar`; None for none."""
        return next((point.tokens for point in self.curve if point.reward >= bar), None)


def count_sampled(figures: Mapping[str, float]) -> float:
    """Return the tokens that a step has sampled; of curation also those that do not train.

    Tokens of drafts were sampled before.
    """
    share = figures.get("curation/tokens_wasted_fraction", 0.0)
    if share:
        return figures["curation/tokens_wasted"] / share
    return figures["rollout/sampled_tokens"] - figures.get("drafts/saved_tokens", 0.0)


@dataclass(slots=True, kw_only=True)
class RunMeter:
    """Follows a run, and ends it once it has sampled its budget. Owned by one run."""

    budget: float = float("inf")
    """In sampled tokens."""
    last_step: int | None = None
    """Step after which the run ends; None for the last one of `run.steps`."""
    steps: int = 0
    tokens: float = 0.0
    cpu_s: float = 0.0
    evaluating_s: float = 0.0
    points: list[CurvePoint] = field(default_factory=list[CurvePoint])
    ages: list[float] = field(default_factory=list[float])

    @contextmanager
    def phase(self, name: str, *, total: int, done: int = 0) -> Generator["_MeteredPhase"]:
        began_s = time.process_time()
        if name == "train":
            self.evaluating_s = 0.0
        try:
            yield _MeteredPhase(self, counts=name == "train", at_s=began_s)
        finally:
            if name.startswith("evaluate"):
                self.evaluating_s += time.process_time() - began_s

    def say(self, text: str) -> None:
        """Drop the line."""

    def add_step(self, figures: Mapping[str, float], cpu_s: float) -> None:
        """Count a step; raise `BudgetSpent` after an evaluation that the run may not outlive."""
        self.steps += 1
        self.tokens += count_sampled(figures)
        self.cpu_s += cpu_s - self.evaluating_s
        self.evaluating_s = 0.0
        self.ages.append(figures.get("age/mean", 0.0))
        if (reward := figures.get("heldout/pass@1")) is None:
            return
        self.points.append(CurvePoint(step=self.steps, tokens=round(self.tokens), reward=reward))
        if self.tokens >= self.budget or self.steps == self.last_step:
            raise BudgetSpent


@dataclass(slots=True)
class _MeteredPhase:
    meter: RunMeter
    counts: bool
    at_s: float

    def advance(self, amount: int = 1, figures: Mapping[str, float] = NOTHING) -> None:
        """Give a step to the meter."""
        if self.counts:
            cpu_s, self.at_s = time.process_time() - self.at_s, time.process_time()
            self.meter.add_step(figures, cpu_s)

    def update(self, begun: float, figures: Mapping[str, float] = NOTHING) -> None:
        """Drop the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTable:
    """The runs, and the folder they are kept in."""

    folder: Path
    changes: Keys = field(default_factory=dict[str, Any])
    """Keys of every run over those of its cell."""
    first: Keys = field(default_factory=dict[str, Any])
    """Keys of the warm start."""
    steps: int | None = None
    """Number of steps of every twin; None for those of its situation."""

    def run(self, cell: Cell) -> MethodRun:
        """Return what a cell found, running it, and its twin before it, if that is not known.

        Raises `AgentrlError` if a run fails.
        """
        file = self.folder / "cells" / f"{cell.file_name}.json"
        if file.exists():
            return MethodRun.read(json.loads(file.read_text()))
        twin_steps = self.steps or SITUATIONS[cell.situation].steps
        if cell.name == TWIN:
            meter = RunMeter(last_step=twin_steps)
        else:
            meter = RunMeter(budget=self.run(twin_of(cell)).curve[-1].tokens)
        found = self._train(cell, meter, steps=twin_steps)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(found), indent=1) + "\n")
        return found

    def _train(self, cell: Cell, meter: RunMeter, *, steps: int) -> MethodRun:
        runs = self.folder / "runs"
        shutil.rmtree(runs / cell.file_name, ignore_errors=True)
        places = {"run.folder": str(runs), "policy.path": str(self.policy(cell.seed))}
        changes = {**cell.keys(steps=steps), **places, **self.changes}
        config = load_config(QUICKSTART, changes)
        with suppress(BudgetSpent):
            train(config, progress=meter)
        summary = json.loads((runs / cell.file_name / "summary.json").read_text())
        before = CurvePoint(step=0, tokens=0, reward=summary["before"]["pass@1"])
        return MethodRun(
            cell=cell,
            curve=(before, *meter.points),
            tasks=summary["before"]["n"],
            cpu_s=meter.cpu_s / meter.steps,
            age=fmean(meter.ages),
        )

    def policy(self, seed: int) -> Path:
        """Return the first policy of a seed, made if it is not there."""
        policy = self.folder / "first" / f"seed-{seed}" / "policy"
        if not policy.exists():
            shutil.rmtree(policy.parent, ignore_errors=True)
            places = {"run.folder": str(policy.parents[1]), "run.name": policy.parent.name}
            env = {key: BASE[key] for key in ("env.id", "env.kwargs", "run.threads")}
            warmstart(load_config(QUICKSTART, {**env, **places, "run.seed": seed, **self.first}))
        return policy


def twin_of(cell: Cell) -> Cell:
    """Return the run that a method is compared with."""
    return replace(cell, name=TWIN)


Verdict = Literal["no difference seen", "better", "worse"]


def judge(own: IntervalEstimate, twin: IntervalEstimate) -> Verdict:
    """Return what two intervals say; nothing where they overlap."""
    if own.low > twin.high:
        return "better"
    return "worse" if own.high < twin.low else "no difference seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A method's runs and those of its twin, of the same seeds in the same order."""

    runs: tuple[MethodRun, ...]
    twins: tuple[MethodRun, ...]

    @property
    def name(self) -> str:
        """Return the name of the method's row."""
        return self.runs[0].cell.name

    @property
    def situation(self) -> str:
        """Return the name of the situation."""
        return self.runs[0].cell.situation

    @property
    def bar(self) -> float:
        """Return the highest reward of `BARS` that the twin reaches with every seed."""
        reached = (
            bar for bar in BARS if all(twin.tokens_to(bar) is not None for twin in self.twins)
        )
        return next(reached, 0.0)

    @property
    def estimate(self) -> IntervalEstimate:
        """Return the held-out reward of the method for the budget."""
        return self._pool(self.runs)

    @property
    def twin_estimate(self) -> IntervalEstimate:
        """Return the held-out reward of the twin."""
        return self._pool(self.twins)

    @property
    def token_ratio(self) -> float | None:
        """Return the tokens to the bar over the twin's; None if a seed never reached it, or the
        twin reached none."""
        own = [run.tokens_to(self.bar) for run in self.runs]
        twin = [run.tokens_to(self.bar) for run in self.twins]
        if not self.bar or None in own or None in twin:
            return None
        return sum(filter(None, own)) / max(1, sum(filter(None, twin)))

    @property
    def cpu_ratio(self) -> float:
        """Return the processor time per step over the twin's."""
        return fmean(run.cpu_s for run in self.runs) / fmean(twin.cpu_s for twin in self.twins)

    def _pool(self, runs: Sequence[MethodRun]) -> IntervalEstimate:
        """Return the pass rate over the held-out tasks of all seeds, which are different tasks."""
        values = [
            value
            for run, twin in zip(runs, self.twins, strict=True)
            for value in run.passes(twin.curve[-1].tokens)
        ]
        return rate_estimate(values, trials=[1.0] * len(values))


def compare(runs: Iterable[MethodRun]) -> list[Comparison]:
    """Return the methods of all runs beside their twins, in the order of `ROWS`."""
    known = {run.cell: run for run in runs}
    comparisons: list[Comparison] = []
    for name in ROWS:
        own = tuple(
            known[cell] for cell in sorted(known, key=lambda c: c.seed) if cell.name == name
        )
        if own:
            twins = tuple(known[twin_of(run.cell)] for run in own)
            comparisons.append(Comparison(runs=own, twins=twins))
    return comparisons


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a Markdown table per situation: its twin, and the methods beside it."""
    parts: list[str] = []
    for name, situation in SITUATIONS.items():
        own = [each for each in comparisons if each.situation == name]
        if own:
            parts += [f"**`{name}`**: {situation.meaning}.", "", *_lines(own), ""]
    return "\n".join(parts)


def _lines(own: Sequence[Comparison]) -> list[str]:
    first = own[0]
    tokens = fmean(twin.tokens_to(first.bar) or 0 for twin in first.twins)
    cpu_s = fmean(twin.cpu_s for twin in first.twins)
    reached = f"{tokens:,.0f} tokens" if first.bar else "never"
    twin = (TWIN, reached, format_estimate(first.twin_estimate), f"{cpu_s:.2f} s")
    return [
        f"| method | to {first.bar or BARS[-1]} | held out | CPU per step | |",
        "| --- | ---: | --- | ---: | --- |",
        f"| {' | '.join(twin)} | |",
        *(_line(each) for each in own),
    ]


def _line(own: Comparison) -> str:
    ratio = "never" if own.token_ratio is None else f"{own.token_ratio:.2f}"
    estimate = own.estimate
    verdict = judge(estimate, own.twin_estimate)
    note = ROWS[own.name].note
    cells = (
        f"`{own.name}`" + (f" ({note})" if note else ""),
        ratio,
        format_estimate(estimate),
        f"{own.cpu_ratio:.2f}",
        verdict,
    )
    return f"| {' | '.join(cells)} |"


def format_estimate(estimate: IntervalEstimate) -> str:
    """Return a rate and its interval in words."""
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def describe(own: Comparison) -> str:
    """Return the figure of a method in words, for `agentrl methods --for`."""
    ratio = own.token_ratio
    tokens = (
        f"never to {own.bar}" if ratio is None else f"{ratio:.2f} of GRPO's tokens to {own.bar}"
    )
    if not own.bar:
        tokens = f"GRPO never reached {BARS[-1]}"
    estimate, twin = own.estimate, own.twin_estimate
    return (
        f"{tokens}; held out {format_estimate(estimate)}, GRPO "
        f"{format_estimate(twin)}: {judge(estimate, twin)}"
    )


def state(benchmark: Benchmark, comparisons: Sequence[Comparison]) -> None:
    """State the figures of every method."""
    for own in comparisons:
        peer, estimate = f"grpo, {own.situation}", own.estimate
        if own.token_ratio is not None:
            metric = f"{own.name}: tokens to {own.bar}"
            benchmark.row(metric, own.token_ratio, unit="x", peer=peer)
        benchmark.row(f"{own.name}: reward", estimate.mean, unit="pass@1")
        benchmark.row(f"{own.name}: reward, low end", estimate.low, unit="pass@1")
        benchmark.row(f"{own.name}: reward, high end", estimate.high, unit="pass@1")
        benchmark.row(f"{own.name}: CPU per step", own.cpu_ratio, unit="x", peer=peer)


def read_recorded(file: Path = RECORDED) -> list[Comparison]:
    """Return the comparisons of which docs/results.md has the figures."""
    return compare(MethodRun.read(each) for each in json.loads(file.read_text()))


def main() -> None:
    """Run what is missing of the table and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("runs/methods"))
    arguments.add_argument("--only", nargs="+", choices=tuple(ROWS), metavar="ROW", default=None)
    arguments.add_argument("--seeds", type=int, nargs="+", default=(0,))
    arguments.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write the curves there, and the figures for `agentrl methods --for`",
    )
    chosen = arguments.parse_args()
    methods = MethodTable(folder=chosen.folder)
    names = chosen.only or (QUICK_ROWS if chosen.quick else tuple(ROWS))
    if chosen.quick:
        first = {key: int(value) for key, value in QUICK_WARMSTART.items()}
        methods = replace(methods, changes=QUICK, first=first, steps=QUICK_STEPS)
    benchmark = Benchmark.from_arguments("methods", chosen)
    runs: dict[Cell, MethodRun] = {}
    for seed, name in product(chosen.seeds, names):
        cell = Cell(name=name, situation=ROWS[name].situation, seed=seed)
        try:
            runs |= {each: methods.run(each) for each in (twin_of(cell), cell)}
        except AgentrlError as error:
            benchmark.notes.append(f"{cell.file_name}: its run failed: {error}")
    comparisons = compare(runs.values())
    state(benchmark, comparisons)
    benchmark.finish()
    benchmark.console.print(table(comparisons), markup=False, highlight=False, soft_wrap=True)
    if chosen.record is not None:
        found = [asdict(run) for run in runs.values()]
        chosen.record.write_text(json.dumps(found, indent=1) + "\n")
        figures = {own.name: describe(own) for own in comparisons}
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Six methods on stale data: GRPO, AEPO, UI-S1, GSPO, CISPO and M2PO at staleness 0, 4 and 16.

Every cell is `agentrl train configs/methods/METHOD.yaml` in a process of its own with one thread,
from a warm-started policy that all cells of a seed share. Beside the configs, steps are smaller
(8 tasks x 8 trajectories), so that learning takes long enough for staleness to matter.

Staleness 0 is `sync`. The others are `async` with `max_staleness` and a `backlog` of as much: left
alone a trainer that is faster than the rollouts never gets old data, and its bound says nothing.
With the backlog every token of a step is exactly that old, once so many steps are over; before, it
is of the first policy. The table states the ages that were trained, not the bound.

- `reward`: of the last weights on held-out tasks, per seed, and over the tasks of all seeds with
  Wilson's interval, which takes the seeds as they are: it knows nothing of those that were not run.
- `to 0.9`: what the batches had cost up to the first of the evaluations, every 4 steps, that found
  at least 0.9; mean over the seeds that got there. What waits in the backlog is not in it.

What is finished is kept in `--folder`, and a further call goes on with the rest.
`--only grpo m2po --staleness 16 --seeds 0` runs and tells a part.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from agentrl.evaluation.interval import IntervalEstimate, rate_estimate
from benchmarks.commands import CONFIGS, MADE, QUICK_WARMSTART, WARMSTART, agentrl
from benchmarks.harness import Benchmark, parser, positive

METHODS = ("grpo", "aepo", "ui_s1", "gspo", "cispo", "m2po")
STALENESS = (0, 4, 16)
SEEDS = (0, 1, 2)
QUICK_STALENESS = 4
"""Of all methods but the first, which is run at each staleness in the quick form too."""
BAR = 0.9
SIZES = {
    "rollout.tasks_per_step": "8",
    "evaluate.tasks": "100",
    "evaluate.every": "4",
    "run.threads": "1",
    "run.checkpoint_every": "1000",
    "store": "null",
    "metrics.tensorboard": "false",
    "run.steps": "32",
}
QUICK_SIZES = SIZES | {
    "rollout.tasks_per_step": "4",
    "run.steps": "2",
    "evaluate.tasks": "12",
    "evaluate.every": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the matrix."""

    method: str
    staleness: int
    seed: int

    @property
    def name(self) -> str:
        """Return the name of its run and of its file."""
        return f"{self.method}-{self.staleness}-{self.seed}"

    def keys(self, *, runs: Path, policy: Path, sizes: Mapping[str, str]) -> dict[str, str]:
        """Return what its run has other than its method's config."""
        return {
            "run.folder": str(runs),
            "run.name": self.name,
            "run.seed": str(self.seed),
            "policy.path": str(policy),
            **MADE,
            **sizes,
            **stale(self.staleness),
        }


def stale(staleness: int) -> dict[str, str]:
    """Return the keys that make data so many versions old."""
    if staleness == 0:
        return {"rollout.mode": "sync"}
    bounds = dict.fromkeys(("rollout.max_staleness", "rollout.backlog"), str(staleness))
    return {"rollout.mode": "async", **bounds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What batches cost until the held-out reward was first at the bar."""

    step: int
    sampled_tokens: int
    tool_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came out of a cell."""

    cell: Cell
    curve: tuple[tuple[int, float], ...]
    """Step and held-out reward, from before the first step to after the last."""
    tasks: int
    """Held-out tasks with a reward in the last evaluation."""
    age_mean: float
    """In versions, over all tokens that trained."""
    age_max: int
    bar: Cost | None
    """None where no evaluation reached it."""

    @property
    def steps(self) -> int:
        """Return how many steps were trained."""
        return self.curve[-1][0]

    @property
    def passed(self) -> int:
        """Return how many held-out tasks the last policy passed."""
        return round(self.curve[-1][1] * self.tasks)

    @classmethod
    def of(
        cls, cell: Cell, summary: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
    ) -> Self:
        """Read a run's `summary.json` and the lines of its `metrics.jsonl`."""
        between = [
            (line["step"], line["heldout/pass@1"]) for line in metrics if "heldout/pass@1" in line
        ]
        ends = (summary["before"]["pass@1"], summary["after"]["pass@1"])
        curve = ((0, ends[0]), *between, (metrics[-1]["step"], ends[1]))
        trained = [line["tokens/trained"] for line in metrics]
        ages = zip(metrics, trained, strict=True)
        return cls(
            cell=cell,
            curve=curve,
            tasks=summary["after"]["n"],
            age_mean=sum(line["age/mean"] * tokens for line, tokens in ages) / sum(trained),
            age_max=round(max(line["age/max"] for line in metrics)),
            bar=cost(curve, metrics),
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `write` wrote."""
        known = json.loads(file.read_text())
        known["cell"] = Cell(**known["cell"])
        known["curve"] = tuple((step, reward) for step, reward in known["curve"])
        known["bar"] = None if known["bar"] is None else Cost(**known["bar"])
        return cls(**known)

    def write(self, file: Path) -> None:
        """Write everything as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


def cost(
    curve: Sequence[tuple[int, float]], metrics: Iterable[Mapping[str, Any]], bar: float = BAR
) -> Cost | None:
    """Return the cost of all steps up to the first evaluation that is at the bar; None for none."""
    reached = next((step for step, reward in curve if reward >= bar), None)
    if reached is None:
        return None
    before = [line for line in metrics if line["step"] <= reached]
    return Cost(
        step=reached,
        sampled_tokens=round(sum(line["rollout/sampled_tokens"] for line in before)),
        tool_calls=round(sum(line["rollout/tool_calls"] for line in before)),
    )


def pooled(found: Sequence[Found]) -> IntervalEstimate:
    """Return the pass rate over the held-out tasks of several seeds, which are different tasks."""
    values = [
        value for one in found for value in [1.0] * one.passed + [0.0] * (one.tasks - one.passed)
    ]
    return rate_estimate(values, trials=[1.0] * len(values))


HEAD = (
    "| method | staleness | age: mean, max | reward per seed | over tasks of all | "
    "tokens to 0.9 | tool calls to 0.9 |\n| --- | ---: | ---: | --- | --- | ---: | ---: |"
)


def table(found: Sequence[Found]) -> str:
    """Return a row per method and staleness as a Markdown table."""
    return "\n".join([HEAD, *(line(own) for own in grouped(found).values())])


def grouped(found: Iterable[Found]) -> dict[tuple[str, int], list[Found]]:
    """Return what was found by method and staleness, seeds in order."""
    order = METHODS
    groups: dict[tuple[str, int], list[Found]] = {}
    for one in sorted(found, key=lambda f: (order.index(f.cell.method), f.cell.name)):
        groups.setdefault((one.cell.method, one.cell.staleness), []).append(one)
    return dict(sorted(groups.items(), key=lambda item: (item[0][1], order.index(item[0][0]))))


def line(own: Sequence[Found]) -> str:
    """Return the row of one method at one staleness."""
    cell, whole = own[0].cell, pooled(own)
    bars = [one.bar for one in own if one.bar is not None]
    reached = "" if len(bars) == len(own) else f" ({len(bars)} of {len(own)})"
    tokens = f"{fmean(b.sampled_tokens for b in bars):,.0f}{reached}" if bars else "never"
    calls = f"{fmean(b.tool_calls for b in bars):,.0f}{reached}" if bars else "never"
    cells = (
        cell.method,
        str(cell.staleness),
        f"{fmean(one.age_mean for one in own):.1f}, {max(one.age_max for one in own)}",
        ", ".join(f"{one.curve[-1][1]:.2f}" for one in own),
        f"{whole.mean:.3f} [{whole.low:.3f}, {whole.high:.3f}]",
        tokens,
        calls,
    )
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The cells, and the folder they are kept in."""

    folder: Path
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    """Keys of every run."""
    warmstart: Mapping[str, str] = field(default_factory=lambda: WARMSTART)
    """Keys of the warm starts."""

    @property
    def steps(self) -> int:
        """Return how many steps every run trains."""
        return int(self.sizes["run.steps"])

    def file(self, cell: Cell) -> Path:
        """Return where a finished cell is kept."""
        return self.folder / "cells" / f"{cell.name}.json"

    def policy(self, seed: int) -> Path:
        """Return the first policy of a seed, made if it is not there."""
        policy = self.folder / "first" / f"seed-{seed}" / "policy"
        if not policy.exists():
            shutil.rmtree(policy.parent, ignore_errors=True)
            names = {"run.folder": str(policy.parents[1]), "run.name": policy.parent.name}
            keys = {**names, "run.seed": str(seed), "run.threads": "1"}
            agentrl("warmstart", {**keys, **self.warmstart})
        return policy

    def run(self, cell: Cell) -> Found | None:
        """Return what a cell found, running it if that is not known; None if its run failed."""
        if self.file(cell).exists() and (known := Found.read(self.file(cell))).steps == self.steps:
            return known
        runs = self.folder / "runs"
        shutil.rmtree(runs / cell.name, ignore_errors=True)
        keys = cell.keys(runs=runs, policy=self.policy(cell.seed), sizes=self.sizes)
        try:
            agentrl("train", keys, CONFIGS / "methods" / f"{cell.method}.yaml")
        except subprocess.SubprocessError:
            return None
        summary = json.loads((runs / cell.name / "summary.json").read_text())
        lines = (runs / cell.name / "metrics.jsonl").read_text().splitlines()
        found = Found.of(cell, summary, [json.loads(line) for line in lines])
        found.write(self.file(cell))
        return found


def state(benchmark: Benchmark, found: Sequence[Found]) -> None:
    """State the rows of every method at every staleness."""
    for (method, staleness), own in grouped(found).items():
        name, whole = f"{method}, staleness {staleness}", pooled(own)
        benchmark.row(f"{name}: age", fmean(one.age_mean for one in own), unit="versions")
        benchmark.row(f"{name}: reward", whole.mean, unit="pass@1")
        benchmark.row(f"{name}: reward, low end", whole.low, unit="pass@1")
        benchmark.row(f"{name}: reward, high end", whole.high, unit="pass@1")
        for one in own:
            if one.bar is None:
                continue
            seed = f"{name}, seed {one.cell.seed}: to {BAR}"
            benchmark.row(seed, one.bar.sampled_tokens, unit="sampled tokens")
            benchmark.row(seed, one.bar.tool_calls, unit="tool calls")


def main() -> None:
    """Run what is missing of the matrix and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("runs/staleness"))
    arguments.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    arguments.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    arguments.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments.add_argument("--jobs", type=positive, default=2, help="runs at a time")
    chosen = arguments.parse_args()
    seeds = chosen.seeds[:1] if chosen.quick else chosen.seeds
    matrix = Matrix(folder=chosen.folder)
    if chosen.quick:
        matrix = Matrix(folder=chosen.folder, sizes=QUICK_SIZES, warmstart=QUICK_WARMSTART)
    for seed in seeds:
        matrix.policy(seed)
    cells = [
        Cell(method=method, staleness=staleness, seed=seed)
        for seed, staleness, method in product(seeds, chosen.staleness, chosen.only)
        if not chosen.quick or method == METHODS[0] or staleness == QUICK_STALENESS
    ]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        results = list(pool.map(matrix.run, cells))
    benchmark = Benchmark.from_arguments("staleness", chosen)
    found = [one for one in results if one is not None]
    benchmark.notes = [
        f"{cell.name}: its run failed; look at {matrix.folder / 'runs' / cell.name}"
        for cell, one in zip(cells, results, strict=True)
        if one is None
    ]
    state(benchmark, found)
    benchmark.finish()
    benchmark.console.print(table(found), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

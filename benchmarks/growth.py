"""How the cost of one unit of work changes as there is more of it: flat lines are linear costs.

- *turns*: a turn of an episode of 8 to 2,048 turns, recorded on its tree.
- *environments*: a turn of six-turn episodes, 8 to 2,048 of them at once.
- *group size*: a trajectory in a training step over one group of 2 to 64, of 128 sampled tokens
  each after a prompt of 512, as a tree; 4.2 M parameters.
- *context*: a token in a training step over one group of eight trajectories that branch, of 512 to
  8,192 tokens each, as a tree; the same policy. Attention makes this one grow by itself.

CPU seconds, one thread; the policies of the first two are scripts that cost nothing. `--picture`
draws what was measured; `--from FILE` draws the JSON of an earlier run.
"""

import asyncio
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chaos_world import Corridor
from benchmarks.harness import Benchmark, Contender, Run, parser
from benchmarks.long_trajectories import LEAVES, grow_group
from benchmarks.overhead import episode_turns
from benchmarks.scale import TURNS, turns
from benchmarks.training import SMALL, branches, training

TURNS_MEASURED = 4096
PROMPT_TOKENS, SAMPLED_TOKENS = 512, 128
QUICK_SIZES = 2
"""Sizes of an axis that the quick form measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Something that there can be more of."""

    name: str
    unit: str
    """One unit of work, whose cost is stated."""
    sizes: Sequence[int]
    set_up: Callable[[int], Run]
    """Returns the run of a size; its work is in units."""
    goal: float | None = None
    """Most times the cost of a unit at the smallest size that the largest may have."""

    def title(self, size: int) -> str:
        """Return the name of the contender of a size."""
        return f"{self.name} {size}"


def long_episodes(count: int) -> Run:
    """Return a run of episodes of `count` turns."""
    return episode_turns(count, TURNS_MEASURED)


def many_environments(count: int) -> Run:
    """Return a run of so many turns, with `count` environments at once."""
    rounds = max(1, TURNS_MEASURED // (count * TURNS))
    make_env = partial(Corridor, turns=TURNS, step_s=0.0)

    def play() -> float:
        for _ in range(rounds):
            asyncio.run(turns(make_env, count))
        return float(rounds * count * TURNS)

    return play


def large_group(size: int) -> Run:
    """Return a run of training steps over one group; its work is trajectories."""
    shape = partial(branches, PROMPT_TOKENS, [SAMPLED_TOKENS] * size)
    step = training(SMALL, shape, "tree", repeats=1)
    return lambda: step() / (PROMPT_TOKENS + SAMPLED_TOKENS)


def long_context(tokens: int) -> Run:
    """Return a run of one training step over trajectories of `tokens` tokens each."""
    return training(SMALL, partial(grow_group, tokens), "tree", repeats=1)


AXES = (
    Axis(
        name="turns",
        unit="turn",
        sizes=(8, 32, 128, 512, 1024, 2048),
        set_up=long_episodes,
        goal=1.2,
    ),
    Axis(
        name="environments",
        unit="turn",
        sizes=(8, 32, 128, 512, 2048),
        set_up=many_environments,
    ),
    Axis(
        name="group size",
        unit="trajectory",
        sizes=(2, 4, 8, 16, 32, 64),
        set_up=large_group,
        goal=1.0,
    ),
    Axis(
        name="context",
        unit=f"token of {LEAVES} trajectories",
        sizes=(512, 1024, 2048, 4096, 8192),
        set_up=long_context,
    ),
)


def measure_axis(bench: Benchmark, axis: Axis) -> None:
    """State what a unit costs at every size of an axis, and how much that grows."""
    sizes = axis.sizes[:QUICK_SIZES] if bench.quick else axis.sizes
    runs = bench.compare(
        {
            axis.title(size): Contender(
                set_up=partial(axis.set_up, size), own_process=True, timeout_s=1800.0
            )
            for size in sizes
        }
    )
    for size in sizes:
        bench.cost(f"{axis.title(size)}, a {axis.unit}", runs[axis.title(size)])
    smallest, largest = (
        [run.cpu_s / run.work for run in runs[axis.title(size)]] for size in (sizes[0], sizes[-1])
    )
    growth = statistics.median(
        large / small for small, large in zip(smallest, largest, strict=True)
    )
    bench.row(
        f"{axis.name}, growth of the cost of a {axis.unit}",
        growth,
        unit="x",
        goal=axis.goal,
        better="lower",
    )


def draw(report: Mapping[str, Any], out: Path) -> None:
    """Draw the cost of a unit over the size of each axis, beside that of its smallest size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(11.0, 2.8), constrained_layout=True)
    for axis, panel in zip(AXES, panels, strict=True):
        costs = {
            size: [run["cpu_s"] / run["work"] for run in report["runs"][axis.title(size)]]
            for size in axis.sizes
            if axis.title(size) in report["runs"]
        }
        sizes = [*costs]
        least = statistics.median(costs[sizes[0]])
        middles = [statistics.median(costs[size]) / least for size in sizes]
        below = [
            middle - min(costs[size]) / least for size, middle in zip(sizes, middles, strict=True)
        ]
        above = [
            max(costs[size]) / least - middle for size, middle in zip(sizes, middles, strict=True)
        ]
        panel.errorbar(sizes, middles, [below, above], marker=".", capsize=3)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes], size=8)
        panel.set(title=axis.name, ylim=(0, max(2.0, 1.1 * max(middles))))
        panel.set_xlabel(f"a {axis.unit}: {_in_words(least)} at {sizes[0]}", size=8)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("cost of a unit, x the smallest")
    figure.savefig(out, dpi=110)


def _in_words(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


def main() -> None:
    """Measure, print, write and draw."""
    arguments = parser(__doc__)
    arguments.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves there")
    arguments.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="draw this report"
    )
    chosen = arguments.parse_args()
    if chosen.earlier:
        draw(json.loads(chosen.earlier.read_text()), chosen.picture or Path("growth.png"))
        return
    bench = Benchmark.from_arguments("growth", chosen)
    for axis in AXES:
        measure_axis(bench, axis)
    bench.finish()
    if chosen.picture:
        draw(bench.report(), chosen.picture)


if __name__ == "__main__":
    main()

"""A training step on long trajectories that branch, beside the least that its tokens can take.

A group has 8 trajectories of 32 turns, of which a quarter of the tokens is sampled. It begins as
one and branches at every third turn, so a tree of 16,384 tokens a trajectory has two thirds of the
places that eight lines have. The policy has 4.2 M parameters, float32, one thread.

- *step*: forward and backward passes over one group, in CPU seconds: as a tree of a quarter of
  `--longest` tokens a trajectory (16,384), a half and all of them, and of a half padded (a row per
  trajectory, as TRL lays them out) and packed, too. Each in a process of its own, by turns.
- *of the least*: that time over what the arithmetic alone takes: each distinct token once through
  all products forward and back, the head where a token is predicted, and attention to every token
  before it, at the speed of one large matrix product that is timed in the same process just before.
- *memory*: what a step adds to the process.
- *plan*: the CPU seconds in which 2,048 such trajectories (256 groups) are divided into passes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import numpy as np
import torch

from agentrl.config.learn import LayoutName
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.trie import flatten, read, sort_by_prefix
from benchmarks.harness import Benchmark, Contender, Measurement, Run, parser, positive
from benchmarks.measure import measure
from benchmarks.training import SMALL, VOCABULARY, Drawn, Size, peak

TURNS = 32
LEAVES = 8
BRANCH_EVERY = 3
LONGEST, QUICK_LONGEST = 16_384, 1024
STEP_S = 3600.0
PASS_TOKENS = 2**17
"""Most places of a pass: room for a group in every layout."""
PLANNED, QUICK_PLANNED = 2048, 64
HEAD, INNER = 64, 3
"""Width of a head, and of the inner layer in hidden widths, of `Size.policy`."""
BACKWARD = 2.0
"""Arithmetic of a backward pass of products, over that of the forward pass."""
ATTENTION_BACKWARD = 2.5
"""The same of attention that keeps no scores: five products for two."""
GOAL, PLAN_GOAL_S, GROWTH_GOAL = 1.3, 0.1, 2.2
ROOF_SIZE = 2048


def grow_group(tokens: int, *, seed: int = 0) -> list[Drawn]:
    """Return the trajectories of one group, of so many tokens each."""
    random = np.random.default_rng(seed)
    turn_tokens = tokens // (TURNS + 1)
    sampled = np.arange(turn_tokens) >= turn_tokens - turn_tokens // 4
    prompt = random.integers(0, VOCABULARY, tokens - TURNS * turn_tokens)
    paths = [Drawn(prompt, np.zeros(len(prompt), dtype=bool))]
    for turn in range(TURNS):
        if turn and turn % BRANCH_EVERY == 0 and len(paths) < LEAVES:
            paths.append(paths[0])
        paths = [
            Drawn(
                np.append(path.token_ids, random.integers(0, VOCABULARY, turn_tokens)),
                np.append(path.mask, sampled),
            )
            for path in paths
        ]
    return paths


def count_operations(size: Size, sequences: Sequence[Drawn]) -> float:
    """Return the floating-point operations of a step that computes every distinct token once."""
    rows = read(sequences)
    trie = flatten(rows, sort_by_prefix(rows))
    wanted = [
        path[one.mask[1 : len(path) + 1]] for path, one in zip(trie.paths, sequences, strict=True)
    ]
    predicted = len(np.unique(np.concatenate(wanted)))
    heads, kv_heads = HEAD * size.heads, HEAD * size.kv_heads
    layer = size.hidden * (2 * heads + 2 * kv_heads + 3 * INNER * size.hidden)
    weights = len(trie.token_ids) * layer * size.layers + predicted * size.hidden * VOCABULARY
    pairs = float((trie.positions + 1).sum()) * heads * size.layers
    return 2 * weights * (1 + BACKWARD) + 4 * pairs * (1 + ATTENTION_BACKWARD)


def time_product() -> float:
    """Return the floating-point operations per CPU second of a large product, the best of five."""
    left, right = torch.randn(ROOF_SIZE, ROOF_SIZE), torch.randn(ROOF_SIZE, ROOF_SIZE)
    torch.mm(left, right)
    times: list[float] = []
    for _ in range(5):
        start = time.process_time()
        torch.mm(left, right)
        times.append(time.process_time() - start)
    return 2 * ROOF_SIZE**3 / min(times)


def planning(count: int, tokens: int) -> Run:
    """Return a run that divides trajectories of so many tokens into passes of a tree layout."""
    sequences = [one for seed in range(count // LEAVES) for one in grow_group(tokens, seed=seed)]
    layout = LAYOUTS["tree"](PASS_TOKENS)
    return lambda: float(len(layout.plan(sequences)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step, and the least that it could take."""

    ran: Measurement
    """Its work is the memory that it added, in MB."""
    least_s: float
    """CPU seconds of its arithmetic alone."""

    @property
    def times_least(self) -> float:
        """Return its CPU time over the least."""
        return self.ran.cpu_s / self.least_s


def time_step(layout: LayoutName, tokens: int) -> TimedStep:
    """Return a step that was taken in a process of its own."""
    least_s = count_operations(SMALL, grow_group(tokens)) / time_product()
    set_up = partial(peak, SMALL, partial(grow_group, tokens), layout, PASS_TOKENS)
    ran = measure(Contender(set_up=set_up, own_process=True, timeout_s=STEP_S))
    return TimedStep(ran=ran, least_s=least_s)


def take_steps(
    bench: Benchmark, lengths: Sequence[int]
) -> Mapping[tuple[LayoutName, int], Sequence[TimedStep]]:
    """Take a step of trees at every length, and of other layouts at the middle one, each round."""
    middle = lengths[1]
    steps: dict[tuple[LayoutName, int], list[TimedStep]] = {
        ("padded", middle): [],
        ("packed", middle): [],
    }
    steps |= {("tree", tokens): [] for tokens in lengths}
    for number in range(bench.rounds):
        for layout, tokens in steps:
            step = time_step(layout, tokens)
            steps[layout, tokens].append(step)
            bench.console.print(
                f"round {number + 1}/{bench.rounds}  {tokens} tokens, {layout}: "
                f"{step.ran.cpu_s:.1f} CPU s, {step.times_least:.2f} of the least",
                highlight=False,
            )
    return steps


def state_steps(bench: Benchmark, lengths: Sequence[int]) -> None:
    """State what a step takes, beside the least and beside padded rows, and how memory grows."""
    steps = take_steps(bench, lengths)
    padded = [step.ran.cpu_s for step in steps["padded", lengths[1]]]
    for (layout, tokens), own in steps.items():
        title = f"{tokens} tokens, {layout}"
        bench.runs[title] = [step.ran for step in own]
        seconds = [step.ran.cpu_s for step in own]
        bench.middle(f"{title}, a step", seconds, unit="CPU-s", better="lower")
        bench.middle(
            f"{title}, of the least",
            [step.times_least for step in own],
            unit="x",
            goal=GOAL if layout == "tree" else None,
            better="lower",
        )
        memory = [step.ran.work for step in own]
        bench.middle(f"{title}, memory", memory, unit="MB", better="lower")
        if layout != "padded" and tokens == lengths[1]:
            speeds = [theirs / ours for theirs, ours in zip(padded, seconds, strict=True)]
            bench.middle(f"{title}, speed", speeds, unit="x", peer="padded rows")
    for less, more in pairwise(lengths):
        growth = [
            large.ran.work / small.ran.work
            for small, large in zip(steps["tree", less], steps["tree", more], strict=True)
        ]
        title = f"twice {less} tokens, memory of a tree"
        bench.middle(title, growth, unit="x", goal=GROWTH_GOAL, better="lower")


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--longest", type=positive, default=LONGEST, help=f"tokens of a trajectory ({LONGEST})"
    )
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("long_trajectories", chosen)
    longest = QUICK_LONGEST if bench.quick else chosen.longest
    torch.set_num_threads(1)
    state_steps(bench, (longest // 4, longest // 2, longest))
    count = QUICK_PLANNED if bench.quick else PLANNED
    planned = bench.compare({"plan": Contender(set_up=partial(planning, count, LONGEST))})
    seconds = [run.cpu_s for run in planned["plan"]]
    bench.row(
        f"{count} sequences, plan", median(seconds), unit="s", goal=PLAN_GOAL_S, better="lower"
    )
    bench.finish()


if __name__ == "__main__":
    main()

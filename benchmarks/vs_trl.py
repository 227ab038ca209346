"""agentrl beside TRL's GRPOTrainer: tokens trained per CPU-second, and seconds to equal reward.

- `single turn`: 8 prompts x 8 completions of 64 tokens, random weights.
- `multi-turn`: a guessing game with a tool, TRL's `environment_factory`; 8 x 8 games after a prompt
  of 369 tokens, at most four calls each; a policy that was taught to play it, half of the time
  badly. Its steps are also the learning curve: CPU-seconds until the mean reward of five steps is
  at least each of `LEVELS`. `--learning-steps 40 --learning-only` measures nothing else.
- `--model FOLDER`: the multi-turn task alone, with a released model that is taught the game,
  and the peak memory of both. `PEER_ROWS` rows per pass in TRL, which holds the logits of a pass.

A 4.2 M Qwen3 in float32, unless a model is named. Weights, tokenizer, chat template, tasks,
sampling, loss (clipped, token mean over the batch, advantages over the group's deviation), AdamW,
clipping of the gradient, threads and allocator are the same. Each contender has a process of its
own, and they take their steps in turns; the first step of each is not measured. A step is
everything from the end of the one before: rollout, training, and for agentrl the record on disk and
TensorBoard, which it always writes. TRL writes no checkpoints and logs nothing. For TRL 8, 16, 32
and 64 rows per pass made no difference in the first task, and 64 is taken in both; it generates
with `model.generate`, and its continuous batching was not tried here. Of a prompt, system message
and tool are the same for all tasks, as they usually are, and agentrl computes what is alike in one
pass only once; `agentrl, a group per pass` spares it nothing but what the eight games of a group
share.

Before anything is timed, log-probs (1e-4 nats) and gradients (1e-4 of the norm) of one batch of
conversations are compared; after the first step, prompts and advantages. A difference ends the
benchmark with an error. TRL's environment and the policies are made in `.bench/` when they are not
there, which takes minutes once.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from sys import executable

from benchmarks.beside_trl.agreement import agreement, check_first_step
from benchmarks.beside_trl.policy import (
    RELEASED_WARMSTART,
    random_policy,
    released_policy,
    warm_policy,
)
from benchmarks.beside_trl.race import Program, Turn, measurements, race, reached
from benchmarks.beside_trl.setup import Setup
from benchmarks.beside_trl.venv import VERSIONS, chat_template, peer_python
from benchmarks.harness import Benchmark, parser

KEPT = Path(__file__).parents[1] / ".bench"
ALLOCATOR = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")
OURS, PEER, ALONE = "agentrl", "TRL", "agentrl, a group per pass"
GOALS = {"single turn": 1.5, "multi-turn": 4.0}
TRAINING_GOAL, MEMORY_GOAL = 2.5, 0.6
"""With a released model: speed of training alone, and peak memory beside TRL's."""
LEVELS = (0.34, 0.38, 0.42, 0.46)
"""Mean rewards of the game; the policy begins at about 0.29, and perfect play earns 0.66."""
OVER_STEPS = 5
"""Steps in a mean; that of one step of 64 games scatters by about 0.04."""
QUICK_WARM_STEPS = 80
RELEASED_WARM_STEPS = 12
PEER_ROWS, RELEASED_GROUP_TOKENS = 8, 2048
"""Of a released model: a group per pass in both, the prompt eight times in TRL and once here."""
GROUP_TOKENS = 1700
"""A prompt and eight games: room for one group in a forward pass."""


def run(bench: Benchmark, programs: Mapping[str, Program], setup: Setup) -> list[Turn]:
    """Let the contenders take their steps, and return all of them."""
    turns: list[Turn] = []
    for turn in race(programs, setup):
        if not turns:
            check_first_step(turn.records[OURS], turn.records[PEER], setup)
        turns.append(turn)
        said = "; ".join(
            f"{name} {record.tokens} tokens in {record.cpu_s:.1f} CPU s, reward {record.reward:.2f}"
            for name, record in turn.records.items()
        )
        bench.console.print(f"{setup.task}, step {len(turns)}/{setup.steps}: {said}")
    return turns


def state(
    bench: Benchmark,
    turns: Sequence[Turn],
    setup: Setup,
    *,
    model: str = "",
    training_goal: float | None = None,
) -> None:
    """State rates and ratios of the steps after the first."""
    what = f"{setup.task}, {model}" if model else setup.task
    title = f"{what}, {setup.threads} thread{'s' * (setup.threads > 1)}"
    measured = turns[1:]
    goal = GOALS[setup.task] if setup.threads == 1 else None
    theirs = measurements(measured, PEER)
    for name in turns[0].records:
        own = measurements(measured, name)
        bench.runs[f"{title}, {name}"] = own
        bench.rate(f"{title}, {name}", own, unit="tokens")
        if name != PEER:
            bench.ratio(f"{title}, {name}, step", own, theirs, peer=PEER, goal=goal)
    for part in ("rollout", "training"):
        ours = measurements(measured, OURS, part=part)
        peer = measurements(measured, PEER, part=part)
        goal = training_goal if part == "training" else None
        bench.ratio(f"{title}, {OURS}, {part}", ours, peer, peer=PEER, goal=goal)
    bench.ratio(
        f"{title}, {OURS}, wall", measurements(measured, OURS), theirs, peer=PEER, by="wall"
    )


def state_learning(bench: Benchmark, turns: Sequence[Turn]) -> None:
    """State what it took each contender to play as well as each of `LEVELS`."""
    records = {name: [turn.records[name] for turn in turns] for name in (OURS, PEER)}
    for name, own in records.items():
        rewards = " ".join(f"{record.reward:.2f}" for record in own)
        bench.notes.append(f"rewards, {name}: {rewards}")
    for level in LEVELS:
        spent: dict[str, float] = {}
        for name, own in records.items():
            end = reached([record.reward for record in own], level, over=OVER_STEPS)
            if end is None:
                bench.notes.append(f"{name} did not reach {level} in {len(own)} steps")
                continue
            title = f"to reward {level}, {name}"
            spent[name] = sum(record.cpu_s for record in own[:end])
            bench.row(f"{title}, steps", end, unit="steps")
            bench.row(f"{title}, CPU", spent[name], unit="CPU-s")
        if len(spent) == len(records):
            ratio = spent[PEER] / spent[OURS]
            bench.row(f"to reward {level}, {OURS}, speed", ratio, unit="x", peer=PEER)


def state_memory(bench: Benchmark, turns: Sequence[Turn], *, model: str) -> None:
    """State the peak memory of both, and the ratio."""
    peaks = {name: turns[-1].records[name].peak_bytes for name in (OURS, PEER)}
    for name, peak in peaks.items():
        bench.row(f"{model}, {name}, peak memory", peak / 2**30, unit="GiB", better="lower")
    bench.row(
        f"{model}, {OURS}, peak memory beside TRL's",
        peaks[OURS] / peaks[PEER],
        unit="x",
        better="lower",
        peer=PEER,
        goal=MEMORY_GOAL,
    )


def contenders(*, allocator: Path | None) -> dict[str, Program]:
    """Return both, with TRL's environment made if need be."""
    python = peer_python(KEPT / "trl")
    return {
        OURS: Program(
            python=Path(executable), module="benchmarks.beside_trl.ours", preload=allocator
        ),
        PEER: Program(python=python, module="benchmarks.beside_trl.theirs", preload=allocator),
    }


def compare(bench: Benchmark, chosen: argparse.Namespace) -> None:
    """Check that both agree, and measure what is asked for."""
    allocator = ALLOCATOR if ALLOCATOR.exists() else None
    programs = contenders(allocator=allocator)
    folder = KEPT / "policies"
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.model is None:
        compare_made(bench, chosen, programs, folder)
    else:
        compare_released(bench, chosen.model, programs, folder, groups=chosen.groups)
    bench.notes.append(f"allocator of all: {allocator or 'the system'}")
    bench.notes.append(f"agentrl: torch {metadata.version('torch')}; TRL: {', '.join(VERSIONS)}")


def compare_released(
    bench: Benchmark, model: Path, programs: Mapping[str, Program], folder: Path, *, groups: int
) -> None:
    """Measure the multi-turn task with a released model."""
    first = released_policy(folder / model.name, model, chat_template(KEPT / "trl"))
    warm = warm_policy(
        folder / f"{model.name}-warm",
        first,
        steps=RELEASED_WARM_STEPS,
        warmstart_keys=RELEASED_WARMSTART,
    )
    setup = Setup(
        task="multi-turn",
        policy=str(warm),
        steps=1 + bench.rounds,
        threads=1,
        completion_tokens=192,
        learning_rate=2e-5,
        peer_rows=PEER_ROWS,
        groups=groups,
    )
    check_agreement(bench, programs, setup)
    limited = replace(programs[OURS], limit_tokens=RELEASED_GROUP_TOKENS)
    turns = run(bench, {**programs, OURS: limited}, setup)
    state(bench, turns, setup, model=model.name, training_goal=TRAINING_GOAL)
    state_memory(bench, turns, model=model.name)


def check_agreement(bench: Benchmark, programs: Mapping[str, Program], setup: Setup) -> None:
    """Compare log-probs and gradients; end the benchmark where they differ."""
    apart = agreement(setup, programs[PEER])
    apart.check()
    bench.row(f"{setup.task}: log-probs apart", apart.logprobs_nats, unit="nats", better="lower")
    bench.row(f"{setup.task}: gradients apart", apart.gradients, unit="of norm", better="lower")


def compare_made(
    bench: Benchmark, chosen: argparse.Namespace, programs: Mapping[str, Program], folder: Path
) -> None:
    """Measure both tasks with the made policy."""
    first = random_policy(folder / "random", chat_template(KEPT / "trl"))
    if bench.quick:
        warm = warm_policy(folder / "warm-quick", first, steps=QUICK_WARM_STEPS)
    else:
        warm = warm_policy(folder / "warm", first)
    words = Setup(
        task="single turn",
        policy=str(first),
        steps=1 + bench.rounds,
        threads=1,
        completion_tokens=64,
        learning_rate=1e-5,
    )
    game = replace(
        words,
        task="multi-turn",
        policy=str(warm),
        completion_tokens=192,
        learning_rate=2e-4,
        first_round=1000 + 1000 * chosen.seed,
    )
    for setup in (words, game):
        check_agreement(bench, programs, setup)
    game = replace(game, steps=1 + (1 if bench.quick else chosen.learning_steps))
    if chosen.learning_only:
        state_learning(bench, run(bench, programs, game))
    else:
        measure(bench, programs, words, game)


def measure(bench: Benchmark, programs: Mapping[str, Program], words: Setup, game: Setup) -> None:
    """Measure both tasks with one thread, and with two."""
    state(bench, run(bench, programs, words), words)
    alone = replace(programs[OURS], limit_tokens=GROUP_TOKENS)
    turns = run(bench, programs if bench.quick else {**programs, ALONE: alone}, game)
    state(bench, turns, game)
    state_learning(bench, turns)
    if not bench.quick:
        for setup in (words, replace(game, steps=1 + bench.rounds)):
            two = replace(setup, threads=2)
            state(bench, run(bench, programs, two), two)


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--model", type=Path, metavar="FOLDER", help="a released model, such as SmolLM2's"
    )
    arguments.add_argument(
        "--groups",
        type=int,
        default=8,
        help="groups of eight games a step with a released model (default 8); of SmolLM2-135M, a "
        "step of TRL's takes about 25 minutes of one core with eight",
    )
    arguments.add_argument("--seed", type=int, default=0, help="of the games (default 0)")
    arguments.add_argument(
        "--learning-steps", type=int, default=11, help="measured multi-turn steps (default 11)"
    )
    arguments.add_argument(
        "--learning-only", action="store_true", help="just the multi-turn steps, for their rewards"
    )
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("vs_trl", chosen)
    compare(bench, chosen)
    bench.finish()


if __name__ == "__main__":
    main()

"""agentrl beside TRL's GRPOTrainer: tokens trained per CPU-second, and seconds to equal reward.

- `single turn`: 8 prompts x 8 completions of 64 tokens, random weights.
- `multi-turn`: a guessing game with a tool, TRL's `environment_factory`; 8 x 8 games after a prompt
  of 369 tokens, at most four calls each; a policy that was taught to play it, half of the time
  badly. Its steps are also the learning curve: CPU-seconds until the mean reward of five steps is
  at least each of `LEVELS`. `--learning-steps 40 --learning-only` measures nothing else.

A 4.2 M Qwen3 in float32. Weights, tokenizer, chat template, tasks, sampling, loss (clipped, token
mean over the batch, advantages over the group's deviation), AdamW, clipping of the gradient,
threads and allocator are the same. Each contender has a process of its own, and they take their
steps in turns; the first step of each is not measured. A step is everything from the end of the one
before: rollout, training, and for agentrl the record on disk and TensorBoard, which it always
writes. TRL writes no checkpoints and logs nothing. For TRL 8, 16, 32 and 64 rows per pass
made no difference in the first task, and 64 is taken in both; it generates with `model.generate`,
and its continuous batching was not tried here. Of a prompt, system message and tool are the
same for all tasks, as they usually are, and agentrl computes what is alike in one pass only once;
`agentrl, a group per pass` spares it nothing but what the eight games of a group share.

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
from benchmarks.beside_trl.policy import random_policy, warm_policy
from benchmarks.beside_trl.race import Program, Turn, measurements, race, reached
from benchmarks.beside_trl.setup import Setup
from benchmarks.beside_trl.venv import VERSIONS, chat_template, peer_python
from benchmarks.harness import Benchmark, parser

KEPT = Path(__file__).parents[1] / ".bench"
ALLOCATOR = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")
OURS, PEER, ALONE = "agentrl", "TRL", "agentrl, a group per pass"
GOALS = {"single turn": 1.5, "multi-turn": 4.0}
LEVELS = (0.34, 0.38, 0.42, 0.46)
"""Mean rewards of the game; the policy begins at about 0.29, and perfect play earns 0.66."""
OVER_STEPS = 5
"""Steps in a mean; that of one step of 64 games scatters by about 0.04."""
QUICK_WARM_STEPS = 80
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


def state(bench: Benchmark, turns: Sequence[Turn], setup: Setup) -> None:
    """State rates and ratios of the steps after the first."""
    title = f"{setup.task}, {setup.threads} thread{'s' * (setup.threads > 1)}"
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
        bench.ratio(f"{title}, {OURS}, {part}", ours, peer, peer=PEER)
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
    """Check that both agree, and measure both tasks."""
    allocator = ALLOCATOR if ALLOCATOR.exists() else None
    programs = contenders(allocator=allocator)
    folder = KEPT / "policies"
    folder.mkdir(parents=True, exist_ok=True)
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
        apart = agreement(setup, programs[PEER])
        apart.check()
        bench.row(
            f"{setup.task}: log-probs apart", apart.logprobs_nats, unit="nats", better="lower"
        )
        bench.row(f"{setup.task}: gradients apart", apart.gradients, unit="of norm", better="lower")
    game = replace(game, steps=1 + (1 if bench.quick else chosen.learning_steps))
    if chosen.learning_only:
        state_learning(bench, run(bench, programs, game))
    else:
        measure(bench, programs, words, game)
    bench.notes.append(f"allocator of all: {allocator or 'the system'}")
    bench.notes.append(f"agentrl: torch {metadata.version('torch')}; TRL: {', '.join(VERSIONS)}")


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

"""Tools that make a run wait, by the clock: our three modes, and TRL's GRPOTrainer.

8 x 8 guessing games a step, of at most six turns. The host takes his time: lognormal with a median
of 0.5 s and sigma 1.2, and 20 s more for 2 % of the answers. The policy is a 4.2 M Qwen3 that was
taught the game, half of the time badly; one thread each. From that one policy each mode trains
`--steps` steps (12) in a process of its own:

- `sync`: a step waits for its longest game, as an agent loop does that runs games side by side and
  waits for all of them (verl's);
- `partial`: twice the games of a step in flight; those that are not done go on in the next step;
- `async`: three steps' games in flight, at most two versions old.

With a `--wait-share` of less than 1 the host is quicker, so that many steps show what is learnt.

TRL takes `--peer-steps` steps (2) after one that is not measured. It awaits the tools of one
message together, but those of different completions one after the other. The games that the modes
are evaluated on, before and after, do not wait. Nearly all of a run is sleep, so a busy machine
disturbs `sync` and TRL little, and the others more. TRL's environment and the policies are made in
`.bench/` when they are not there.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.beside_trl.ours import config_file, run_values
from benchmarks.beside_trl.policy import random_policy, warm_policy
from benchmarks.beside_trl.race import Program, started
from benchmarks.beside_trl.setup import Setup
from benchmarks.beside_trl.venv import VERSIONS, chat_template, peer_python
from benchmarks.commands import agentrl
from benchmarks.harness import Benchmark, parser, positive

KEPT = Path(__file__).parents[1] / ".bench"
MODES: Mapping[str, Mapping[str, Any]] = {
    "sync": {},
    "partial": {"in_flight": 2},
    "async": {"in_flight": 3},
}
GOALS = {"partial": 2.2, "async": 3.0}
"""Of the speed, beside `sync`."""


def train(setup: Setup, folder: Path) -> dict[str, Any]:
    """Train in one mode, and return the run's summary with the metrics of its steps."""
    config = config_file(run_values(setup, folder), folder / "ours.yaml")
    agentrl("train", {"run.name": setup.mode}, config)
    run = folder / setup.mode
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return json.loads((run / "summary.json").read_text()) | {"metrics": lines}


def time_peer(setup: Setup, steps: int, python: Path) -> list[float]:
    """Return the seconds of so many of TRL's steps, after one that is not measured."""
    program = Program(python=python, module="benchmarks.beside_trl.theirs", preload=None)
    told = {"what": "steps", "setup": asdict(replace(setup, steps=1 + steps))}
    with started(program, told | {"limit_tokens": None}, threads=setup.threads) as peer:
        return [peer.step().wall_s for _ in range(1 + steps)][1:]


def state_mode(
    bench: Benchmark,
    mode: str,
    found: list[dict[str, Any]],
    step_s: Mapping[str, list[float]],
    *,
    wait_share: float,
) -> None:
    """State how long a mode's steps took, how many tokens it trained, and what it learnt."""
    bench.middle(f"{mode}: a step", step_s[mode], unit="s")
    ratios = [sync / own for sync, own in zip(step_s["sync"], step_s[mode], strict=True)]
    if mode != "sync":
        goal = GOALS[mode] if wait_share == 1 else None
        bench.middle(f"{mode}: speed", ratios, unit="x", peer="sync", goal=goal)
    tokens = [sum(line["tokens/trained"] for line in run["metrics"]) for run in found]
    bench.middle(f"{mode}: tokens trained", tokens, unit="tokens")
    for number, run in enumerate(found):
        for when in ("before", "after"):
            bench.row(f"{mode} {number}: {when}", run[when]["reward"], unit="reward")
        curve = " ".join(f"{line['reward/mean']:.2f}" for line in run["metrics"])
        bench.notes.append(f"{mode} {number}: mean reward of each step {curve}")


def compare(bench: Benchmark, setup: Setup, *, peer_steps: int) -> None:
    """Train in every mode, once a round, let TRL take its steps, and state what came out."""
    python = peer_python(KEPT / "trl")
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for number in range(bench.rounds):
        for mode, keys in MODES.items():
            with tempfile.TemporaryDirectory() as name:
                own = replace(setup, mode=mode, first_round=setup.first_round + number, **keys)
                found[mode].append(train(own, Path(name)))
    step_s = {
        mode: [run["seconds"]["train"] / setup.steps for run in runs]
        for mode, runs in found.items()
    }
    for mode, runs in found.items():
        state_mode(bench, mode, runs, step_s, wait_share=setup.wait_share)
    if peer_steps:
        peer_s = time_peer(setup, peer_steps, python)
        bench.middle("TRL: a step", peer_s, unit="s")
        speed = statistics.median(peer_s) / statistics.median(step_s["sync"])
        bench.row("sync: speed beside TRL", speed, unit="x", peer="TRL", goal=1.0)
        bench.notes.append(f"TRL: {', '.join(VERSIONS)}")


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=positive, default=12)
    arguments.add_argument("--peer-steps", type=int, default=2, help="0 leaves TRL out")
    arguments.add_argument("--learning-rate", type=float, default=2e-5)
    arguments.add_argument("--wait-share", type=float, default=1.0, help="of the host's time")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("waiting", chosen)
    peer_python(KEPT / "trl")
    folder = KEPT / "policies"
    folder.mkdir(parents=True, exist_ok=True)
    first = random_policy(folder / "random", chat_template(KEPT / "trl"))
    setup = Setup(
        task="waiting",
        policy=str(warm_policy(folder / "waiting", first, env="GuessingLong")),
        steps=chosen.steps,
        threads=1,
        completion_tokens=240,
        learning_rate=chosen.learning_rate,
        wait_share=chosen.wait_share,
        heldout=300,
    )
    if bench.quick:
        setup = replace(setup, steps=1, groups=2, group_size=2, heldout=8, peer_rows=4)
    compare(bench, setup, peer_steps=1 if bench.quick else chosen.peer_steps)
    bench.finish()


if __name__ == "__main__":
    main()

"""The quickstart's task in the three modes: from one warm-started policy, with the real engine and
real sandboxes, to the same number of trained groups. Held-out pass@1, wall time, ages of tokens.

The warm start is done once; each mode then trains in a process of its own, in the order
sync, partial, async, once per `--rounds`, each of which has a seed of its own. On one machine the
trainer and the engine share the cores, so overlapping them gains only what environments and
stragglers leave idle.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.commands import MADE, QUICK_WARMSTART, WARMSTART, agentrl
from benchmarks.harness import Benchmark, parser

MODES = {
    "sync": {},
    "partial": {"rollout.over_provision": "1.5"},
    "async": {"rollout.max_staleness": "1"},
}


def first_policy(folder: Path, *, quick: bool) -> Path:
    """Return the Hugging Face folder of the policy that every mode begins with."""
    keys = {"run.folder": str(folder), "run.name": "first"}
    agentrl("warmstart", keys | (QUICK_WARMSTART if quick else WARMSTART))
    return folder / "first" / "policy"


def run(
    mode: str, policy: Path, folder: Path, *, number: int, sizes: Mapping[str, str]
) -> dict[str, Any]:
    """Train in one mode and return the run's summary with the last step's figures."""
    name = f"{mode}-{number}"
    keys = {
        "run.folder": str(folder),
        "run.name": name,
        **sizes,
        "run.seed": str(number),
        "policy.path": str(policy),
        **MADE,
        "rollout.mode": mode,
    }
    agentrl("train", keys | MODES[mode])
    summary = json.loads((folder / name / "summary.json").read_text())
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return summary | {"metrics": [json.loads(line) for line in lines]}


def main() -> None:
    """Train in every mode and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=40)
    chosen = arguments.parse_args()
    sizes = {"run.steps": f"{chosen.steps}"}
    if chosen.quick:
        sizes = {"run.steps": "2", "evaluate.tasks": "12", "rollout.tasks_per_step": "4"}
    benchmark = Benchmark.from_arguments("modes", chosen)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = first_policy(folder, quick=chosen.quick)
        found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
        for number in range(1 if chosen.quick else chosen.rounds):
            for mode in MODES:
                found[mode].append(run(mode, policy, folder, number=number, sizes=sizes))
    sync_s = statistics.median(summary["seconds"]["train"] for summary in found["sync"])
    for mode, summaries in found.items():
        for number, summary in enumerate(summaries):
            low, high = summary["after"]["ci95"]
            benchmark.row(f"{mode} {number}: before", summary["before"]["pass@1"], unit="pass@1")
            benchmark.row(f"{mode} {number}: after", summary["after"]["pass@1"], unit="pass@1")
            benchmark.row(f"{mode} {number}: after, low end", low, unit="pass@1")
            benchmark.row(f"{mode} {number}: after, high end", high, unit="pass@1")
        after = statistics.fmean(summary["after"]["pass@1"] for summary in summaries)
        benchmark.row(f"{mode}: after, mean", after, unit="pass@1")
        train_s = statistics.median(summary["seconds"]["train"] for summary in summaries)
        benchmark.row(f"{mode}: training", train_s, unit="s")
        benchmark.row(f"{mode}: speed", sync_s / train_s, unit="x", peer="sync")
    benchmark.finish()


if __name__ == "__main__":
    main()

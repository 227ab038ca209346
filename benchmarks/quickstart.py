"""The quickstart over several seeds: held-out pass@1 before and after, and the seconds it takes.

Every run is `agentrl train configs/quickstart.yaml` in a process of its own; `--seeds 0 1 2` says
which. The table of `docs/results.md` is printed last, as Markdown.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import agentrl
from benchmarks.harness import Benchmark, parser


def run(seed: int, folder: Path) -> dict[str, Any]:
    """Train with one seed and return the run's summary."""
    keys = {"run.folder": str(folder), "run.name": f"seed-{seed}", "run.seed": str(seed)}
    agentrl("train", keys)
    return json.loads((folder / f"seed-{seed}" / "summary.json").read_text())


def table(summaries: dict[int, dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| seed | before | after | seconds |", "| ---: | --- | --- | ---: |"]
    for seed, found in summaries.items():
        scores = (
            f"{found[when]['pass@1']:.3f} [{found[when]['ci95'][0]:.3f}, "
            f"{found[when]['ci95'][1]:.3f}]"
            for when in ("before", "after")
        )
        lines.append(f"| {seed} | {' | '.join(scores)} | {sum(found['seconds'].values()):.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Run every seed and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = arguments.parse_args()
    benchmark = Benchmark.from_arguments("quickstart", chosen)
    summaries: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds[:1] if chosen.quick else chosen.seeds:
            found = summaries[seed] = run(seed, Path(folder))
            before, after = found["before"], found["after"]
            gap = after["ci95"][0] - before["ci95"][1]
            total_s = sum(found["seconds"].values())
            benchmark.row(f"seed {seed}: before", before["pass@1"], unit="pass@1")
            benchmark.row(f"seed {seed}: after", after["pass@1"], unit="pass@1", goal=0.9)
            benchmark.row(f"seed {seed}: gap of intervals", gap, unit="pass@1", goal=0.0)
            benchmark.row(f"seed {seed}: time", total_s, unit="s", goal=120, better="lower")
    benchmark.finish()
    benchmark.console.print(table(summaries), markup=False, highlight=False)


if __name__ == "__main__":
    main()

"""The curve of runs as a picture: reward per step, and held-out pass@1 before and after.

.venv/bin/python benchmarks/curve.py runs/ONE runs/OTHER --out curve.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

from agentrl.metrics.writer import read_metrics


def draw(runs: list[Path], out: Path) -> None:
    """Draw the runs, each with its own seed, into one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7.0, 3.2), constrained_layout=True)
    for run in runs:
        summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
        rows = [row for row in read_metrics(run) if "reward/mean" in row]
        steps = [int(row["step"]) for row in rows]
        (line,) = axes.plot(steps, [row["reward/mean"] for row in rows], marker=".", label=run.name)
        for step, when in ((0, "before"), (steps[-1] + 1, "after")):
            found = summary[when]
            low, high = found["ci95"]
            middle = found["pass@1"]
            around = [[middle - low], [high - middle]]
            axes.errorbar(step, middle, around, fmt="D", capsize=4, color=line.get_color())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="step", ylabel="reward", ylim=(0, 1.02))
    axes.set_title("mean reward per step; diamonds: held-out pass@1 with its 95 % interval", size=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=110)


def main() -> None:
    """Draw the runs that were named."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("runs", type=Path, nargs="+")
    arguments.add_argument("--out", type=Path, required=True)
    chosen = arguments.parse_args()
    draw(chosen.runs, chosen.out)


if __name__ == "__main__":
    main()

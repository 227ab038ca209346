"""UI-S1 beside plain supervised training on the same recordings of desktops.

    python benchmarks/ui_s1.py --folder runs/ui-s1

Records the gold player on real desktops (or takes `--recordings`), trains one policy on the
recordings with supervision, and goes on from it in two ways: with more supervision, and with UI-S1.
Each of the three is evaluated on held-out recordings (SOP and step accuracy, every turn met) and on
real desktops (held-out seeds, judged by what the programs left). What is in the folder already is
not made again, so a run that was stopped goes on.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentrl.evaluation.interval import Estimate, rate_estimate
from agentrl.learn.checkpoint import latest
from benchmarks.commands import CONFIGS, MADE, TIMEOUT_S, agentrl
from benchmarks.harness import Benchmark, parser

CONFIG = CONFIGS / "gui_ui_s1.yaml"
TEMPLATES = ["press_in_order", "switches"]
DESKTOP = {"desktops": 3, "warm": 0, "call_s": 120, "start_s": 120, "open_s": 600}
FORMS = {"templates": TEMPLATES, "desktop": DESKTOP}
ARMS = {"start": "warm start", "supervised": "more supervision", "ui_s1": "UI-S1"}


def record(file: Path, tasks: int) -> None:
    """Record gold episodes."""
    options = ["--tasks", str(tasks), "--concurrency", "3", "--kwargs", json.dumps(FORMS)]
    line = [sys.executable, "-m", "agentrl.cli", "record", "gui/Form-v0", str(file), *options]
    subprocess.run(line, check=True, timeout=TIMEOUT_S)


def trained(folder: Path, keys: dict[str, str], supervised_steps: int) -> dict[str, Path]:
    """Return the policy of each arm, made where it is not there."""
    start = folder / "start" / "policy"
    if not start.is_dir():
        agentrl("warmstart", keys | {"run.name": "start"}, CONFIG)
    supervised = folder / "supervised" / "policy"
    given = keys | {"policy.path": str(start), "policy.make": "null"}
    if not supervised.is_dir():
        more = {"run.name": "supervised", "warmstart.steps": str(supervised_steps)}
        agentrl("warmstart", given | more, CONFIG)
    # The evaluation comes after, for all arms alike.
    rl = keys | MADE | {"policy.path": str(start), "run.name": "ui_s1", "evaluate.tasks": "8"}
    if latest(folder / "ui_s1" / "checkpoints") is None:
        agentrl("train", rl, CONFIG)
    found = latest(folder / "ui_s1" / "checkpoints")
    assert found is not None, "a run that ended has a checkpoint"
    return {"start": start, "supervised": supervised, "ui_s1": found}


def evaluated(policy: Path, keys: dict[str, str], file: Path) -> dict[str, Any]:
    """Return the report of a policy, made where it is not there."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        options = [f"{key}={value}" for key, value in keys.items()]
        line = [sys.executable, "-m", "agentrl.cli", "eval", str(CONFIG), *options]
        line += ["--checkpoint", str(policy), "--json", str(file)]
        subprocess.run(line, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


def rate(mean: float, count: int) -> Estimate:
    """Return a share of so many with its interval."""
    passed = round(mean * count)
    return rate_estimate([1.0] * passed + [0.0] * (count - passed), trials=[1] * count)


def shown(estimate: Estimate) -> str:
    """Return a share as people read it."""
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def main() -> None:
    """Make what is missing, and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("runs/ui-s1"))
    arguments.add_argument("--recordings", type=Path, help="Instead of recording any.")
    arguments.add_argument("--record", type=int, default=480, help="Episodes to record.")
    arguments.add_argument("--supervised-steps", type=int, default=120)
    arguments.add_argument("--live", type=int, default=100, help="Tasks on real desktops.")
    arguments.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="Of the config.")
    chosen = arguments.parse_args()
    benchmark = Benchmark.from_arguments("ui_s1", chosen)
    recordings = chosen.recordings or chosen.folder / "forms.jsonl"
    if not recordings.is_file():
        record(recordings, 40 if chosen.quick else chosen.record)
    keys = {"run.folder": str(chosen.folder), "env.kwargs.recordings": str(recordings)}
    keys |= dict(key.split("=", 1) for key in chosen.keys)
    live = keys | {"env.id": "gui/Form-v0", "env.kwargs": json.dumps(FORMS)}
    live |= {"evaluate.tasks": str(chosen.live), "evaluate.threshold": "1.0"}
    live = {key: value for key, value in live.items() if key != "env.kwargs.recordings"}
    lines = ["| policy | SOP | SOP success | step accuracy | on desktops |", "| --- " * 5 + "|"]
    for arm, policy in trained(chosen.folder, keys, chosen.supervised_steps).items():
        reports = chosen.folder / "reports"
        offline = evaluated(policy, keys, reports / f"{arm}-sop.json")
        online = evaluated(policy, live, reports / f"{arm}-live.json")
        names = ("sop_score", "sop_success", "step_accuracy")
        parts = {name: offline[f"component/{name}"] for name in names}
        success = rate(parts["sop_success"], offline["tasks"])
        done = rate(online["pass@1"]["mean"], online["pass@1"]["tasks"])
        for name in names:
            benchmark.row(f"{ARMS[arm]}: {name}", parts[name], unit="share")
        benchmark.row(f"{ARMS[arm]}: on desktops", done.mean, unit="pass@1")
        told = (f"{parts['sop_score']:.3f}", shown(success), f"{parts['step_accuracy']:.3f}")
        lines.append(f"| {ARMS[arm]} | {' | '.join(told)} | {shown(done)} |")
    benchmark.finish()
    benchmark.console.print("\n".join(lines), markup=False, highlight=False)


if __name__ == "__main__":
    main()

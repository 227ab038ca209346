"""UI-S1 beside plain supervised training on the same recordings.

    python benchmarks/ui_s1.py --folder runs/ui-s1
    python -m benchmarks.ui_s1 --case pages --folder runs/ui-s1-pages

Records a player (or takes `--recordings`), trains one policy on the recordings with supervision,
and goes on from it in two ways: with more supervision, and with UI-S1. Each of the three is
evaluated on held-out recordings (SOP and step accuracy, every turn met) and where the recordings
were made (held-out seeds, judged by what came of them). What is in the folder already is not made
again, so a run that was stopped goes on.

- `desktops`: a tiny policy, and a gold player in two dialogs on real desktops.
- `pages`: SmolLM2, and a player that errs, in five families of MiniWoB++ in a real browser.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.evaluation.compare import subtract_paired
from agentrl.evaluation.interval import IntervalEstimate, mean_estimate, rate_estimate
from agentrl.export.row import read_jsonl
from agentrl.learn.checkpoint import latest
from benchmarks.commands import CONFIGS, MADE, TIMEOUT_S, agentrl
from benchmarks.harness import Benchmark, parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Recordings, and where they were made."""

    config: Path
    env: str
    env_kwargs: Mapping[str, Any]
    rollout: Mapping[str, str]
    """Keys of the evaluation where the recordings were made."""
    gentler: Mapping[str, str]
    """Keys of more supervision: a policy that has learnt something loses it at a warm start's own
    rate."""
    record: int
    """Episodes to record."""
    supervised_steps: int
    place: str
    """Heading of the evaluation where the recordings were made."""


CASES: Mapping[str, Case] = {
    "desktops": Case(
        config=CONFIGS / "gui_ui_s1.yaml",
        env="gui/Mix-v0",
        env_kwargs={
            "templates": ["enter_code", "set_options"],
            "desktop": {
                "desktops": 5,
                "warm": 4,
                "recycle_after": 100,
                "call_s": 120,
                "start_s": 120,
                "open_s": 600,
            },
        },
        rollout={
            "rollout.concurrency": "4",
            "rollout.reset_s": "630",
            "rollout.step_s": "130",
        },
        gentler={"warmstart.learning_rate": "5e-4", "warmstart.warmup_steps": "5"},
        record=1000,
        supervised_steps=90,
        place="on desktops",
    ),
    "pages": Case(
        config=CONFIGS / "smollm2" / "ui_s1.yaml",
        env="agentrl_envs.web:WebEnv",
        env_kwargs={
            "pack": "benchmarks.browsing.noisy_player:NoisyMiniWobPack",
            "actions": ["click", "fill"],
            "max_turns": None,
            "browser": {"call_s": 60},
        },
        rollout={"rollout.concurrency": "32", "rollout.reset_s": "180"},
        gentler={"warmstart.learning_rate": "5e-5", "warmstart.warmup_steps": "2"},
        record=500,
        supervised_steps=8,
        place="on pages",
    ),
}
ARMS = {"start": "warm start", "supervised": "more supervision", "ui_s1": "UI-S1"}
FIGURES = ("sop_score", "sop_success", "step_accuracy")
QUICK = {
    "warmstart.demonstrations": "16", "warmstart.steps": "6", "run.steps": "1",
    "rollout.tasks_per_step": "2", "evaluate.tasks": "4", "curation.filter": "{name: none}",
}  # fmt: skip
PASSES = {"sop_success", "passed"}
"""Figures that are 0 or 1."""

Figures = dict[str, dict[str, float]]
"""By task: what an evaluation found out."""


def command(*words: str) -> None:
    """Run `agentrl` with these words; raise if it fails."""
    line = [sys.executable, "-m", "agentrl.cli", *words]
    subprocess.run(line, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)


def record(case: Case, file: Path, tasks: int) -> None:
    """Record episodes of the case's player."""
    told = json.dumps(case.env_kwargs)
    options = ("--tasks", f"{tasks}", "--concurrency=4", "--kwargs", told)
    command("record", case.env, str(file), *options)


def trained(
    case: Case, folder: Path, keys: dict[str, str], supervised_steps: int
) -> dict[str, Path]:
    """Return the policy of each arm, made where it is not there."""
    start = folder / "start" / "policy"
    if not start.is_dir():
        agentrl("warmstart", keys | {"run.name": "start"}, case.config)
    supervised = folder / "supervised" / "policy"
    given = keys | {"policy.path": str(start), "policy.make": "null"}
    if not supervised.is_dir():
        more = {"run.name": "supervised", "warmstart.steps": str(supervised_steps)}
        agentrl("warmstart", given | {**case.gentler} | more, case.config)
    # The evaluation comes after, for all arms alike.
    rl = {name: value for name, value in keys.items() if not name.startswith("warmstart.")}
    rl |= MADE | {"policy.path": str(start), "run.name": "ui_s1", "evaluate.tasks": "8"}
    if latest(folder / "ui_s1" / "checkpoints") is None:
        agentrl("train", rl, case.config)
    found = latest(folder / "ui_s1" / "checkpoints")
    assert found is not None, "a run that ended has a checkpoint"
    return {"start": start, "supervised": supervised, "ui_s1": found}


def evaluated(case: Case, policy: Path, keys: dict[str, str], folder: Path) -> Figures:
    """Return what was found of a policy on each task, played where it was not."""
    if not (folder / "report.json").is_file():
        resume = ["--resume"] if folder.is_dir() else []
        options = [f"{key}={value}" for key, value in keys.items()]
        options += ["--checkpoint", str(policy), "--out", str(folder)]
        command("eval", str(case.config), *options, *resume)
    told = folder / "told"
    if not told.is_dir():
        command("export", str(folder), "--output", str(told))
    return {
        one.task.id: one.components | {"passed": float(one.reward >= 1)}
        for one in read_jsonl(told)
        if one.reward is not None
    }


def estimate(figures: Figures, name: str) -> IntervalEstimate:
    """Return the mean of a share over tasks; a trajectory passes, or has so much of its turns."""
    values = [found[name] for found in figures.values()]
    return rate_estimate(values, trials=[1] * len(values) if name in PASSES else None)


def difference(a: Figures, b: Figures, name: str) -> IntervalEstimate:
    """Return b less a, paired by task."""
    away = [b[task][name] - a[task][name] for task in sorted(a.keys() & b.keys())]
    return subtract_paired(away, trials=1) if name in PASSES else mean_estimate(away)


def shown(estimate: IntervalEstimate, sign: str = "") -> str:
    """Return a share as people read it."""
    low, high = f"{estimate.low:{sign}.3f}", f"{estimate.high:{sign}.3f}"
    return f"{estimate.mean:{sign}.3f} [{low}, {high}]"


def main() -> None:
    """Make what is missing, and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--case", choices=sorted(CASES), default="desktops")
    arguments.add_argument("--folder", type=Path, default=Path("runs/ui-s1"))
    arguments.add_argument("--recordings", type=Path, help="Instead of recording any.")
    arguments.add_argument("--record", type=int, help="Episodes to record.")
    arguments.add_argument("--supervised-steps", type=int)
    arguments.add_argument("--live", type=int, default=100, help="Tasks where they were made.")
    arguments.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="Of the config.")
    chosen = arguments.parse_args()
    benchmark = Benchmark.from_arguments("ui_s1", chosen)
    case = CASES[chosen.case]
    recordings = chosen.recordings or chosen.folder / "recordings.jsonl"
    if not recordings.is_file():
        record(case, recordings, 24 if chosen.quick else chosen.record or case.record)
    keys = {"run.folder": str(chosen.folder), "env.kwargs.recordings": str(recordings)}
    supervised_steps, live_tasks = chosen.supervised_steps or case.supervised_steps, chosen.live
    if chosen.quick:
        keys |= QUICK
        supervised_steps, live_tasks = 2, 2
    keys |= dict(key.split("=", 1) for key in chosen.keys)
    live = keys | {"env.id": case.env, "env.kwargs": json.dumps(case.env_kwargs)} | {**case.rollout}
    live |= {"evaluate.tasks": str(live_tasks)}
    del live["env.kwargs.recordings"]
    heads = ["policy", "SOP", "SOP success", "step accuracy", case.place]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    found: dict[str, tuple[Figures, Figures]] = {}
    for arm, policy in trained(case, chosen.folder, keys, supervised_steps).items():
        offline = evaluated(case, policy, keys, chosen.folder / "told" / f"{arm}-sop")
        online = evaluated(case, policy, live, chosen.folder / "told" / f"{arm}-live")
        found[arm] = offline, online
        parts = [estimate(offline, name) for name in FIGURES] + [estimate(online, "passed")]
        for name, part in zip((*FIGURES, case.place), parts, strict=True):
            benchmark.row(f"{ARMS[arm]}: {name}", part.mean, unit="share")
        lines.append(f"| {ARMS[arm]} | {' | '.join(map(shown, parts))} |")
    (before, there), (after, here) = found["supervised"], found["ui_s1"]
    apart = [difference(before, after, name) for name in FIGURES]
    apart.append(difference(there, here, "passed"))
    lines.append(f"| UI-S1 less more supervision | {' | '.join(shown(a, '+') for a in apart)} |")
    benchmark.finish()
    benchmark.console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

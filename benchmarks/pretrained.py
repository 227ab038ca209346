"""What SmolLM2-135M-Instruct learns, from its released weights: held-out scores with intervals.

Every cell is `agentrl train configs/smollm2/NAME.yaml` with one seed, in a process of its own, and
is meant for two cores that do nothing else. First `agentrl model get smollm2-135m`; for `program`
`pip install openai-agents` into the interpreter that `python` is, for `miniwob` Chromium, and for
`desktop` the programs of docs/gui.md. The methods on `wiki` share their warm start per seed, and
are evaluated every 4 steps.

What is finished is kept in `--folder`; a further call resumes what was stopped and goes on with the
rest. `--only reasoning "wiki, aepo" --seeds 0` runs a part; `--threads 1` where another runs beside
it. The tables of docs/results.md are printed last.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import CONFIGS, MADE, agentrl
from benchmarks.harness import Benchmark, parser

METHODS: Mapping[str, Mapping[str, str]] = {
    "grpo": {},
    "aepo": {
        "rollout.branching.topology": "aepo",
        "learn.advantage.name": "aepo",
        "learn.loss.name": "aepo",
    },
    "arpo": {"rollout.branching.topology": "arpo", "learn.advantage.name": "arpo"},
    "tree_grpo": {
        "rollout.branching": "{topology: tree_grpo, trees: 2, rounds: 1, width: 3}",
        "learn.advantage.name": "tree_grpo",
    },
}
"""Methods that `wiki` compares, at equal trajectories per step."""
QUICK = {
    "run.steps": "1",
    "warmstart.steps": "1",
    "warmstart.demonstrations": "16",
    "rollout.tasks_per_step": "1",
    "rollout.group_size": "2",
    "evaluate.tasks": "2",
    "evaluate.every": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A config of `configs/smollm2`, with keys of its own."""

    config: str
    keys: Mapping[str, str]

    @property
    def file(self) -> Path:
        """Return the config's file."""
        return CONFIGS / "smollm2" / f"{self.config}.yaml"


PROOFS: Mapping[str, Proof] = {
    "tools": Proof(config="tools", keys={}),
    "reasoning": Proof(config="reasoning", keys={}),
    "program": Proof(config="program", keys={}),
    "miniwob": Proof(config="miniwob", keys={}),
    "desktop": Proof(config="desktop", keys={}),
    **{
        f"wiki, {method}": Proof(config="wiki", keys={"evaluate.every": "4", **keys})
        for method, keys in METHODS.items()
    },
}
MIXED = ("reasoning", "program", "miniwob", "desktop")
"""Proofs with several families of tasks, which have a table of their own."""


def train(name: str, seed: int, folder: Path, *, changes: Mapping[str, str]) -> Path:
    """Train one proof with one seed, or go on with it, and return the folder of its run."""
    proof = PROOFS[name]
    run = folder / f"{name.replace(', ', '-')}-{seed}"
    if evaluation_file(run, "after").is_file():
        return run
    keys = {"run.folder": str(folder), "run.name": run.name, "run.seed": str(seed), **proof.keys}
    keys |= changes
    if name.startswith("wiki"):
        keys |= {**MADE, "policy.path": str(warm_up(proof, seed, folder, changes=changes))}
    agentrl("train", keys, proof.file, "--resume" if run.exists() else "--no-resume")
    return run


def warm_up(proof: Proof, seed: int, folder: Path, *, changes: Mapping[str, str]) -> Path:
    """Return the warm-started policy that the methods of a seed begin with, made once."""
    name = f"{proof.config}-warm-{seed}"
    policy = folder / name / "policy"
    if not policy.is_dir():
        keys = {"run.folder": str(folder), "run.name": name, "run.seed": str(seed)}
        agentrl("warmstart", {**keys, **changes}, proof.file)
    return policy


def score(found: Mapping[str, Any]) -> str:
    """Return a pass rate with its interval."""
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, a step each."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def row(name: str, seed: int, run: Path) -> str:
    """Return what came out of a run as a row of a Markdown table."""
    before, after = read_evaluation(run, "before"), read_evaluation(run, "after")
    lines = read_metrics(run)
    total_s = sum(json.loads((run / "summary.json").read_text())["seconds"].values())
    curve = [f"{line['heldout/pass@1']:.2f}" for line in lines if "heldout/pass@1" in line]
    cells = (
        *(name, seed, score(before["pass@1"]), score(after["pass@1"]), ", ".join(curve)),
        round(sum(line["rollout/sampled_tokens"] for line in lines)),
        round(sum(line["rollout/tool_calls"] for line in lines)),
        f"{total_s:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def read_evaluation(run: Path, when: str) -> dict[str, Any]:
    """Return an evaluation of a run."""
    return json.loads(evaluation_file(run, when).read_text())


def evaluation_file(run: Path, when: str) -> Path:
    """Return the file of an evaluation; the one after training is written last."""
    return run / "evaluations" / f"{when}.json"


def table(runs: Mapping[tuple[str, int], Path]) -> str:
    """Return a row per run as a Markdown table."""
    head = "proof | seed | before | after | between | sampled tokens | tool calls | seconds"
    align = "| --- | ---: | --- | --- | --- | ---: | ---: | ---: |"
    return "\n".join([f"| {head} |", align, *(row(*key, run) for key, run in runs.items())])


def family_table(runs: Sequence[Path]) -> str:
    """Return a row per family of tasks as a Markdown table, over the tasks of several runs."""
    lines = ["| family | before | after |", "| --- | --- | --- |"]
    evaluations = [
        [read_evaluation(run, when)["tags"] for run in runs] for when in ("before", "after")
    ]
    for family in evaluations[0][0]:
        scores = (
            "; ".join(score(tags[family]["pass@1"]) for tags in of_runs) for of_runs in evaluations
        )
        lines.append(f"| {family} | {' | '.join(scores)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for and state what came out."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--only", nargs="+", choices=sorted(PROOFS), default=list(PROOFS))
    arguments.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    arguments.add_argument("--threads", type=int, help="of torch, in place of a config's own")
    chosen = arguments.parse_args()
    benchmark = Benchmark.from_arguments("pretrained", chosen)
    changes = QUICK if chosen.quick else {}
    if chosen.threads is not None:
        changes = {**changes, "run.threads": str(chosen.threads)}
    runs: dict[tuple[str, int], Path] = {}
    for name in chosen.only:
        for seed in chosen.seeds[:1] if chosen.quick else chosen.seeds:
            run = runs[name, seed] = train(name, seed, chosen.folder, changes=changes)
            for when in ("before", "after"):
                found = read_evaluation(run, when)["pass@1"]["mean"]
                benchmark.row(f"{name}, seed {seed}: {when}", found, unit="pass@1")
    benchmark.finish()
    benchmark.console.print(table(runs), markup=False, highlight=False, soft_wrap=True)
    for mixed in MIXED:
        if not (found := [run for (name, _), run in runs.items() if name == mixed]):
            continue
        benchmark.console.print(family_table(found), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

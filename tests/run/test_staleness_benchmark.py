"""The matrix of methods on stale data: what it asks of a run, and what it reads out of one.

Mutants seen caught: a cost without its last step, a bar that must be passed; ages not weighed by
tokens; a fixed number of tasks; staleness without its backlog; a finished cell of other length
taken; UI-S1 with a turn's own reward; one config with another learning rate.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.learn import LearnSection
from agentrl.config.load import load_config
from agentrl.config.schema import plain
from agentrl.evaluation.interval import rate_estimate
from agentrl.run.extensions import branching
from benchmarks import staleness
from benchmarks.commands import CONFIGS, WARMSTART
from benchmarks.harness import Benchmark
from benchmarks.staleness import (
    SIZES,
    STALENESS,
    Cell,
    Cost,
    Found,
    Matrix,
    cost,
    pooled,
    table,
)

SOURCES = {
    "grpo": ("grpo", "ppo_clip", "recompute", "tis", "none"),
    "aepo": ("aepo", "aepo", "recompute", "tis", "aepo"),
    "ui_s1": ("ui_s1", "ppo_clip", "recompute", "tis", "none"),
    "gspo": ("grpo", "gspo", "recompute", "tis", "none"),
    "cispo": ("grpo", "cispo", "behaviour", "none", "none"),
    "m2po": ("grpo", "m2po", "recompute", "none", "none"),
    "ttrl": ("grpo", "ppo_clip", "recompute", "tis", "none"),
    "dare": ("grpo", "ppo_clip", "recompute", "tis", "none"),
    "echo": ("echo", "ppo_clip", "recompute", "tis", "none"),
    "milestones": ("milestones", "ppo_clip", "recompute", "tis", "none"),
    "nudge": ("nudge", "ppo_clip", "recompute", "tis", "none"),
}


def step(number: int, **figures: float) -> dict[str, Any]:
    known = {
        "step": number,
        "tokens/trained": 100.0,
        "age/mean": float(number - 1),
        "age/max": float(number - 1),
        "rollout/sampled_tokens": 80.0,
        "rollout/tool_calls": 5.0,
    }
    return known | {name.replace("_at_", "/pass@"): value for name, value in figures.items()}


METRICS = [
    step(1),
    step(2, heldout_at_1=0.7),
    step(3) | {"tokens/trained": 200.0},
    step(4, heldout_at_1=0.92),
    step(5),
    step(6, heldout_at_1=0.88),
]
SUMMARY = {"before": {"pass@1": 0.4, "n": 50}, "after": {"pass@1": 0.96, "n": 50}}
CELL = Cell(method="gspo", staleness=4, seed=1)


def found(cell: Cell = CELL, **changes: Any) -> Found:
    """Return a cell's findings; `reward` is the last one."""
    known: dict[str, Any] = {
        "cell": cell,
        "curve": ((0, 0.4), (32, changes.pop("reward", 0.9))),
        "tasks": 100,
        "age_mean": 2.0,
        "age_max": 4,
        "bar": Cost(step=32, sampled_tokens=1000, tool_calls=10),
    }
    return Found(**(known | changes))


@pytest.mark.parametrize("method", SOURCES)
@pytest.mark.parametrize("age", STALENESS)
def test_every_cell_is_a_config_that_loads(method: str, age: int, tmp_path: Path) -> None:
    cell = Cell(method=method, staleness=age, seed=2)
    keys = cell.keys(runs=tmp_path, policy=tmp_path / "policy", sizes=SIZES)
    config = load_config(
        CONFIGS / "methods" / f"{method}.yaml", [f"{key}={value}" for key, value in keys.items()]
    )
    rollout = config.rollout
    assert (config.run.name, config.run.seed, config.run.steps) == (cell.name, 2, 32)
    assert (config.policy.path, config.warmstart) == (str(tmp_path / "policy"), None)
    if age:
        ahead = (rollout.mode, rollout.max_staleness, rollout.backlog)
        assert ahead == ("async", age, age)
    else:
        assert (rollout.mode, rollout.backlog) == ("sync", 0)


@pytest.mark.parametrize("method", SOURCES)
def test_a_methods_config_is_a_longer_quickstart_with_its_method(method: str) -> None:
    config = load_config(CONFIGS / "methods" / f"{method}.yaml")
    warmstart = [f"{key}={value}" for key, value in WARMSTART.items()]
    base = load_config(CONFIGS / "quickstart.yaml", warmstart)
    assert config.run.name == method
    learn = config.learn
    chosen = (learn.advantage, learn.loss, learn.proximal, learn.correction)
    assert (*(slot.name for slot in chosen), config.rollout.branching.topology) == SOURCES[method]
    own = ("group_reward", "advantage", "loss", "proximal", "correction", "kl", "hint")
    slots = dict.fromkeys(own)
    one, other = plain(config), plain(base)
    for values in (one, other):
        values["learn"] |= slots
        values["run"]["steps"] = None
        kwargs = values["env"]["kwargs"]
        if "strategies" in kwargs:
            values["env"] |= {"id": kwargs["env"], "kwargs": kwargs["kwargs"]}
        kwargs.pop("milestones", None)
        values["rollout"]["branching"] = values["run"]["name"] = None
    assert one == other


def test_branching_in_aepos_config_grows_trees() -> None:
    config = load_config(CONFIGS / "methods" / "aepo.yaml")
    assert branching.build_tree_planner(config, vocabulary=100) is not None


def test_no_turn_is_a_mismatch_where_there_is_no_expert() -> None:
    """With the default every turn before the last would be paid 0 and cut off from the end."""
    learn = load_config(CONFIGS / "methods" / "ui_s1.yaml").learn
    assert isinstance(learn, LearnSection)
    assert learn.advantage.model_dump()["match_reward"] == 0


def test_a_run_is_read_from_its_summary_and_its_metrics() -> None:
    one = Found.of(CELL, SUMMARY, METRICS)
    assert one.curve == ((0, 0.4), (2, 0.7), (4, 0.92), (6, 0.88), (6, 0.96))
    assert (one.steps, one.tasks, one.passed) == (6, 50, 48)
    assert one.age_mean == pytest.approx((0 + 1 + 2 * 2 + 3 + 4 + 5) / 7)
    assert one.age_max == 5
    assert one.bar == Cost(step=4, sampled_tokens=320, tool_calls=20)


def test_the_cost_is_that_of_the_first_evaluation_at_the_bar() -> None:
    curve = [(0, 0.4), (2, 0.9), (4, 0.8), (6, 0.95)]
    assert cost(curve, METRICS) == Cost(step=2, sampled_tokens=160, tool_calls=10)
    assert cost(curve, METRICS, bar=0.91) == Cost(step=6, sampled_tokens=480, tool_calls=30)
    assert cost(curve, METRICS, bar=0.96) is None
    assert cost([(0, 0.9)], METRICS) == Cost(step=0, sampled_tokens=0, tool_calls=0)


def test_seeds_are_pooled_by_task() -> None:
    """Kills: a mean of means where an evaluation lost tasks, and the interval of one seed."""
    whole = pooled([found(reward=0.8), found(reward=1.0, tasks=50)])
    assert whole == rate_estimate([1.0] * 130 + [0.0] * 20, trials=[1.0] * 150)
    assert (whole.mean, whole.tasks) == (pytest.approx(130 / 150), 150)


def test_the_table_has_a_row_per_method_and_staleness() -> None:
    slow, fresh = (Cell(method="m2po", staleness=k, seed=0) for k in (16, 0))
    rows = table(
        [
            found(slow, bar=None, reward=0.5),
            found(fresh),
            found(Cell(method="grpo", staleness=16, seed=0), reward=0.95),
            found(Cell(method="grpo", staleness=16, seed=1), reward=0.85, bar=None, age_max=16),
        ]
    ).splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| m2po", "0"],
        ["| grpo", "16"],
        ["| m2po", "16"],
    ]
    assert rows[1] == (
        "| grpo | 16 | 2.0, 16 | 0.95, 0.85 | 0.900 [0.850, 0.934] | 1,000 (1 of 2) | 10 (1 of 2) |"
    )
    assert rows[2].endswith("| never | never |")


def test_rows_are_stated_for_each_seed_that_got_there() -> None:
    bench = Benchmark("test")
    staleness.state(bench, [found(), found(Cell(method="gspo", staleness=4, seed=2), bar=None)])
    names = [row.metric for row in bench.rows]
    assert names[:2] == ["gspo, staleness 4: age", "gspo, staleness 4: reward"]
    assert [name for name in names if "to 0.9" in name] == ["gspo, staleness 4, seed 1: to 0.9"] * 2


def test_what_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, str]] = []

    def agentrl(command: str, keys: dict[str, str], config: Path = CONFIGS) -> None:
        ran.append((command, keys["run.name"], config.name))
        folder = Path(keys["run.folder"]) / keys["run.name"]
        folder.mkdir(parents=True)  # fails where the rest of a killed run is still there
        (folder / "policy").mkdir()
        (folder / "summary.json").write_text(json.dumps(SUMMARY))
        lines = METRICS[: int(keys.get("run.steps", 0))]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(own)}\n" for own in lines))

    monkeypatch.setattr(staleness, "agentrl", agentrl)
    matrix = Matrix(folder=tmp_path, sizes=SIZES | {"run.steps": "6"})
    (tmp_path / "runs" / CELL.name).mkdir(parents=True)
    first = matrix.run(CELL)
    assert ran == [("warmstart", "seed-1", "configs"), ("train", CELL.name, "gspo.yaml")]
    assert matrix.run(CELL) == first == Found.of(CELL, SUMMARY, METRICS)
    assert len(ran) == 2
    shorter = Matrix(folder=tmp_path, sizes=SIZES | {"run.steps": "4"}).run(CELL)
    assert shorter == Found.of(CELL, SUMMARY, METRICS[:4])
    assert ran[2:] == [("train", CELL.name, "gspo.yaml")]


def test_a_run_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: str, keys: dict[str, str], config: Path = CONFIGS) -> None:
        if command == "train":
            raise staleness.subprocess.CalledProcessError(1, "agentrl")

    monkeypatch.setattr(staleness, "agentrl", fails)
    matrix = Matrix(folder=tmp_path)
    assert matrix.run(CELL) is None
    assert not matrix.file(CELL).exists()

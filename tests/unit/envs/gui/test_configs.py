"""The configs that train on desktops mean what their docs say. Nothing is started here.

Mutants seen caught, in the configs: another cap, share of steps, threshold or mode; too few tasks
to come back; fewer desktops than episodes, or fewer turns; deadlines below those of a desktop.
"""

from pathlib import Path

import pytest

import agentrl
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.rollout.curation.allocation import DartAllocator
from agentrl.rollout.curation.dapo import DynamicSamplingFilter
from agentrl.rollout.curation.rules import CurationContext, build_curation_rules, conflicts
from agentrl.rollout.curation.steps import HighEntropySteps
from agentrl.rollout.curation.success_pool import SuccessPool
from agentrl.run.build import build_scheduler_policy

CONFIGS = Path(__file__).parents[4] / "configs"
NAMES = ("gui_tree", "gui_dart")


def config(name: str) -> RunConfig:
    return load_config(CONFIGS / f"{name}.yaml", ())


@pytest.mark.parametrize("name", NAMES)
def test_desktops_suffice_and_tasks_are_there(name: str) -> None:
    loaded = config(name)
    desktop = loaded.env.kwargs["desktop"]
    # One that was given back is cleared before it is free, and is not to be waited for.
    workers = loaded.cluster.workers if loaded.cluster.kind == "ray" else 1
    assert desktop["desktops"] * workers > loaded.rollout.concurrency
    assert loaded.rollout.reset_s > desktop["open_s"]
    assert loaded.rollout.step_s > desktop["call_s"]
    assert loaded.rollout.max_turns == loaded.env.kwargs["max_turns"]
    env = agentrl.make(loaded.env.id, **loaded.env.kwargs)
    wanted = [*loaded.env.kwargs["templates"]]
    tasks = iter(env.tasks("heldout", seed=0))
    assert {next(tasks).data["template"] for _ in range(8 * len(wanted))} == {*wanted}


def test_darts_modules_are_all_there() -> None:
    dart = config("gui_dart")
    assert (dart.cluster.kind, dart.engine.processes, dart.rollout.mode) == ("ray", 2, "async")
    rules = build_curation_rules(dart.curation.model_dump())
    assert rules.allocation == DartAllocator(threshold=0.6, length_slack=1.5)
    assert isinstance(rules.filter, DynamicSamplingFilter)
    assert rules.filter.max_mean_reward == 1.0
    assert rules.pool == SuccessPool(max_age=8)
    assert rules.steps == HighEntropySteps(keep=0.8, how="percentile", weight="mask")
    assert dart.learn.correction.model_dump() | {"floor": 0.0} == {
        "name": "tis", "level": "token", "cap": 1.0, "floor": 0.0, "normalise": False,
    }  # fmt: skip
    cluster = dart.cluster
    cpus = cluster.workers * cluster.worker_cpus + dart.engine.processes * cluster.engine_cpus
    assert cpus <= 2, "Ray has no more on the machine this is for"
    assert (dart.learn.loss.name, dart.learn.advantage.name) == ("gspo", "grpo")
    policy = build_scheduler_policy(dart)
    assert (policy.groups_per_step, policy.group_size, policy.max_staleness) == (8, 8, 1)
    assert policy.rolling
    around = CurationContext(
        group_size=8, tasks_per_step=8, tasks=dart.env.task_limit, entropies=True
    )
    assert conflicts(rules, around) == []
    assert dart.env.task_limit
    assert dart.env.task_limit >= 8 * (1 + dart.rollout.max_staleness)

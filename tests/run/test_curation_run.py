"""Curation in a run from a config: what is refused, what is measured, what goes on after a stop.

Mutants seen caught: curation not saved; the groups of a resumed run counted anew; weights not given
to the trainer; entropies not asked for; conflicts not checked.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.config.curation import CurationSection
from agentrl.config.schema import method_of, plain, sections_of
from agentrl.errors import ConfigError
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import Message
from agentrl.metrics.writer import read_metrics
from agentrl.rollout.curation.rules import SLOTS, CurationRules, build_curation_rules
from agentrl.run.extensions.curation import SUCCESSES
from agentrl.run.train import TrainingResult, train
from agentrl.store.codec import unpack
from tests.support.doubles import double, doubles, gold

CONFIG = """
run: {{name: tiny, folder: {folder}, steps: 4, checkpoint_every: 2}}
env: {{id: "{module}:Doubles", task_limit: 12}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 20, batch_size: 8, demonstrations: 12, guess_fraction: 0.3}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 8, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 4}}
metrics: {{tensorboard: false}}
"""


def how_long(task: agentrl.Task, messages: Sequence[Message]) -> float:
    """Pay by length, in two prizes: some groups of a policy this small earn the same."""
    return float(len(messages[-1].text) % 8 > 5)


class Doubles(ToolEnv):
    def __init__(self) -> None:
        super().__init__(tasks=doubles, tools=[double], reward=how_long, gold=gold)


def config_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(CONFIG.format(folder=folder / "runs", module=__name__))
    return path


def curated(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"curation.{name}": value for name, value in keys.items()}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `module:Class` in a config find this very module."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def weights_of(result: TrainingResult) -> dict[str, torch.Tensor]:
    return load_file(
        result.folder / "checkpoints" / f"step-{result.steps:06d}" / "model.safetensors"
    )


ALL: dict[str, Any] = {
    "sampler.name": "vade",
    "filter.name": "dapo",
    "filter.max_refills": 20,
    "pool.name": "success",
}


def test_a_curated_run_says_what_it_chose_and_a_resumed_one_still_has_its_pool(
    tmp_path: Path,
) -> None:
    train(config_file(tmp_path), curated(ALL))
    folder = tmp_path / "runs" / "tiny"
    lines = read_metrics(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line["curation/kept"] + line["curation/short"] == line["batch/groups"] == 2
        assert line["advantage/zero_fraction"] == 0
    assert sum(line["curation/dropped_all_wrong"] for line in lines) > 0
    state = json.loads((folder / "checkpoints/step-000004/state.json").read_text())
    saved = state["samplers"]["curation"]
    assert saved["state"]["steps"] == 4
    held = sum(map(len, saved["state"]["pool"]["successes"].values()))
    assert held > 0
    packed = unpack((folder / "checkpoints/step-000004" / SUCCESSES).read_bytes())
    assert len(packed) == held
    for branch in packed.values():
        assert sum(len(node.versions) for node in branch.nodes) > 0
    result = train(config_file(tmp_path), {**curated(ALL), "run.steps": 5}, resume=True)
    again = json.loads((folder / "checkpoints/step-000005/state.json").read_text())
    names = {ref(s) for held in saved["state"]["pool"]["successes"].values() for s in held}
    later = {
        ref(s)
        for held in again["samplers"]["curation"]["state"]["pool"]["successes"].values()
        for s in held
    }
    assert names & later, "what was in the pool is in it after one more step"
    assert result.steps == 5


def ref(success: Mapping[str, Any]) -> str:
    return f"{success['group']}/{success['result']['sample']}"


@pytest.mark.parametrize(
    "keys",
    [
        {"sampler.name": "vade", "filter.name": "dapo", "filter.max_refills": 20},
        {"sampler.name": "cdas", "filter.name": "dapo", "filter.max_refills": 20},
        {"filter.name": "dapo", "filter.max_refills": 20, "allocation.name": "dart"},
        {"allocation.name": "dars", "steps.name": "high_entropy"},
        {"pool.name": "success"},
        {"allocation.name": "xrpo", "allocation.first_round": 2},
    ],
    ids=["sampler", "no store", "stream", "growth", "pool", "rounds"],
)
@pytest.mark.nightly
def test_a_curated_run_that_is_stopped_and_resumed_has_the_same_weights(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    overrides = {**curated(keys), **({"store": None} if "cdas" in keys.values() else {})}
    whole = train(config_file(tmp_path / "whole"), overrides)
    path = config_file(tmp_path / "parts")
    train(path, {**overrides, "run.steps": 2})
    resumed = train(path, overrides, resume=True)
    first, second = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    lines = [read_metrics(r.folder) for r in (whole, resumed)]
    for one, other in zip(*lines, strict=True):
        figures = [name for name in one if name.startswith("curation/")]
        assert figures
        assert [one[name] for name in figures] == [other[name] for name in figures]
    if "steps.name" in keys:
        assert all(0.5 < line["curation/steps_kept"] < 1 for line in lines[0])
        assert any(line["curation/trajectories_extra"] > 0 for line in lines[0])


@pytest.mark.parametrize("mode", ["partial", "async"])
def test_everything_at_once_in_the_other_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    handed: list[Any] = []
    step = PolicyTrainer.step

    def noted(self: PolicyTrainer, trees: Any, trainable: Any, weights: Any) -> dict[str, float]:
        handed.append(weights)
        return step(self, trees, trainable, weights)

    monkeypatch.setattr(PolicyTrainer, "step", noted)
    keys = {**ALL, "allocation.name": "dart", "steps.name": "high_entropy"}
    result = train(config_file(tmp_path), {**curated(keys), "rollout.mode": mode})
    lines = read_metrics(result.folder)
    assert len(lines) == 4
    assert sum(line["curation/kept"] for line in lines) >= 4
    assert len(handed) == 4
    each = [
        w for weights in handed for t in weights for turns in t.values() for w in turns.values()
    ]
    assert {*each} == {0.0, 1.0}


# Keys


def test_every_section_is_the_method_it_names() -> None:
    """Same slots, same names, same knobs, same defaults."""
    for slot, methods in SLOTS.items():
        sections = sections_of(CurationSection.model_fields[slot].annotation)
        assert [method_of(section) for section in sections] == [*methods]
        for section in sections:
            kind: Any = methods[method_of(section)]
            knobs = plain(section()) | {}
            del knobs["name"]
            assert knobs == ({} if kind is None else dataclasses.asdict(kind()))
    slots = {*CurationSection.model_fields}
    assert slots == {field.name for field in dataclasses.fields(CurationRules)}
    assert build_curation_rules(CurationSection().model_dump()) == CurationRules()
    assert CurationRules().does_nothing
    for slot, methods in SLOTS.items():
        for name in [*methods][1:]:
            assert not build_curation_rules({slot: {"name": name}}).does_nothing


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"curation.sampler.name": "vade", "env.task_limit": None}, ("env.task_limit",)),
        ({"curation.sampler.name": "cdas", "env.task_limit": 1}, ("rollout.tasks_per_step",)),
        ({"curation.allocation.name": "dart", "env.task_limit": None}, ("env.task_limit",)),
        ({"curation.filter.name": "dapo", "rollout.group_size": 1}, ("rollout.group_size",)),
        (
            {
                "curation.pool.name": "success",
                "rollout.mode": "async",
                "rollout.max_age": 2,
            },
            ("curation.pool.max_age", "rollout.max_age"),
        ),
        ({"curation.filter.oversample": 2.0}, ("curation.filter.oversample", "not a key")),
        ({"curation.success_above": 0.5}, ("curation.success_above", "curation.pool.name")),
        ({"curation.revisit_every": 5}, ("curation.revisit_every", "curation.sampler.name")),
        ({"curation.sampler.decay": 5}, ("curation.sampler.decay", "not a key")),
        ({"curation.sampler.name": "vad"}, ("curation.sampler.name", "vade")),
        (
            {"curation.sampler.name": "vade", "curation.sampler.local_decay": 0},
            ("curation.sampler.local_decay", "more than 0"),
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    tmp_path: Path, keys: dict[str, Any], names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        train(config_file(tmp_path), keys)
    assert all(name in str(error.value) for name in names)
    assert not (tmp_path / "runs").exists()


def test_fewer_tasks_than_the_limit_says_are_seen_when_they_are_read(tmp_path: Path) -> None:
    keys = {"curation.sampler.name": "uniform", "env.task_limit": 5000}
    with pytest.raises(ConfigError, match=r"sampler\.name.*rollout\.tasks_per_step"):
        train(config_file(tmp_path), {**keys, "rollout.tasks_per_step": 600})

"""Rates over a run, and the average of the weights. Mutants applied by hand and seen caught:

- cosine upside down, or going on after its end: golden schedule
- schedule left out, its step forgotten in the update: rate tests
- decay and its complement swapped, average aliasing the weights, updated in a step without credit,
  weights judged in its place: tests of the average
"""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.learn import AdamWSection, EmaSection, LearnSection, LoraSection
from agentrl.config.section import find_unread
from agentrl.errors import ConfigError
from agentrl.learn.ewma import WeightEma
from agentrl.learn.schedule import interpolate, warmup
from agentrl.learn.trainer import PolicyTrainer
from tests.support.learning import model_of, trees_of


def test_schedules_golden() -> None:
    def values(shape: Any) -> list[float]:
        return [interpolate(8.0, 2.0, shape=shape, step=step, steps=4) for step in range(6)]

    assert values("constant") == [8.0] * 6
    assert values("linear") == [8.0, 6.5, 5.0, 3.5, 2.0, 2.0]
    half = 3 / math.sqrt(2)
    assert values("cosine") == pytest.approx([8.0, 5 + half, 5.0, 5 - half, 2.0, 2.0])
    assert interpolate(8.0, 2.0, shape="linear", step=0, steps=0) == 2.0
    assert [warmup(update, steps=2) for update in (1, 2, 3)] == [0.5, 1.0, 1.0]


@given(
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.sampled_from(["linear", "cosine"]),
    st.integers(1, 50),
)
def test_a_schedule_goes_one_way_from_first_to_last(
    first: float, last: float, shape: Any, steps: int
) -> None:
    values = [
        interpolate(first, last, shape=shape, step=step, steps=steps) for step in range(steps + 2)
    ]
    assert values[0] == pytest.approx(first, abs=1e-9)
    assert values[steps] == pytest.approx(last, abs=1e-9)
    assert values[steps + 1] == values[steps]
    ups = [after - before for before, after in pairwise(values)]
    assert all(up * (last - first) >= -1e-9 for up in ups)


def test_the_rate_rises_over_updates_and_falls_over_steps() -> None:
    section = AdamWSection(
        learning_rate=0.8, warmup_steps=3, decay="linear", final_learning_rate_fraction=0.5
    )
    config = LearnSection(minibatches=2, optimizer=section)
    trainer = PolicyTrainer(model_of(), config, seed=0, steps=4)
    rates = [trainer.step(trees_of(version=v))["learning_rate"] for v in range(5)]
    # Two updates per step; the metric is their mean. After the last step it stays.
    full = [1.0, 0.875, 0.75, 0.625, 0.5]
    warm = [(1 / 3 + 2 / 3) / 2, 1.0, 1.0, 1.0, 1.0]
    assert rates == pytest.approx([0.8 * f * w for f, w in zip(full, warm, strict=True)])


def test_the_scheduled_rate_is_the_one_that_moves_the_weights() -> None:
    moved: list[float] = []
    for version in (0, 3):
        section = AdamWSection(learning_rate=0.01, decay="cosine")
        trainer = PolicyTrainer(model_of(), LearnSection(optimizer=section), seed=0, steps=6)
        trainer.version = version
        before = trainer.weights()["lm_head.weight"].clone()
        trainer.step(trees_of())
        moved.append(float((trainer.weights()["lm_head.weight"] - before).abs().max()))
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-3)


def test_a_rate_that_falls_needs_the_steps_of_the_run() -> None:
    section = LearnSection(optimizer=AdamWSection(decay="linear"))
    with pytest.raises(ConfigError, match="needs the number of steps"):
        PolicyTrainer(model_of(), section, seed=0)


def test_every_key_is_read_before_the_first_step() -> None:
    """A run says at its start which keys nobody has read."""
    section = AdamWSection(
        learning_rate=0.1,
        betas=(0.5, 0.6),
        epsilon=1e-3,
        weight_decay=0.1,
        warmup_steps=2,
        decay="linear",
        final_learning_rate_fraction=0.5,
        max_grad_norm=2.0,
    )
    config = LearnSection(
        optimizer=section,
        ema=EmaSection(decay=0.5),
        lora=LoraSection(rank=2, alpha=3.0, dropout=0.1, targets=("q_proj",)),
        precision="bfloat16",
        gradient_checkpointing=True,
        head_chunk_tokens=7,
    )
    PolicyTrainer(model_of(), config, seed=0, steps=4)
    assert find_unread(config) == []


def test_the_average_golden() -> None:
    ema = WeightEma({"w": torch.tensor([1.0])}, decay=0.75)
    for value in (5.0, 2.0):
        ema.update({"w": torch.tensor([value])})
    # 1 -> 0.75 + 1.25 = 2 -> 1.5 + 0.5
    assert ema.state()["w"].item() == pytest.approx(2.0)
    ema.update({"w": torch.tensor([6.0])})
    assert ema.state()["w"].item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bfloat16"}, {"lora": LoraSection(rank=2)}, {"minibatches": 2}]
)
def test_what_is_judged_is_the_average_and_what_trains_is_not(changes: dict[str, Any]) -> None:
    fast = AdamWSection(learning_rate=0.05)
    config = LearnSection(optimizer=fast, ema=EmaSection(decay=0.6), **changes)
    trainer = PolicyTrainer(model_of(), config, seed=0)
    own = {name: value.clone() for name, value in trainer.optimizer.weights().items()}
    for version in range(3):
        trainer.step(trees_of(version=version))
        if config.minibatches == 1:
            for name, value in trainer.optimizer.weights().items():
                own[name] = 0.6 * own[name] + 0.4 * value
    assert trainer.ema is not None
    weights = {name: value.clone() for name, value in trainer.weights().items()}
    judged = trainer.evaluation_weights()
    assert judged.keys() == weights.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(judged[name], weights[name])
    assert torch.equal(trainer.weights()[name], weights[name])
    if config.minibatches == 1:
        for parameter, value in trainer.ema.state().items():
            torch.testing.assert_close(value, own[parameter])
    if config.lora is None:
        average = trainer.ema.state()[name]
        assert torch.equal(judged[name], average.to(judged[name].dtype))


def test_without_an_average_the_weights_are_judged() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    judged = trainer.evaluation_weights()
    assert all(value.data_ptr() == judged[n].data_ptr() for n, value in trainer.weights().items())


def test_a_step_without_credit_leaves_the_average_alone() -> None:
    config = LearnSection(optimizer=AdamWSection(learning_rate=0.05), ema=EmaSection(decay=0.5))
    trainer = PolicyTrainer(model_of(), config, seed=0)
    trainer.step(trees_of())
    assert trainer.ema is not None
    before = {name: value.clone() for name, value in trainer.ema.state().items()}
    trainer.step(trees_of(group=1, version=1))
    assert all(torch.equal(value, before[name]) for name, value in trainer.ema.state().items())

"""Unit tests of plans in which ranks divide lines, with arithmetic done by hand.

Mutations that were seen to fail here: an exchange of all places by every rank, of queries alone,
and over the link of a machine where ranks lie on two; sizes that divide query heads only.
"""

from typing import Any

import pytest

from agentrl.config.learn import LearnSection
from agentrl.config.run import RunConfig
from agentrl.plan.machine import find_machine
from agentrl.plan.model_shape import find_shape
from agentrl.plan.run_plan import change_config, exchange_s, list_context_sizes, plan_training
from agentrl.simulate.synthetic import synthetic

TRACE = synthetic("agentic")
CONFIG: dict[str, Any] = {
    "env": {"id": "code/ChainSum-v0"},
    "policy": {"make": {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}},
    "rollout": {"group_size": 4},
    "engine": {"context_tokens": 512},
    "learn": {"micro_batch_tokens": 2048, "layout": "packed", "devices": {"count": 4}},
}


def divided(size: int, **changes: Any) -> RunConfig:
    keys = {"learn.devices.context_parallel": size, **changes}
    return change_config(RunConfig.model_validate(CONFIG), keys)


def test_a_rank_of_two_has_half_of_the_activations_and_of_the_work() -> None:
    shape = find_shape(divided(1))
    whole = plan_training(divided(1), shape, TRACE)
    half = plan_training(divided(2), shape, TRACE)
    assert half.parameter_bytes == whole.parameter_bytes
    assert half.tokens == whole.tokens
    assert half.saved_bytes == pytest.approx(whole.saved_bytes / 2, rel=0.05)
    assert half.flops == pytest.approx(whole.flops / 2, rel=0.01)


def test_ranks_exchange_what_they_do_not_compute() -> None:
    """Two layers; queries and outputs of 4 heads of 16, keys and values of 2: 192 numbers a place.
    Each of two ranks has 1,024 of 2,048 places, and sends half of these.
    """
    config = divided(2)
    machine = find_machine("8xH100-80GB")
    moved = 2 * 1024 * 192 * 4 / 2
    expected = moved / machine.device.link_bytes_per_s + 8 * 10e-6
    assert exchange_s(config, find_shape(config), machine, places=2048) == pytest.approx(expected)
    rounded = divided(2, **{"learn.precision": "bfloat16"})
    expected = moved / 2 / machine.device.link_bytes_per_s + 8 * 10e-6
    assert exchange_s(rounded, find_shape(config), machine, places=2048) == pytest.approx(expected)


def test_ranks_of_two_machines_exchange_over_the_network() -> None:
    config = divided(16, **{"learn.devices.count": 16, "policy.make.heads": 16} | KV)
    machine = find_machine("16xH100-80GB")
    assert machine.per_node == 8
    moved = 2 * 2048 / 16 * (4 * 16 * 16) * 4 * 15 / 16
    expected = moved / machine.network_bytes_per_s + 8 * 10e-6
    assert exchange_s(config, find_shape(config), machine, places=2048) == pytest.approx(expected)


KV = {"policy.make.kv_heads": 16}


def test_whole_lines_are_exchanged_with_nobody() -> None:
    machine = find_machine("8xH100-80GB")
    assert exchange_s(divided(1), find_shape(divided(1)), machine, places=2048) == 0.0


@pytest.mark.parametrize(
    ("changes", "ranks", "sizes"),
    [
        ({}, 8, [2]),
        ({}, 1, []),
        ({}, 6, [2]),
        ({"devices": {"count": 8, "context_parallel": 2}}, 8, []),
        ({"layout": "padded"}, 8, []),
    ],
)
def test_the_sizes_that_are_offered_divide_ranks_and_heads(
    changes: dict[str, Any], ranks: int, sizes: list[int]
) -> None:
    """Of 4 heads and 2 key-value heads."""
    learn = LearnSection.model_validate(changes)
    assert list_context_sizes(learn, find_shape(divided(1)), ranks=ranks) == sizes

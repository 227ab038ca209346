"""Moments in 8 bits without torchao; tests/system has it train."""

import sys

import pytest
import torch
from torch import nn

from agentrl.config.learn import AdamWSection
from agentrl.errors import ConfigError
from agentrl.learn.optimizer import AdamW
from agentrl.learn.quantized_moments import is_quantized, moment_bytes


@pytest.mark.parametrize(
    ("shape", "quantized", "size"),
    [
        ((16, 256), True, 4096 + 4 * 16 + 1024),
        ((4096,), True, 4096 + 4 * 16 + 1024),
        ((15, 256), False, 4 * 3840),  # below 4096 numbers
        ((65, 64), False, 4 * 4160),  # no whole number of blocks
        ((1000, 1024), True, 1024000 + 4 * 4000 + 1024),
        ((), False, 4),
        ((0, 256), False, 0),
    ],
)
def test_large_tensors_of_whole_blocks_are_quantized(
    shape: tuple[int, ...], quantized: bool, size: int
) -> None:
    weight = torch.empty(shape, device="meta")
    assert is_quantized(weight) == quantized
    assert moment_bytes(weight) == size


def test_without_torchao_the_key_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"moments is 8bit.*agentrl-gym\[torchao\]"):
        AdamW(nn.Linear(64, 64), AdamWSection(moments="8bit"))
    AdamW(nn.Linear(64, 64), AdamWSection())

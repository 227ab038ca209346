"""Which GPUs ranks and engine processes get. Decided without one, as a table."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.build_engine import build_engine
from agentrl.runtime.gpu_placement import VARIABLE, DevicePlacement, place_devices, visible_devices
from tests.support.engine_models import tiny

ONE, FOUR = ("0",), ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("devices", "ranks", "engines", "first", "expected"),
    [
        (ONE, 1, 0, 0, (("0",), ())),
        (ONE, 1, 2, 0, (("0",), ("0", "0"))),
        (("0", "1"), 1, 1, 0, (("0",), ("1",))),
        (FOUR, 1, 3, 0, (("0",), ("1", "2", "3"))),
        (FOUR, 2, 3, 0, (("0", "1"), ("2", "3", "2"))),
        (FOUR, 4, 2, 0, (FOUR, ("3", "2"))),
        (FOUR, 1, 2, 2, (("2",), ("0", "1"))),
        (("GPU-a", "GPU-b"), 1, 1, 0, (("GPU-a",), ("GPU-b",))),
    ],
)
def test_placement_golden(
    devices: tuple[str, ...],
    ranks: int,
    engines: int,
    first: int,
    expected: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    placement = place_devices(devices, ranks=ranks, engines=engines, first=first)
    assert (placement.ranks, placement.engines) == expected


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 12))
def test_devices_are_shared_only_where_there_are_too_few(
    device_count: int, ranks: int, engines: int
) -> None:
    devices = tuple(map(str, range(device_count)))
    if ranks > device_count:
        with pytest.raises(
            ConfigError, match=f"needs {ranks} GPUs .* but {device_count} are visible"
        ):
            place_devices(devices, ranks=ranks, engines=engines)
        return
    placement = place_devices(devices, ranks=ranks, engines=engines)
    assert placement.has_own_devices == (ranks + engines <= device_count)
    loads = [placement.engines.count(device) for device in devices[ranks:]]
    assert not loads or max(loads) - min(loads) <= 1
    assert len(placement.engines) == engines


def test_names_are_those_of_the_variable() -> None:
    assert visible_devices(2, {VARIABLE: "4, 7,9"}) == ("4", "7")
    assert visible_devices(2, {VARIABLE: "4"}) == ("0", "1")
    assert visible_devices(2, {}) == ("0", "1")


def test_a_placement_reads_as_one_line() -> None:
    placement = DevicePlacement(ranks=("0", "1"), engines=("3",))
    assert placement.describe() == (
        "trainer rank 0 on GPU 0; trainer rank 1 on GPU 1; engine 0 on GPU 3"
    )


def test_nccl_between_processes_that_share_a_device_is_refused(tmp_path: Path) -> None:
    model: Any = tiny("qwen3")
    config = RunConfig.model_validate(
        {
            "env": {"id": "a/B-v0"},
            "engine": {"processes": 2, "broadcast": {"backend": "nccl"}},
            "policy": {"path": str(tmp_path)},
        }
    )
    policy: Any = SimpleNamespace(path=tmp_path, model=model)
    with pytest.raises(ConfigError, match="the trainer is on cpu; choose gloo"):
        build_engine(config, policy)

"""Unit tests of the ranks that a machine's CPU can start.

Mutations that were seen to fail here: the bound off by one, no bound, nccl taken on the CPU.
"""

import pytest

from agentrl.config.run import RunConfig
from agentrl.run.preflight import RANK_BYTES, check_ranks, find_rank_fault


def test_as_many_ranks_start_as_memory_holds() -> None:
    assert find_rank_fault(8, "auto", 8 * RANK_BYTES) == ""
    fault = find_rank_fault(9, "gloo", 8 * RANK_BYTES)
    assert fault.startswith("learn.devices.count is 9, ")
    assert fault.endswith("set learn.devices.count to at most 8")


def test_one_rank_starts_anywhere() -> None:
    assert find_rank_fault(1, "nccl", 1) == ""


def test_nccl_is_refused_between_cpus() -> None:
    assert "set learn.devices.backend: auto, or gloo" in find_rank_fault(2, "nccl", 2**40)


def ranks(count: int, **policy: str) -> RunConfig:
    """Return a run of so many ranks."""
    make = {"hidden_size": 64, "layers": 2}
    return RunConfig.model_validate(
        {
            "env": {"id": "code/ChainSum-v0"},
            "policy": {"make": make, **policy},
            "learn": {"devices": {"count": count}},
        }
    )


def test_ranks_that_a_run_starts_on_the_cpu_are_counted() -> None:
    (fault,) = check_ranks(ranks(10**9, device="cpu"))
    assert fault.startswith("learn.devices.count is 1000000000, but ranks on the CPU")
    assert list(check_ranks(ranks(2, device="cpu"))) == []
    assert list(check_ranks(ranks(10**9, device="cuda"))) == []


def test_ranks_of_torchrun_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    assert list(check_ranks(ranks(10**9, device="cpu"))) == []

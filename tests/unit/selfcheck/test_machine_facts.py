"""Facts of a machine in a report."""

import os
import subprocess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

import pytest

from agentrl.selfcheck.checks.machine_facts import (
    ask_smi,
    list_peers,
    list_system,
    read_cpu_name,
    read_memory_limit,
    select_settings,
)


def test_settings_without_secrets_and_hosts() -> None:
    shown = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_LIBRARY_PATH": "/x/y",
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "VLLM_USE_V1": "1",
        "WORLD_SIZE": "2",
    }
    hidden = {
        "HOME": "/home/ann",
        "HF_HUB_TOKEN": "x",
        "HF_HUB_ENDPOINT": "https://x",
        "MASTER_ADDR": "box7",
        "NCCL_COMM_ID_KEY": "x",
        "TORCH_MASTER_ADDR": "box7",
        "VLLM_API_KEY": "x",
        "VLLM_HOST_IP": "10.0.0.1",
        "MY_CUDA_HOME": "/x",
    }
    assert select_settings({**hidden, **shown}) == shown


def test_a_container_has_its_limit(tmp_path: Path) -> None:
    first, second = tmp_path / "max", tmp_path / "bytes"
    assert read_memory_limit((first, second)) is None
    second.write_text(f"{3 * 2**30}\n")
    assert read_memory_limit((first, second)) == 3
    second.write_text("9223372036854771712")
    assert read_memory_limit((first, second)) is None
    first.write_text("max\n")
    second.write_text("1073741824")
    assert read_memory_limit((first, second)) is None


def test_a_cpu_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert read_cpu_name(file) is None
    file.write_text("processor\t: 0\nmodel name\t: Some CPU 2.0 \nmodel\t: 3\n")
    assert read_cpu_name(file) == "Some CPU 2.0"
    file.write_text("Hardware: x")
    assert read_cpu_name(file) is None


def test_ways_between_gpus() -> None:
    assert list_peers(3, lambda one, other: one + other < 3) == "0: 1 2; 1: 0; 2: 0"
    assert list_peers(2, lambda one, other: False) == "0: none; 1: none"


def test_what_nvidia_smi_says_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [
        (CompletedProcess([], 0, "\x1b[4mGPU0\x1b[0m NV4\n", ""), "GPU0 NV4"),
        (CompletedProcess([], 9, "", "no driver"), "status 9: no driver"),
        (TimeoutExpired("x", 1), "nvidia-smi did not answer within 10 s"),
        (FileNotFoundError(), "nvidia-smi cannot be run: FileNotFoundError"),
    ]
    for end, said in ends:

        def run(*arguments: Any, end: Any = end, **options: Any) -> Any:
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(subprocess, "run", run)
        assert ask_smi("topo", "-m") == said


def test_a_system_says_no_name_of_its_own() -> None:
    facts = dict(list_system())
    assert {"kernel", "libc", "cores", "load", "memory_gib", "limit.nofile"} <= facts.keys()
    assert os.uname().nodename not in map(str, facts.values())

"""Rules on what a driver says of its GPUs. The lines are nvidia-smi's.

Mutants seen caught: a minor release of CUDA compared with the driver, the first GPU taken for all,
capabilities compared as text, and a note for a GPU that is not used.
"""

from pathlib import Path

import pytest

from agentrl.config.run import RunConfig
from agentrl.run.preflight import find_notes
from agentrl.runtime.gpu_driver import (
    GpuFacts,
    find_bfloat16_fault,
    find_compiler_fault,
    find_driver_fault,
    parse_gpus,
    read_torch_cuda,
)

T4 = GpuFacts("Tesla T4", (7, 5), "550.54.15")
A100 = GpuFacts("NVIDIA A100-SXM4-80GB", (8, 0), "550.54.15")
B200 = GpuFacts("NVIDIA B200", (10, 0), "580.65.06")


def test_lines_of_nvidia_smi_are_read() -> None:
    text = "Tesla T4, 7.5, 550.54.15\nNVIDIA A100-SXM4-80GB, 8.0, 550.54.15\n"
    assert parse_gpus(text) == (T4, A100)
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate") == ()
    assert parse_gpus("Tesla K80, [N/A], 470.1\n") == ()


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda: Optional[str] = None", None),
        ("__version__ = '2.13.0'", None),
    ],
)
def test_torch_says_what_it_is_built_for(line: str, release: str | None, tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(f"debug = False\n{line}\nhip: Optional[str] = None\n")
    assert read_torch_cuda(file) == release
    assert read_torch_cuda(tmp_path / "none.py") is None


def test_a_driver_runs_all_minor_releases_from_its_own_on() -> None:
    assert find_driver_fault("12.9", [A100]) == ""
    assert find_driver_fault("11.8", [A100]) == ""
    assert find_driver_fault("13.0", [B200]) == ""
    said = find_driver_fault("13.0", [A100])
    assert said.startswith(
        "torch is built for CUDA 13.0, which needs driver 580 or newer, but this machine has "
        "driver 550.54.15: "
    )
    assert find_driver_fault(None, [A100]) == find_driver_fault("13.0", []) == ""


def test_bfloat16_is_there_where_one_gpu_has_it() -> None:
    assert find_bfloat16_fault([T4]).startswith("Tesla T4 (compute capability 7.5) does not")
    assert find_bfloat16_fault([T4, A100]) == find_bfloat16_fault([B200]) == ""
    assert find_bfloat16_fault([]) == ""


def test_triton_needs_its_package_and_a_compiler(tmp_path: Path) -> None:
    on_path = {"PATH": str(tmp_path)}
    said = "there is no C compiler (cc, gcc, clang) on PATH"
    assert find_compiler_fault(on_path, has_triton=True) == said
    (tmp_path / "gcc").touch(mode=0o755)
    assert find_compiler_fault(on_path, has_triton=True) == ""
    assert find_compiler_fault(on_path, has_triton=False) == "the package triton is not installed"
    other = on_path | {"CC": "icx"}
    assert find_compiler_fault(other, has_triton=True) == "there is no C compiler (icx) on PATH"


def test_a_gpu_that_is_left_alone_is_noted() -> None:
    def notes(gpus: tuple[GpuFacts, ...], cuda: str | None, fault: str = "", **policy: str) -> str:
        config = RunConfig.model_validate(
            {"env": {"id": "a"}, "policy": policy, "learn": {"layout": "tree"}}
        )
        return "; ".join(find_notes(config, gpus=gpus, torch_cuda=cuda, compiler_fault=fault))

    assert "this machine has Tesla T4, but torch is built for the CPU" in notes((T4,), None)
    assert "which needs driver 580" in notes((T4,), "13.0")
    assert notes((T4,), None, device="cpu") == notes((), "13.0") == notes((B200,), "13.0") == ""
    assert notes((B200,), "13.0", "no compiler").startswith("learn.layout is tree, whose attention")
    assert (
        notes((B200,), "13.0", "no compiler", device="cpu") == notes((), None, "no compiler") == ""
    )

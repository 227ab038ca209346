"""GPUs as NVIDIA's driver tells of them, and what torch needs of them; torch is not imported."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SMI_S = 5.0
"""Deadline for nvidia-smi; without an answer nothing is known, and nothing refused."""
FIRST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""First driver of each CUDA release: it runs all minor releases of it (NVIDIA's "CUDA
Compatibility", minor version compatibility)."""
FIRST_BFLOAT16 = (8, 0)
"""First compute capability (Ampere) with bfloat16; torch emulates it on older ones."""
COMPILERS = ("cc", "gcc", "clang")

_GPU = re.compile(r"^([^,\n]+), (\d+)\.(\d+), (\d[\d.]*)$", re.MULTILINE)
_TORCH_CUDA = re.compile(r"^cuda: [^=\n]*= '(\d[\d.]*)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of this machine."""

    name: str
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    driver: str
    """Version of the driver, such as `550.54.15`."""


def read_gpus(program: str = "nvidia-smi") -> tuple[GpuFacts, ...]:
    """Return the GPUs that the driver knows; none where it does not say."""
    query = "--query-gpu=name,compute_cap,driver_version"
    try:
        result = subprocess.run(
            [program, query, "--format=csv,noheader"],
            capture_output=True,
            timeout=SMI_S,
            check=True,
            text=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    return parse_gpus(result.stdout)


def parse_gpus(text: str) -> tuple[GpuFacts, ...]:
    """Return the GPUs in lines of nvidia-smi: `Tesla T4, 7.5, 550.54.15`."""
    return tuple(
        GpuFacts(match[1].strip(), (int(match[2]), int(match[3])), match[4])
        for match in _GPU.finditer(text)
    )


def read_torch_cuda(file: Path | None = None) -> str | None:
    """Return the release of CUDA that torch is built for, such as `13.0`; None where it is built
    for none, or does not say. `file` is torch's `version.py` by default."""
    if file is None:
        spec = find_spec("torch")
        folders = (spec.submodule_search_locations if spec is not None else None) or []
        file = Path(folders[0]) / "version.py" if folders else Path()
    try:
        match = _TORCH_CUDA.search(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match is not None else None


def find_driver_fault(torch_cuda: str | None, gpus: Sequence[GpuFacts]) -> str:
    """Return the reason why a torch for this CUDA finds no GPU with this driver, or an empty
    string."""
    if torch_cuda is None or not gpus:
        return ""
    major = int(torch_cuda.partition(".")[0])
    driver = gpus[0].driver
    first = FIRST_DRIVERS.get(major, 0)
    if int(driver.partition(".")[0]) >= first:
        return ""
    return (
        f"torch is built for CUDA {torch_cuda}, which needs driver {first} or newer, but this "
        f"machine has driver {driver}: update the driver, or install a torch for its CUDA "
        "(https://pytorch.org/get-started)"
    )


def find_bfloat16_fault(gpus: Sequence[GpuFacts]) -> str:
    """Return the reason why no GPU here computes in bfloat16, or an empty string where one may."""
    if not gpus or any(gpu.capability >= FIRST_BFLOAT16 for gpu in gpus):
        return ""
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    major, minor = max(gpu.capability for gpu in gpus)
    return (
        f"{names} (compute capability {major}.{minor}) does not support it, GPUs from "
        f"{FIRST_BFLOAT16[0]}.{FIRST_BFLOAT16[1]} on do"
    )


def find_compiler_fault(environment: Mapping[str, str], *, has_triton: bool) -> str:
    """Return the reason why Triton cannot compile kernels here, or an empty string where it may."""
    if not has_triton:
        return "the package triton is not installed"
    path = environment.get("PATH")
    named = environment.get("CC")
    if any(shutil.which(name, path=path) for name in ([named] if named else COMPILERS)):
        return ""
    return f"there is no C compiler ({named or ', '.join(COMPILERS)}) on PATH"

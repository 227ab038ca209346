"""Facts of a machine that explain a failure on it: system, limits, settings, GPUs and links."""

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from agentrl.runtime.machine import usable_cores
from agentrl.selfcheck.report import SECRET_NAME, FigureValue

GIB = 2**30
CPUS = Path("/proc/cpuinfo")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
SHARED_MEMORY = Path("/dev/shm")
SETTINGS = re.compile(
    r"(?:CUDA|CUBLAS|CUDNN|NCCL|GLOO|NVIDIA|NVTE|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|VLLM|OMP|KMP|MKL"
    r"|OPENBLAS|MALLOC|HIP|ROCR|HSA|HF_HUB|TRANSFORMERS)_\w+|LD_PRELOAD|LD_LIBRARY_PATH|RANK"
    r"|LOCAL_RANK|WORLD_SIZE|PYTHONOPTIMIZE|PYTHONMALLOC"
)
"""Environment variables that change how torch, NCCL or vLLM work."""
HOST_NAME = re.compile(r"(?:^|_)(?:HOST|IP|ADDR|ADDRESS|URL|PROXY|ENDPOINT)(?:_|$)")
"""Names of variables that may say where a machine is."""
MOST_GPUS = 16
SMI_S = 10.0
SMI_FIELDS = (
    *("driver_version", "compute_mode", "mig.mode.current", "ecc.mode.current", "pstate"),
    *("power.limit", "temperature.gpu", "utilization.gpu"),
)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def list_system() -> Iterator[tuple[str, FigureValue]]:
    """Yield facts of the system and its limits."""
    yield "system", f"{platform.system()} {platform.machine()}"
    yield "kernel", platform.release()
    yield "libc", " ".join(platform.libc_ver())
    yield "container", Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    yield "cores", usable_cores()
    yield "cpu", read_cpu_name(CPUS)
    yield "load", round(os.getloadavg()[0], 2)
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    yield "memory_gib", round(gib, 1)
    yield "memory_limit_gib", read_memory_limit(CGROUP_LIMITS)
    if SHARED_MEMORY.is_dir():
        usage = shutil.disk_usage(SHARED_MEMORY)
        yield "shm_gib", round(usage.total / GIB, 3)
        yield "shm_free_gib", round(usage.free / GIB, 3)
    for name in ("NOFILE", "MEMLOCK", "NPROC"):
        limit, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        yield f"limit.{name.lower()}", "unlimited" if limit == resource.RLIM_INFINITY else limit


def read_cpu_name(file: Path) -> str | None:
    """Return the CPU's name, None where its file is not there or says none."""
    if not file.is_file():
        return None
    match = re.search(r"^model name\s*:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
    return match and match[1].strip()


def read_memory_limit(files: tuple[Path, ...]) -> float | None:
    """Return the GiB that a container may take, by the first of its files; None without a limit."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        # Version 1 of control groups says "none" by a number near 2**63.
        return round(int(text) / GIB, 2) if text.isdigit() and int(text) < 2**60 else None
    return None


def select_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how torch, NCCL or vLLM work: none that may name a secret or
    the machine."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if SETTINGS.fullmatch(name) and not SECRET_NAME.search(name) and not HOST_NAME.search(name)
    }


def list_gpus() -> Iterator[tuple[str, FigureValue]]:
    """Yield facts of every visible GPU, and of the ways between them."""
    count = torch.cuda.device_count()
    for number in range(min(count, MOST_GPUS)):
        properties = torch.cuda.get_device_properties(number)
        yield f"gpu.{number}.name", properties.name
        yield f"gpu.{number}.capability", f"{properties.major}.{properties.minor}"
        yield f"gpu.{number}.memory_gib", round(properties.total_memory / GIB, 2)
        try:
            free, _ = torch.cuda.mem_get_info(number)
        except RuntimeError as error:  # one in exclusive mode that another process has
            yield f"gpu.{number}.free_gib", str(error).partition("\n")[0]
            continue
        yield f"gpu.{number}.free_gib", round(free / GIB, 2)
    if count > 1:
        yield "gpu.peers", list_peers(min(count, MOST_GPUS), torch.cuda.can_device_access_peer)


def list_peers(count: int, can_access: Callable[[int, int], bool]) -> str:
    """Return for each GPU those whose memory it reaches: `0: 1 2; 1: 0; 2: none`."""
    rows = [
        " ".join(str(other) for other in range(count) if other != one and can_access(one, other))
        for one in range(count)
    ]
    return "; ".join(f"{one}: {row or 'none'}" for one, row in enumerate(rows))


def list_driver_facts() -> Iterator[tuple[str, FigureValue]]:
    """Yield what nvidia-smi says, where there is one: modes of the GPUs, and the links."""
    fields = ",".join(SMI_FIELDS)
    yield "smi.gpus", ask_smi(f"--query-gpu={fields}", "--format=csv,noheader")
    yield "smi.links", ask_smi("topo", "-m")


def ask_smi(*arguments: str, program: str = "nvidia-smi") -> str:
    """Return the output of nvidia-smi, or the reason why there is none."""
    try:
        result = subprocess.run(
            [program, *arguments], capture_output=True, timeout=SMI_S, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return f"{program} did not answer within {SMI_S:g} s"
    except (OSError, ValueError) as error:
        return f"{program} cannot be run: {type(error).__name__}"
    text = ESCAPES.sub("", result.stdout.strip() or result.stderr.strip())
    return text if result.returncode == 0 else f"status {result.returncode}: {text}"

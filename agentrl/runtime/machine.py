"""Description of this machine and installation, for the record of a run and `agentrl doctor`."""

import contextlib
import ctypes
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentrl.runtime.distribution import __version__

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "gymnasium",
    "reasoning-gym",
    "numpy",
    "pydantic",
    "safetensors",
)
GIT_TIMEOUT_S = 5.0


def set_batch_invariance(cpus: Path = Path("/proc/cpuinfo")) -> None:
    """Make matrix products on Intel's CPUs batch invariant: a row's bits depend on no other row.

    There MKL chooses its code by the number of rows, unless it is told not to before its first
    product. On other CPUs its code is batch invariant without it.
    """
    if cpus.exists() and "GenuineIntel" in cpus.read_text(errors="replace"):
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def environment() -> dict[str, Any]:
    """Return the versions, machine, command and commit of a run, as plain JSON."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(sys.argv),
        "python": platform.python_version(),
        "packages": versions(),
        "machine": {
            "system": platform.platform(),
            "host": platform.node(),
            "cores": usable_cores(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "gpus": gpus() if "torch" in sys.modules else [],
        },
        "git": git_state(Path.cwd()),
    }


def versions() -> dict[str, str | None]:
    """Return the version of agentrl and of every package that shapes a run, None where missing."""
    return {"agentrl": __version__, **{name: version_of(name) for name in PACKAGES}}


def version_of(package: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Return the number of cores this process may run on, which in a container is not all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the names of the CUDA devices. Imports torch."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit `folder` is at and whether files differ from it; None outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain")
    return {"commit": commit, "changed": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def set_thread_count(count: int) -> None:
    """Let torch use so many threads in this process.

    They sleep where they wait for each other. By default they spin, and beside other work the one
    that is waited for has no core: a step with two threads then takes four times the CPU time.
    """
    # OpenMP reads it once, when torch is imported first; processes that we start inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    share_malloc_arena()
    set_batch_invariance()
    import torch

    torch.set_num_threads(count)


def share_malloc_arena() -> None:
    """Let all threads of this process allocate from one arena of glibc's malloc.

    With an arena per thread, memory that one has freed is kept for its own allocations. Steps train
    in other threads as they come, and each arena grew to what a step needs: SmolLM2 took 21 GiB
    after five steps, and takes 10.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_M_ARENA_MAX = -8
"""As in malloc.h."""


def device_of(name: str) -> str:
    """Return the device a config names; `auto` is CUDA where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name

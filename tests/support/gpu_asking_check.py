"""A check of a module that asks for a GPU when it is imported, on a torch that counts how often
CUDA's driver is asked."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from agentrl.selfcheck.context import CheckContext

asked: list[int] = []


def _ask_driver() -> int:
    asked.append(1)
    return 0


cuda: Any = torch.cuda
library: Any = torch._C  # pyright: ignore[reportPrivateUsage]
cuda._is_compiled = lambda: True
cuda._device_count_nvml = lambda: 0
library._cuda_getDeviceCount = _ask_driver
if os.environ.get("SELFCHECK_LOSE_DRIVER"):
    cuda._is_in_bad_fork = lambda: True
torch.cuda.is_available()


def tell(context: CheckContext) -> None:
    """Record how often the driver was asked before and now, and the threads that there are."""
    context.record("program", Path(sys.argv[0]).name)
    context.record("asked_before", len(asked))
    torch.cuda.is_available()
    context.record("asked_now", len(asked))
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    context.record("threads", int(status.partition("Threads:")[2].split()[0]))

"""Checks of a self-check on the simulated device, as they would run on a GPU.

What only CUDA has (its memory, NCCL, compiled kernels) is replaced by the least that a check asks.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentrl.models import folders
from agentrl.selfcheck.__main__ import run_check
from agentrl.selfcheck.catalogue import CHECKS
from agentrl.selfcheck.checks import kernels, throughput, weights
from agentrl.selfcheck.context import CheckContext
from agentrl.selfcheck.report import FigureValue
from tests.support.simulated_device import NAME, DeviceSimulation, move, register

NAMES = ("layouts", "head", "gap", "weights-file", "throughput")
"""The checks that the simulation can run: weights of another of its models cannot be read in
inference mode, nor written to a file."""


def _load_there(path: Any, *, dtype: Any, device: str) -> Any:
    model = _load(path, dtype=dtype, device="cpu")
    if device == NAME:
        move(model)
    return model


def _load_here(path: Any, *, dtype: Any, device: str) -> Any:
    """Return a model on the CPU: the local engine puts it where it is to be."""
    return _load(path, dtype=dtype, device="cpu")


_load = folders.load_model


def _give(value: Any) -> Callable[..., Any]:
    def give(*args: Any, **options: Any) -> Any:
        return value

    return give


def _prepare() -> None:
    register()
    for module in (kernels, throughput, weights):
        setattr(module, "load_model", _load_there)  # noqa: B010 - another function of the same name
    loading: Any = folders
    loading.load_model = _load_here
    cuda: Any = torch.cuda
    cuda.is_bf16_supported = _give(True)
    cuda.synchronize = cuda.reset_peak_memory_stats = _give(None)
    cuda.mem_get_info = _give((2**34, 2**34))
    cuda.memory_allocated = cuda.max_memory_allocated = _give(0)
    throughput.SIZES["cuda"] = throughput.SIZES["cpu"]
    measures: Any = throughput
    measures.measure_product_rate = _give(1e12)
    measures.predict_peak_bytes = _give(2**20)  # its fake tensors and the simulation exclude it


def main() -> None:
    """Print as JSON what each check has found."""
    _prepare()
    found: dict[str, Any] = {}
    for check in CHECKS:
        if check.name in NAMES:
            figures: dict[str, FigureValue] = {}
            with tempfile.TemporaryDirectory() as folder, DeviceSimulation():
                context = CheckContext(NAME, Path(folder), 600.0, figures.__setitem__)
                status, reason = run_check(check.function, context)
            found[check.name] = {"status": status, "reason": reason, "figures": figures}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

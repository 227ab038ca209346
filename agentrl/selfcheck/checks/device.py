"""Facts of a device and of its software, and whether it multiplies matrices right."""

import os
import platform
import re
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from agentrl.runtime.extras import is_installed
from agentrl.runtime.machine import version_of, versions
from agentrl.selfcheck.checks.machine_facts import (
    list_driver_facts,
    list_gpus,
    list_system,
    select_settings,
)
from agentrl.selfcheck.checks.policies import list_dtypes
from agentrl.selfcheck.context import CheckContext

DRIVER = Path("/proc/driver/nvidia/version")
OTHER_PACKAGES = ("vllm", "triton", "peft", "accelerate", "flash-attn", "ray")
PRODUCT_LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest error of a product, relative to its norm, by type."""
PRODUCT_SIZES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices whose product is timed, by device."""
TIMED_S = 0.5


def check_device(context: CheckContext) -> None:
    """Record what there is, and compare matrix products with float64 on the CPU."""
    for package, version in versions().items():
        context.record(f"version.{package}", version)
    context.record("version.python", platform.python_version())
    for package in OTHER_PACKAGES:
        context.record(f"version.{package}", version_of(package))
    for name, value in list_system():
        context.record(name, value)
    for name, value in select_settings(os.environ).items():
        context.record(f"env.{name}", value)
    context.record("torch.cuda", torch.version.cuda)
    context.record("torch.threads", torch.get_num_threads())
    context.record("tf32", torch.backends.cuda.matmul.allow_tf32)
    context.record("triton", is_installed("triton"))
    if context.device != "cpu":
        _record_gpu(context)
    for name in list_dtypes(context.device):
        dtype = getattr(torch, name)
        error = measure_product_error(context.device, dtype)
        context.expect(f"product.{name}.error", error, at_most=PRODUCT_LIMITS[dtype])
        rate = measure_product_rate(context.device, dtype)
        context.record(f"product.{name}.tflops", round(rate / 1e12, 3))


def _record_gpu(context: CheckContext) -> None:
    context.record("gpu.count", torch.cuda.device_count())
    properties = torch.cuda.get_device_properties(0)
    context.record("gpu.processors", properties.multi_processor_count)
    for name, value in (*list_gpus(), *list_driver_facts()):
        context.record(name, value)
    context.record("gpu.driver", read_driver(DRIVER))
    context.record("gpu.bfloat16", torch.cuda.is_bf16_supported(including_emulation=False))
    context.record("gpu.flash_attention", torch.backends.cuda.is_flash_attention_available())
    context.record("gpu.cudnn", torch.backends.cudnn.version())
    context.record("gpu.nccl", _read_nccl_version())


def read_driver(file: Path) -> str | None:
    """Return the version of NVIDIA's driver, None where its file is not there or says none."""
    if not file.is_file():
        return None
    text = file.read_text(errors="replace")
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match and match[1]


def _read_nccl_version() -> str | None:
    if not torch.distributed.is_nccl_available():
        return None
    nccl: Any = import_module("torch.cuda.nccl")
    return ".".join(map(str, nccl.version()))


def measure_product_error(device: str, dtype: torch.dtype, size: int = 257) -> float:
    """Return the error of a product of two random matrices, relative to its norm."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(dtype) for _ in range(2))
    found = (a.to(device) @ b.to(device)).double().cpu()
    exact = a.double() @ b.double()
    return float((found - exact).norm() / exact.norm())


def measure_product_rate(device: str, dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of one large product: what a step could do
    at most on this device, as it is now."""
    size = PRODUCT_SIZES["cpu" if device == "cpu" else "cuda"]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = a @ b
    synchronize(device)
    best_s, until_s = float("inf"), time.monotonic() + TIMED_S
    while best_s == float("inf") or time.monotonic() < until_s:
        start_s = time.monotonic()
        torch.mm(a, b, out=out)
        synchronize(device)
        best_s = min(best_s, time.monotonic() - start_s)
    return 2 * size**3 / best_s


def synchronize(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)

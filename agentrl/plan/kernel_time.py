"""Time of kernels by roofline: each takes as long as its slower half, arithmetic or traffic."""

from collections.abc import Mapping

from agentrl.plan.machine import DeviceSpec
from agentrl.plan.op_trace import KernelWork


def kernel_s(kernel: KernelWork, device: DeviceSpec) -> float:
    """Return the least seconds of one call on a device."""
    roof = device.float32_flops_per_s if kernel.is_float32 else device.bf16_flops_per_s
    if device.attention_flops_per_s is not None and "attention" in kernel.name:
        roof = device.attention_flops_per_s
    return max(kernel.flops / roof, kernel.moved_bytes / device.bytes_per_s, device.call_s)


def total_s(kernels: Mapping[KernelWork, int], device: DeviceSpec) -> float:
    """Return the seconds of all calls, one after the other."""
    return sum(kernel_s(kernel, device) * calls for kernel, calls in kernels.items())

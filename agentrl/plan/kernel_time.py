"""Time of kernels by roofline: each takes as long as its slower half, arithmetic or traffic, at the
shares of the roofs that such kernels reach."""

from collections.abc import Mapping

from agentrl.plan.machine import PAGED_BYTES, DeviceSpec
from agentrl.plan.op_trace import KernelWork


def kernel_s(kernel: KernelWork, device: DeviceSpec, *, is_flex: bool = False) -> float:
    """Return the seconds of one call on a device; `is_flex` says that it may be FlexAttention."""
    roof = device.float32_flops_per_s if kernel.is_float32 else device.bf16_flops_per_s
    shares = device.shares
    if "attention" not in kernel.name:
        roof *= shares.products
    elif device.attention_flops_per_s is not None:
        roof = device.attention_flops_per_s
    else:
        roof *= shares.flex_attention if is_flex else shares.attention
    traffic_s = kernel.moved_bytes / (device.bytes_per_s * shares.traffic)
    least_s = max(kernel.flops / roof, traffic_s, device.call_s)
    if device.page_bytes_per_s is not None and kernel.new_bytes > PAGED_BYTES:
        least_s += kernel.new_bytes / device.page_bytes_per_s
    return least_s


def paging_s(grown_bytes: int, device: DeviceSpec) -> float:
    """Return the seconds in which the system gives memory that was given back before."""
    return 0.0 if device.page_bytes_per_s is None else grown_bytes / device.page_bytes_per_s


def total_s(
    kernels: Mapping[KernelWork, int], device: DeviceSpec, *, is_flex: bool = False
) -> float:
    """Return the seconds of all calls, one after the other."""
    return sum(kernel_s(kernel, device, is_flex=is_flex) * n for kernel, n in kernels.items())

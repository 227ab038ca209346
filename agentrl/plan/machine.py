"""Machines: what their makers say of them, or what a short benchmark finds on this one.

Sources: NVIDIA's data sheets of H100 SXM, H200 SXM, A100 SXM, L40S, and the Ada and Ampere GA102
architecture papers. Peaks are dense, with float32 sums; a link counts one direction.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import ModuleType

from agentrl.errors import ConfigError
from agentrl.runtime.memory_limit import total_bytes

GB, TERA = 10**9, 1e12
THIS = "this"
"""Name of the machine that plans, measured."""
LAUNCH_S = 5e-6
"""Seconds from one kernel of a GPU to the next, at least."""
PAGED_BYTES = 2**25
"""Larger blocks are new pages of the system every time: the C library's largest threshold."""
NETWORK_BYTES_PER_S = 50e9
"""One 400 Gb/s adapter per GPU, between machines of several GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofShares:
    """Shares of a device's roofs that kernels of a training step reach."""

    products: float = 1.0
    traffic: float = 1.0
    attention: float = 1.0
    """Of `scaled_dot_product_attention`, in the layout `padded`."""
    flex_attention: float = 1.0
    """Of FlexAttention, in the layouts `packed` and `tree`."""


GPU_SHARES = RoofShares(products=0.76, traffic=0.55, attention=0.34, flex_attention=0.165)
"""Measured on an H200 with torch 2.11 (docs/plan.md): all but `attention` in the profile of one
step, and that one so that a padded step comes out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device: memory, and roofs of compute and traffic."""

    name: str
    memory_bytes: int
    bf16_flops_per_s: float
    float32_flops_per_s: float
    bytes_per_s: float
    """Of its memory."""
    link_bytes_per_s: float
    """To another device of its machine, one direction."""
    host_bytes_per_s: float
    """To the memory of the host, one direction."""
    call_s: float = LAUNCH_S
    """Least seconds of one kernel."""
    attention_flops_per_s: float | None = None
    """Roof of attention, where it was measured apart."""
    page_bytes_per_s: float | None = None
    """Rate at which the system gives pages to allocations above `PAGED_BYTES`; None for devices
    whose allocator keeps them."""
    shares: RoofShares = RoofShares()
    """Of a maker's roofs; those that were measured are reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """Devices of one kind, in machines of `per_node`."""

    device: DeviceSpec
    count: int
    per_node: int = 8
    network_bytes_per_s: float = NETWORK_BYTES_PER_S
    """Between machines, per device, one direction."""

    @property
    def name(self) -> str:
        """Return the name that `--machine` takes."""
        return f"{self.count}x{self.device.name}"


def _gpu(
    name: str,
    gib: int,
    bf16_tera: float,
    float32_tera: float,
    memory_gb: float,
    link_gb: float,
    host_gb: float,
) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        memory_bytes=gib * 2**30,
        bf16_flops_per_s=bf16_tera * TERA,
        float32_flops_per_s=float32_tera * TERA,
        bytes_per_s=memory_gb * GB,
        link_bytes_per_s=link_gb * GB,
        host_bytes_per_s=host_gb * GB,
        shares=GPU_SHARES,
    )


DEVICES: Mapping[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _gpu("H200-141GB", 140, 989, 67, 4800, 450, 64),
        _gpu("H100-80GB", 80, 989, 67, 3350, 450, 64),
        _gpu("A100-80GB", 80, 312, 19.5, 2039, 300, 32),
        _gpu("A100-40GB", 40, 312, 19.5, 1555, 300, 32),
        _gpu("L40S-48GB", 45, 362, 91.6, 864, 32, 32),
        _gpu("RTX4090-24GB", 24, 165.2, 82.6, 1008, 32, 32),
        _gpu("RTX3090-24GB", 24, 71, 35.6, 936, 32, 32),
    )
}
"""Devices by name; the memory is what a driver reports, in GiB."""

MOST_DEVICES = 4096
_NAME = re.compile(r"(?:([0-9]{1,40})\s*[xX]\s*)?([\w-]+)")


def find_machine(text: str) -> MachineSpec:
    """Return the machine that a text names: `8xH100-80GB`, `RTX4090`, or `this`.

    Raises `ConfigError` with the names there are.
    """
    match = _NAME.fullmatch(text.strip())
    known = f"{', '.join(f'8x{name}' for name in DEVICES)} or {THIS}"
    if match is None:
        raise ConfigError(
            f"machine {text!r:.80} is not COUNTxDEVICE{_suggest(text)}; name one such as {known}"
        )
    count, name = int(match[1] or 1), match[2].upper()
    if name == THIS.upper():
        if match[1] is not None:
            raise ConfigError(f"machine {text!r}: this machine is planned as it is; write {THIS}")
        return MachineSpec(device=measure_device(), count=1, per_node=1)
    specs = _find_devices(name)
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs)
        fault = f"fits several devices ({names})" if specs else f"is not known{_suggest(text)}"
        raise ConfigError(f"machine {text!r:.80} {fault}; name one such as {known}")
    if not 1 <= count <= MOST_DEVICES:
        raise ConfigError(
            f"machine {text!r:.80} has {match[1]} devices; plan for 1 to {MOST_DEVICES}, such as "
            f"8x{specs[0].name}"
        )
    return MachineSpec(device=specs[0], count=count)


def _find_devices(name: str) -> list[DeviceSpec]:
    """Return the devices of a name in capitals, or of its first part: `H100`."""
    return [spec for key, spec in DEVICES.items() if key == name or key.startswith(f"{name}-")]


def _suggest(text: str) -> str:
    """Return a question with the name that was likely meant, where a device is named in a text."""
    letters = re.sub(r"[^A-Z0-9]", "", text.upper())
    devices = [spec.name for spec in DEVICES.values() if spec.name.partition("-")[0] in letters]
    if not devices:
        return ""
    count = re.match(r"\s*([0-9]{1,4})(?![0-9])", text) or re.search(r"[xX:*]([0-9]{1,4})$", text)
    return f" (is {count[1] if count else 1}x{devices[0]} meant?)"


def measure_device(
    seconds: float = 2.0, clock: Callable[[], float] = time.perf_counter
) -> DeviceSpec:
    """Return this machine's CPU as a device, its roofs measured in about so many seconds.

    With the number of threads that torch has now. On a busy machine a `clock` of CPU seconds says
    of one thread what it would do alone. Large blocks are new pages of the system every time,
    which costs more than the traffic.
    """
    import torch

    part_s = seconds / 5
    with torch.no_grad():
        rates = {name: _matrix_rate(torch, name, part_s, clock) for name in ("float32", "bfloat16")}
        attention = _attention_rate(torch, part_s, clock)
        big = torch.zeros(2**22)
        traffic = 2 * big.nbytes / _call_s(lambda: big.neg(), part_s, clock)
        small = torch.zeros(8)
        paged = torch.zeros(2**24)
        paged_s = _call_s(lambda: paged.neg(), part_s, clock) - 2 * paged.nbytes / traffic
        call_s = _call_s(lambda: small.neg(), part_s / 4, clock)
    return DeviceSpec(
        name=THIS,
        memory_bytes=total_bytes(),
        bf16_flops_per_s=rates["bfloat16"],
        float32_flops_per_s=rates["float32"],
        bytes_per_s=traffic,
        link_bytes_per_s=traffic,
        host_bytes_per_s=traffic,
        call_s=call_s,
        attention_flops_per_s=attention,
        page_bytes_per_s=paged.nbytes / max(paged_s, 1e-6),
    )


def _matrix_rate(torch: ModuleType, name: str, seconds: float, clock: Callable[[], float]) -> float:
    """Return the operations per second of products as wide as a small model's."""
    rows, width = 1024, 512
    one = torch.zeros(rows, width, dtype=getattr(torch, name))
    other = torch.zeros(width, 2 * width, dtype=one.dtype)
    return 4 * rows * width * width / _call_s(lambda: one @ other, seconds, clock)


def _attention_rate(torch: ModuleType, seconds: float, clock: Callable[[], float]) -> float:
    """Return the operations per second of causal attention, forward and backward."""
    heads, places, width = 4, 512, 64
    parts = [torch.randn(1, heads, places, width).requires_grad_() for _ in range(3)]

    def attend() -> None:
        with torch.enable_grad():
            attention = torch.nn.functional.scaled_dot_product_attention
            attention(*parts, is_causal=True).sum().backward()

    flops = heads * places * places * 2 * width * 7 // 2
    return flops / _call_s(attend, seconds, clock)


def _call_s(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Return the median seconds of a call, tried for so long."""
    times: list[float] = []
    stop_s = time.perf_counter() + seconds
    call()
    while len(times) < 5 or time.perf_counter() < stop_s:
        start_s = clock()
        call()
        times.append(clock() - start_s)
    return median(times)

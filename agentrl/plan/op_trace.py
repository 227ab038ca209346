"""Memory and work of a computation, traced with fake tensors: shapes and types without data.

Nothing is allocated and nothing computed, so a 30B model takes as long as a small one of as many
layers. What is counted is what an allocator would be asked for; fragmentation and a kernel's own
scratch are not.
"""

import math
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_aten = torch.ops.aten
VIEWS = ("aten._unsafe_view", "aten.detach", "aten._reshape_alias")
"""Operations that move nothing and do not say so."""
ROUNDED = (torch.bfloat16, torch.float16)


def _attention_flops(
    query: Any, key: Any, value: Any, *args: Any, out_val: Any = None, **kwargs: Any
) -> int:
    """Return the operations of the CPU's attention kernel: two products, of half the places."""
    lines, heads, queries, width = query
    keys, out_width = key[-2], value[-1]
    causal = bool(args[1]) if len(args) > 1 else bool(kwargs.get("is_causal", False))
    return lines * heads * queries * keys * 2 * (width + out_width) // (2 if causal else 1)


def _attention_backward_flops(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, **_: Any
) -> int:
    """Return the operations of its backward pass: five products."""
    causal = bool(args[3])
    return _attention_flops(query, key, value, 0.0, causal) * 5 // 2


def _grouped_flops(first: Any, second: Any, *args: Any, **_: Any) -> int:
    """Return the operations of a product per expert: every row meets one expert's matrix."""
    return 2 * math.prod(first.shape) * second.shape[-1]


def _formulas() -> dict[str, Callable[..., int]]:
    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            _aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
        },
    )
    formulas: dict[str, Callable[..., int]] = {str(k): f for k, f in counter.flop_registry.items()}
    grouped = ("aten._grouped_mm", "transformers.grouped_mm_fallback")
    return formulas | dict.fromkeys(grouped, _grouped_flops)


FLOP_FORMULAS = _formulas()
"""Operations of each kernel that has many, by name. The mode is not entered: it retains tensors."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Work of the calls of one kernel with the same shapes."""

    name: str
    flops: int
    moved_bytes: int
    """Bytes of all inputs and outputs of one call."""
    new_bytes: int = 0
    """Bytes that the call allocates."""
    is_float32: bool = True
    """False where its tensors are rounded, which is another roof of arithmetic."""


@dataclass(slots=True)
class OpTrace:
    """Allocations and work of a traced computation so far."""

    live_bytes: int = 0
    peak_bytes: int = 0
    kernels: dict[KernelWork, int] = field(default_factory=dict[KernelWork, int])
    """Calls of each kernel; views are none."""

    @property
    def flops(self) -> int:
        """Return the floating-point operations of matrix products and attention."""
        return sum(kernel.flops * calls for kernel, calls in self.kernels.items())

    @property
    def calls(self) -> int:
        """Return the number of kernel calls."""
        return sum(self.kernels.values())

    def restart(self) -> None:
        """Count kernels from nothing, and the peak from what is live."""
        self.kernels = {}
        self.peak_bytes = self.live_bytes

    def change(self, added_bytes: int) -> None:
        """Add to what is live, or take away."""
        self.live_bytes += added_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the fake result of an operation. Grouped products compute in any type, and torch has
    fake ones in bfloat16 alone."""
    if func is not _aten._grouped_mm.default or args[0].dtype == torch.bfloat16:
        return func(*args, **kwargs)
    rounded = (x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
    return func(*rounded, **kwargs).to(args[0].dtype)


@contextmanager
def trace_ops() -> Generator[OpTrace]:
    """Trace every operation of the block; tensors that it makes are fake."""
    trace = OpTrace()
    recorder = _Recorder(trace)
    storage_class: Any = torch.UntypedStorage
    resize = storage_class.resize_

    def resize_counted(storage: Any, size: int) -> Any:
        # Sharded weights are collected into storages that are emptied and filled again.
        result = resize(storage, size)
        recorder.resize(storage)
        return result

    storage_class.resize_ = resize_counted
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), recorder:
            yield trace
    finally:
        storage_class.resize_ = resize


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: OpTrace) -> None:
        super().__init__()
        self._trace = trace
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on its shards come here
        result = _compute(func, args, kwargs or {})
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        new_bytes = sum(self._allocate(x) for x in outputs if not isinstance(x, DTensor))
        name = str(func._overloadpacket)
        if outputs and not func.is_view and name not in VIEWS:
            flops = FLOP_FORMULAS.get(name)
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            work = KernelWork(
                name=name,
                flops=flops(*args, **(kwargs or {}), out_val=result) if flops else 0,
                moved_bytes=sum(x.numel() * x.element_size() for x in (*inputs, *outputs)),
                new_bytes=new_bytes,
                is_float32=not any(x.dtype in ROUNDED for x in inputs),
            )
            self._trace.kernels[work] = self._trace.kernels.get(work, 0) + 1
        return result

    def resize(self, storage: Any) -> None:
        """Take over the new size of a storage."""
        if storage._cdata in self._sizes:
            before = self._sizes[storage._cdata]
            self._sizes[storage._cdata] = storage.nbytes()
            self._trace.change(storage.nbytes() - before)

    def _allocate(self, tensor: Tensor) -> int:
        """Count a tensor's storage if it is new; return the bytes that are."""
        storage: Any = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return 0
        self._sizes[key] = size = storage.nbytes()
        self._trace.change(size)
        weakref.finalize(storage, self._free, key)
        return size

    def _free(self, key: int) -> None:
        if (size := self._sizes.pop(key, None)) is not None:
            self._trace.change(-size)

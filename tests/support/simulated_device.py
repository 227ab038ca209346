"""A device that computes on the CPU and is another one for torch: nothing may be mixed with it.

Torch's place for devices of others (PrivateUse1) is registered under the name `sim`. Its tensors
hold one of the CPU, and operations on them run there. So code runs with real numbers as it would on
a GPU, where it has no kernels of its own: an operation on tensors of both devices raises, and each
time the host would wait for the device is counted, by the line of agentrl that asks for it.

What is registered stays in the process: tests run it in one of their own.
"""

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _setup_privateuseone_for_python_backend,  # pyright: ignore[reportPrivateUsage]
)

import agentrl

NAME = "sim"
_PACKAGE = f"{Path(agentrl.__file__).parent}/"
aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.is_nonzero.default,
}
"""Operations whose result, or its shape, the host needs before it goes on."""


class SimulatedTensor(Tensor):
    """A tensor of the device; `data_of` has its numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls: type["SimulatedTensor"], numbers: Tensor) -> "SimulatedTensor":
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportPrivateUsage]
            cls,
            numbers.shape,
            dtype=numbers.dtype,
            device=torch.device(NAME, 0),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
        )
        made.numbers = numbers
        return made

    def tolist(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the numbers as lists; torch refuses it to tensors of others."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called outside of the simulation")


def data_of(value: Any) -> Any:
    """Return the numbers of a tensor of the device; anything else as it is."""
    return value.numbers if isinstance(value, SimulatedTensor) else value


def _to_device(value: Any) -> Any:
    return SimulatedTensor(value) if isinstance(value, Tensor) else value


class DeviceSimulation(TorchDispatchMode):
    """Runs the device's operations on the CPU, and counts what the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        """Times the host waited, by line."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with self:  # in inference mode, operations that are made of others come whole
            if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
                return out
        leaves = tree_leaves((args, kwargs))
        here = [leaf for leaf in leaves if isinstance(leaf, SimulatedTensor)]
        device = kwargs.get("device")
        is_asked = device is not None and torch.device(device).type == NAME
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        if func in (aten._to_copy.default, aten.copy_.default):
            return self._copy(func, args, kwargs, stays=device is None, is_asked=is_asked)
        foreign = [
            x for x in leaves if isinstance(x, Tensor) and not isinstance(x, SimulatedTensor)
        ]
        if here and any(x.dim() for x in foreign):
            raise RuntimeError(f"{func}: some tensors are on {NAME}, and some on the CPU")
        if here and (func in WAITING or _selects_by_mask(func, args)):
            self._wait(func)
        out = func(*tree_map(data_of, args), **tree_map(data_of, kwargs))
        if not here and not is_asked:
            return out
        out = tree_map(_to_device, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if here else out

    def _copy(self, func: Any, args: Any, kwargs: Any, *, stays: bool, is_asked: bool) -> Any:
        if func is aten.copy_.default:
            target, source = args[0], args[1]
            if isinstance(source, SimulatedTensor) and not isinstance(target, SimulatedTensor):
                self._wait(func)
            data_of(target).copy_(data_of(source))
            return target
        is_here = isinstance(args[0], SimulatedTensor)
        out = func(*tree_map(data_of, args), **kwargs)
        if is_asked or (is_here and stays):
            return SimulatedTensor(out)
        if is_here:
            self._wait(func)
        return out

    def _wait(self, func: Any) -> None:
        frames = traceback.extract_stack()
        ours = [f for f in frames if f.filename.startswith(_PACKAGE)]
        frame = ours[-1] if ours else frames[0]
        name = frame.filename.removeprefix(_PACKAGE)
        self.waits[f"{name} {frame.name}: {func}"] += 1


def _selects_by_mask(func: Any, args: Any) -> bool:
    indexes = func in (aten.index.Tensor, aten.index_put_.default)
    return indexes and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])


def register() -> None:
    """Make torch know the device, for as long as the process lives."""
    _setup_privateuseone_for_python_backend(NAME)
    # `torch.tensor` makes its numbers on the CPU, and moves them where a simulation sees it.
    torch._C._set_only_lift_cpu_tensors(True)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def move(module: nn.Module) -> None:
    """Move a module to the device, in place; tied parameters stay tied."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():  # pyright: ignore[reportPrivateUsage]
            if parameter is not None:
                made = nn.Parameter(SimulatedTensor(parameter.detach().clone()))
                part._parameters[name] = moved.setdefault(id(parameter), made)  # pyright: ignore[reportPrivateUsage]
        for name, buffer in part._buffers.items():  # pyright: ignore[reportPrivateUsage]
            if buffer is not None:
                part._buffers[name] = SimulatedTensor(buffer.clone())  # pyright: ignore[reportPrivateUsage]


def main(module: str) -> None:
    """Print as JSON what each function of a module that begins with `play_` returns, or its
    traceback."""
    register()
    results: dict[str, Any] = {}
    functions: Mapping[str, Callable[[], Any]] = vars(import_module(module))
    for name, function in functions.items():
        if name.startswith("play_"):
            try:
                results[name] = function()
            except Exception:  # noqa: BLE001 - a test shows it
                results[name] = {"error": traceback.format_exc()}
    sys.stdout.write(json.dumps(results))

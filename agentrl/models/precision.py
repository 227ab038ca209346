"""Precision of the trainer: float32, or bfloat16 over float32 master weights."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agentrl.config.learn import Precision


def round_to(model: nn.Module, precision: Precision) -> None:
    """Turn the model's parameters into this type, in place.

    Buffers stay as they are: rotary frequencies would be off by positions in bfloat16. Tied
    parameters stay tied.
    """
    dtype = getattr(torch, precision)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class MasterWeight:
    """A weight in float32, for a parameter that the model may hold rounded, or on a device.

    bfloat16 has 8 bits: an update of less than 1/512 of a weight would be lost, and a typical one
    is far below that. So the optimiser moves `weight`, and `publish` rounds it anew.
    """

    weight: nn.Parameter
    """The parameter itself where it is float32 anyway, and in the same memory."""
    parameter: nn.Parameter

    @classmethod
    def for_parameter(cls, parameter: nn.Parameter, *, on_host: bool = False) -> "MasterWeight":
        """Return the master of a parameter; from now on it collects the parameter's gradients.

        With `on_host` it lies in the memory of the CPU, and so do they.
        """
        device = torch.device("cpu") if on_host else parameter.device
        if parameter.dtype == torch.float32 and parameter.device == device:
            return cls(parameter, parameter)
        master = cls(nn.Parameter(parameter.detach().to(device, torch.float32)), parameter)
        parameter.register_post_accumulate_grad_hook(master.collect)
        return master

    @property
    def rounds(self) -> bool:
        """True if the model's parameter is less precise than the weight."""
        return self.parameter.dtype != torch.float32

    def collect(self, parameter: Tensor) -> None:
        """Add the parameter's gradient to the weight's, and forget it there.

        Sums over micro-batches would lose in bfloat16 what each of them adds.
        """
        if parameter.grad is None:
            return
        gradient = parameter.grad.to(self.weight.device, torch.float32)
        self.weight.grad = gradient if self.weight.grad is None else self.weight.grad + gradient
        parameter.grad = None

    def publish(self) -> None:
        """Put the weight into the model, rounded."""
        if self.weight is not self.parameter:
            with torch.no_grad():
                self.parameter.copy_(self.weight)

    def take(self) -> None:
        """Take over the model's parameter."""
        if self.weight is not self.parameter:
            with torch.no_grad():
                self.weight.copy_(self.parameter)


@contextmanager
def open_masters(model: nn.Module, precision: Precision) -> Generator[list[MasterWeight]]:
    """Let a model compute in a precision for a while; yield the masters of what is trained.

    On exit it has the types that it came with: trained weights are those of their masters, and
    frozen ones have not changed.
    """
    parameters = list(model.parameters())
    types = [parameter.dtype for parameter in parameters]
    # Before they are rounded: a master begins with all digits that there are.
    weights = [
        nn.Parameter(p.detach().float()) if p.requires_grad and precision != "float32" else p
        for p in parameters
    ]
    frozen = [None if p.requires_grad else p.data for p in parameters]
    round_to(model, precision)
    for parameter in parameters:
        parameter.grad = None
    pairs = [MasterWeight(w, p) for w, p in zip(weights, parameters, strict=True)]
    masters = [master for master in pairs if master.parameter.requires_grad]
    hooks = [
        master.parameter.register_post_accumulate_grad_hook(master.collect)
        for master in masters
        if master.weight is not master.parameter
    ]
    try:
        yield masters
    finally:
        for hook in hooks:
            hook.remove()
        for master, dtype, untouched in zip(pairs, types, frozen, strict=True):
            data = master.weight.data.to(dtype) if untouched is None else untouched
            master.parameter.data, master.parameter.grad = data, None

"""Other weights in a model's place for a while."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter

from agentrl.learn.dtensor import local


def trainable_parameters(model: Module) -> dict[str, Parameter]:
    """Return the parameters that training moves, by name; tied ones are there once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@contextmanager
def swap_weights(model: Module, weights: Mapping[str, Tensor]) -> Generator[None]:
    """Let the model have `weights`, by name, inside the block; its own come back bit for bit.

    Nothing may be differentiated inside, and nobody else may use the model meanwhile.
    """
    parameters = {name: p for name, p in model.named_parameters() if name in weights}
    originals = {name: _take_weights(parameter) for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            _put_weights(
                parameter,
                weights[name].to(device=originals[name].device, dtype=originals[name].dtype),
            )
        yield
    finally:
        for name, parameter in parameters.items():
            _put_weights(parameter, originals[name])


def _take_weights(parameter: Parameter) -> Tensor:
    # What is in shards is read where it lies in memory, so other weights are written over it.
    return parameter.detach().clone() if isinstance(parameter, DTensor) else parameter.data


def _put_weights(parameter: Parameter, value: Tensor) -> None:
    if isinstance(parameter, DTensor):
        local(parameter.detach()).copy_(local(value))
    else:
        parameter.data = value

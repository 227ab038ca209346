"""Other weights in a model's place for a while."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from torch import Tensor
from torch.nn import Module, Parameter


def trained(model: Module) -> dict[str, Parameter]:
    """Return the parameters that training moves, by name; tied ones are there once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@contextmanager
def swapped(model: Module, weights: Mapping[str, Tensor]) -> Generator[None]:
    """Let the model have `weights`, by name, inside the block; its own come back bit for bit.

    Nothing may be differentiated inside, and nobody else may use the model meanwhile.
    """
    parameters = {name: p for name, p in model.named_parameters() if name in weights}
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(device=own[name].device, dtype=own[name].dtype)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]

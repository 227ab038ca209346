"""Devices that models compute on."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def computing_device(model: nn.Module) -> torch.device:
    """Return the device that a model computes on; shards of it may wait in the host's memory."""
    parameter = next(model.parameters())
    if not isinstance(parameter, DTensor):
        return parameter.device
    kind = parameter.device_mesh.device_type
    if kind == "cpu":
        return torch.device(kind)
    return torch.device(kind, torch.accelerator.current_device_index())

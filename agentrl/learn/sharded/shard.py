"""A model in shards: FSDP2 around its layers."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,  # pyright: ignore[reportUnknownVariableType]
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.config.learn import Precision
from agentrl.learn.lora import is_adapted
from agentrl.learn.token_logprobs import WITHIN, Parts, decoder


def shard(
    model: PreTrainedModel, mesh: DeviceMesh, *, precision: Precision, offload: bool = False
) -> None:
    """Leave of every weight this rank's part, in place, on the mesh's device or, with `offload`, in
    the host's memory, where its gradient comes to.

    Source: Zhao et al. 2023 (PyTorch FSDP), arXiv 2304.11277, per parameter. Each layer of the
    decoder is collected when it is computed; everything else (embeddings, head, what sees) with
    the model. Gradients are summed over ranks: losses are divided by counts of the whole step.

    Weights are rounded to `precision`, kept in float32, and collected in `precision`; those below
    adapters are kept in `precision` too. One layer after the other is cut up and then converted, so
    that of a model whose weights lie in a file no more than the parts and one layer is in memory.
    """
    adapted = is_adapted(model)
    if adapted:
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    else:
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, precision),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    offload_policy = OffloadPolicy()
    if offload:
        offload_policy = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    layers = [m for m in decoder(model).modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, model):
        if adapted:
            _round_base(module, getattr(torch, precision))
        dtypes = {p.dtype for p in module.parameters() if not isinstance(p, DTensor)}
        # Forward passes without a backward pass come too, and must leave nothing collected.
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=True,
            offload_policy=offload_policy,
        )
        if not adapted:
            if precision != "float32" and dtypes != {getattr(torch, precision)}:
                _convert(module, getattr(torch, precision))
            _convert(module, torch.float32)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Some ranks are shown images in a pass and others are not.
    _root(model).set_reduce_scatter_unused_params(True)
    setattr(model, WITHIN, types.MethodType(_run_within, model))
    register_fsdp_forward_method(model, WITHIN)


def _round_base(module: nn.Module, dtype: torch.dtype) -> None:
    """Round what is below adapters, and in no shards yet."""
    for parameter in module.parameters():
        is_base = parameter.is_floating_point() and not parameter.requires_grad
        if is_base and not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(dtype)


def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the shards of a module to a type; buffers stay as they are."""
    buffers = [
        (owner, name, value)
        for owner in module.modules()
        for name, value in owner.named_buffers(recurse=False)
    ]
    module.to(dtype)
    for owner, name, value in buffers:
        setattr(owner, name, value)


def _root(model: Any) -> FSDPModule:
    return model


def _run_within(model: nn.Module, compute: Callable[[], Parts]) -> Parts:
    parts: Any = compute()
    # The backward pass of the model begins at these; at a view's base it would not be noticed.
    return tuple(each.clone() if each._is_view() else each for each in parts)  # pyright: ignore[reportReturnType]

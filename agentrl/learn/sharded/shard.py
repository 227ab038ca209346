"""A model in shards: FSDP2 around its layers."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,  # pyright: ignore[reportUnknownVariableType]
    register_fsdp_forward_method,
)
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.config.learn import Precision
from agentrl.learn.lora import is_adapted
from agentrl.learn.token_logprobs import WITHIN, Parts, decoder


def shard(model: PreTrainedModel, mesh: DeviceMesh, *, precision: Precision) -> None:
    """Leave of every weight this rank's part, in place.

    Source: Zhao et al. 2023 (PyTorch FSDP), arXiv 2304.11277, per parameter. Each layer of the
    decoder is collected when it is computed; everything else (embeddings, head, what sees) with
    the model. Gradients are summed over ranks: losses are divided by counts of the whole step.

    Weights are float32, and collected in `precision`; those of a model with adapters have the types
    they had.
    """
    if is_adapted(model):
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    else:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, precision),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    layers = [m for m in decoder(model).modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, model):
        # Forward passes without a backward pass come too, and must leave nothing collected.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Some ranks are shown images in a pass and others are not.
    _root(model).set_reduce_scatter_unused_params(True)
    setattr(model, WITHIN, types.MethodType(_run_within, model))
    register_fsdp_forward_method(model, WITHIN)


def _root(model: Any) -> FSDPModule:
    return model


def _run_within(model: nn.Module, compute: Callable[[], Parts]) -> Parts:
    parts: Any = compute()
    # The backward pass of the model begins at these; at a view's base it would not be noticed.
    return tuple(each.clone() if each._is_view() else each for each in parts)  # pyright: ignore[reportReturnType]

"""The weights of a Llama-like decoder, rearranged once so that a step needs few operations.

Queries, keys and values come from one product, and so do gate and up. Query heads are ordered
(member of the group, key head) so that attention's output needs no transposition. Within a head the
two halves that RoPE rotates against each other are interleaved, so that a rotation is a complex
product. Dot products do not notice any of this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.engine.linear import Linear, make_linear
from agentrl.engine.llama_shape import ROOT, LlamaShape
from agentrl.engine.weights import take


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One block."""

    input_norm: Tensor
    qkv: Linear
    head_norms: Tensor | None
    """(query and key heads, head), where queries and keys are normalised."""
    out: Linear
    inner_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A whole model. Owns its tensors: nothing is shared with what it was made from."""

    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Linear


def arrange(
    state: Mapping[str, Tensor], shape: LlamaShape, *, device: torch.device, dtype: torch.dtype
) -> LlamaWeights:
    """Copy a state dict into the decoder's layout; `ValueError` if it is of another model."""

    # Saved folders of Qwen2-VL and Qwen2.5-VL keep the names of their first release.
    is_renamed = f"{shape.root}.embed_tokens.weight" not in state
    root = ROOT if is_renamed and f"{ROOT}.embed_tokens.weight" in state else shape.root

    source = _Source(state, "", device, dtype)

    def layer(index: int) -> LlamaLayer:
        return _layer(replace(source, root=f"{root}.layers.{index}."), shape)

    embedding = source.get(f"{root}.embed_tokens.weight", shape.vocabulary, shape.hidden)
    head = embedding if shape.tied else source.get("lm_head.weight", shape.vocabulary, shape.hidden)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(shape.layers)),
        norm=source.get(f"{root}.norm.weight", shape.hidden),
        head=make_linear(head),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    state: Mapping[str, Tensor]
    root: str
    device: torch.device
    dtype: torch.dtype

    def get(self, name: str, *size: int) -> Tensor:
        weight = take(self.state, f"{self.root}{name}", size).detach()
        return weight.to(self.device, self.dtype, copy=True)

    def maybe(self, name: str, *size: int) -> Tensor | None:
        return self.get(name, *size) if f"{self.root}{name}" in self.state else None


def _layer(source: _Source, shape: LlamaShape) -> LlamaLayer:
    hidden, inner, wide = shape.hidden, shape.inner, shape.heads * shape.group * shape.head
    gate = source.get("mlp.gate_proj.weight", inner, hidden)
    up = source.get("mlp.up_proj.weight", inner, hidden)
    gate_bias = source.maybe("mlp.gate_proj.bias", inner)
    up_bias = source.maybe("mlp.up_proj.bias", inner)
    out = source.get("self_attn.o_proj.weight", hidden, wide)
    return LlamaLayer(
        input_norm=source.get("input_layernorm.weight", hidden),
        qkv=_qkv(source, shape),
        head_norms=_head_norms(source, shape),
        out=make_linear(
            _group_heads(out.t(), shape).t().contiguous(),
            source.maybe("self_attn.o_proj.bias", hidden),
        ),
        inner_norm=source.get("post_attention_layernorm.weight", hidden),
        gate_up=make_linear(torch.cat((gate, up)), _join_biases(gate_bias, up_bias)),
        down=make_linear(
            source.get("mlp.down_proj.weight", hidden, inner),
            source.maybe("mlp.down_proj.bias", hidden),
        ),
    )


def _qkv(source: _Source, shape: LlamaShape) -> Linear:
    narrow = shape.heads * shape.head
    wide = narrow * shape.group
    query = source.get("self_attn.q_proj.weight", wide, shape.hidden)
    key = source.get("self_attn.k_proj.weight", narrow, shape.hidden)
    value = source.get("self_attn.v_proj.weight", narrow, shape.hidden)
    biases = [
        source.maybe(f"self_attn.{name}_proj.bias", size)
        for name, size in (("q", wide), ("k", narrow), ("v", narrow))
    ]
    if biases[0] is not None and biases[1] is not None:
        biases[0] = _interleave_halves(_group_heads(biases[0], shape), shape)
        biases[1] = _interleave_halves(biases[1], shape)
    query = _interleave_halves(_group_heads(query, shape), shape)
    return make_linear(
        torch.cat((query, _interleave_halves(key, shape), value)), _join_biases(*biases)
    )


def _head_norms(source: _Source, shape: LlamaShape) -> Tensor | None:
    query = source.maybe("self_attn.q_norm.weight", shape.head)
    key = source.maybe("self_attn.k_norm.weight", shape.head)
    if query is None or key is None:
        return None
    rows = [_interleave_halves(query, shape)] * (shape.group * shape.heads)
    return torch.stack(rows + [_interleave_halves(key, shape)] * shape.heads)


def _group_heads(weight: Tensor, shape: LlamaShape) -> Tensor:
    """Reorder the query heads along dimension 0, from (key head, member) to (member, key head)."""
    rows = weight.reshape(shape.heads, shape.group, shape.head, *weight.shape[1:])
    return rows.transpose(0, 1).reshape(weight.shape)


def _interleave_halves(weight: Tensor, shape: LlamaShape) -> Tensor:
    """Interleave the two halves of every head along dimension 0."""
    rows = weight.reshape(-1, 2, shape.head // 2, *weight.shape[1:])
    return rows.transpose(1, 2).reshape(weight.shape)


def _join_biases(*biases: Tensor | None) -> Tensor | None:
    tensors = [bias for bias in biases if bias is not None]
    return torch.cat(tensors) if tensors else None

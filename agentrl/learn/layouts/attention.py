"""Attention in a line whose sequences share prefixes, for any model of transformers.

Three ways to compute the same: `split` calls the CPU kernel on spans that need no mask, `flex` has
FlexAttention skip what a block mask leaves out, `dense` masks a full square and works everywhere.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from agentrl.errors import ConfigError
from agentrl.learn.ancestry import AncestorMask, AttentionSpanPair
from agentrl.learn.context_parallel import ContextGroup
from agentrl.models.sinks import attend_with_sinks

NAME = "agentrl_ancestry"
"""Name of the attention function in transformers' registry. Without an ancestry it is `sdpa`."""

Kernel = Literal["split", "flex", "dense"]

CPU_KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
"""CPU kernel behind `scaled_dot_product_attention`; unlike it, it returns log-sum-exps."""

DENSE_PLACES = 1024
"""Lines of fewer places get a dense mask on a GPU, too, where it is small and nothing is compiled.

FlexAttention compiles a graph for the first length and one for all others, and below 128 queries it
takes a kernel for decoding, which torch 2.11 did not compile for float32 on an H200.
"""

_forward: Any = getattr(torch.ops.aten, CPU_KERNEL, None)
_backward: Any = getattr(torch.ops.aten, f"{CPU_KERNEL}_backward", None)

_sdpa: Any = sdpa_attention_forward
_flex: Any = flex_attention_forward

Heads = Float[Tensor, "lines _heads _places _width"]


def kernel_for(query: Heads, value: Heads, *, windowed: bool) -> Kernel:
    """Return the attention kernel to use; `windowed` says that not all ancestors are seen."""
    if windowed:
        return "dense"
    if query.device.type == "cuda":
        return "flex" if query.shape[-2] >= DENSE_PLACES else "dense"
    has_kernel = _forward is not None and _backward is not None
    fits = query.device.type == "cpu" and query.shape[-1] == value.shape[-1]
    return "split" if has_kernel and fits else "dense"


def attend(
    module: torch.nn.Module,
    query: Heads,
    key: Heads,
    value: Heads,
    attention_mask: Tensor | None,
    *,
    ancestry: AncestorMask | None = None,
    context: ContextGroup | None = None,
    kernel: Kernel | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "lines _places _heads _width"], Tensor | None]:
    """Attend to ancestors; transformers calls it for every layer. `kernel` is for tests.

    With `context` the places are a rank's own, and `ancestry` is of the line they are divided from.
    """
    if context is not None:
        if options.get("s_aux") is not None:
            options["s_aux"] = context.select_heads(options["s_aux"])
        query, key, value = (context.gather_places(states) for states in (query, key, value))
        options |= {"ancestry": ancestry, "kernel": kernel}
        out, _ = attend(module, query, key, value, attention_mask, **options)
        return context.scatter_places(out), None
    sinks: Tensor | None = options.pop("s_aux", None)
    if sinks is not None:
        if ancestry is not None:
            attention_mask = ancestry.mask(options.pop("sliding_window", None))[None, None]
        qkv = (query, key, value)
        return attend_with_sinks(module, *qkv, attention_mask, s_aux=sinks, **options)
    if ancestry is None:
        return _sdpa(module, query, key, value, attention_mask, **options)
    _refuse_what_changes_scores(module, options)
    window: int | None = options.pop("sliding_window", None)
    windowed = window is not None and window < ancestry.longest
    match kernel or kernel_for(query, value, windowed=windowed):
        case "split":
            scale = options.get("scaling") or query.shape[-1] ** -0.5
            return _split(query, key, value, ancestry, scale).transpose(1, 2), None
        case "flex":
            block_mask: Any = ancestry.block_mask()
            return _flex(module, query, key, value, block_mask, **options)
        case "dense":
            mask = ancestry.mask(window)[None, None]
            return _sdpa(module, query, key, value, mask, **options)


def build_decoder_inputs(
    model: PreTrainedModel,
    ancestry: AncestorMask,
    kernel: Kernel | None = None,
    context: ContextGroup | None = None,
) -> dict[str, Any]:
    """Return the decoder's keyword arguments with which places see their ancestors only.

    The model keeps the attention function: for every other caller it is `sdpa`. Models that cannot
    take it get a mask. With `context` the decoder is given a rank's own places.
    """
    if not _takes_functions(model):
        if context is not None:
            raise ConfigError(
                f"{type(model).__name__} does not take attention functions, which "
                "learn.devices.context_parallel needs: set it to 1"
            )
        smallest = torch.finfo(model.dtype).min
        mask = ancestry.mask()[None, None]
        return {"attention_mask": torch.where(mask, 0.0, smallest).to(model.dtype)}
    if getattr(model.config.get_text_config(), "_attn_implementation", None) != NAME:
        model.set_attn_implementation(NAME)
    # A mask of four dimensions is passed on as it is, so transformers builds none of its own.
    placeholder = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ancestry.ends.device)
    kernel_args = {} if kernel is None else {"kernel": kernel}
    context_args = {} if context is None else {"context": context}
    return {"attention_mask": placeholder, "ancestry": ancestry, **context_args, **kernel_args}


class _Split(torch.autograd.Function):
    """Attention of parts, merged by their log-sum-exp.

    With the output and the log-sum-exp of the whole, the kernel's backward pass of a part gives its
    exact share of the gradient, because both stand for the softmax over all keys.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Heads, key: Heads, value: Heads, ancestry: AncestorMask, scale: float
    ) -> Heads:
        out = torch.empty_like(query)
        heads, places = query.shape[1:3]
        # The kernel writes log-sum-exps in this type and order of strides, and wants them back so.
        dtype = torch.promote_types(query.dtype, torch.float32)
        total = query.new_empty(1, places, heads, dtype=dtype).transpose(1, 2)
        for start, stop in ancestry.chains:
            chain = slice(start, stop)
            parts = (x[:, :, chain] for x in (query, key, value))
            out[:, :, chain], total[:, :, chain] = _forward(*parts, 0.0, True, scale=scale)
        for part in ancestry.across:
            key_span, query_span = _spans(part)
            prefix_out, weight = _forward(
                query[:, :, query_span],
                key[:, :, key_span],
                value[:, :, key_span],
                0.0,
                False,
                scale=scale,
            )
            before = total[:, :, query_span]
            both = torch.logaddexp(before, weight)
            # out + share x (prefix_out - out), with the share of the keys that were added.
            share = (weight - both).exp_()[..., None].to(out.dtype)
            out[:, :, query_span].lerp_(prefix_out, share)
            before.copy_(both)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.ancestry, ctx.scale = ancestry, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Heads
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, total = ctx.saved_tensors
        (grad,) = grad_outputs
        input_grads = [torch.empty_like(x) for x in (query, key, value)]

        def parts(asked: slice, seen: slice, *, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            return _backward(
                grad[:, :, asked],
                query[:, :, asked],
                key[:, :, seen],
                value[:, :, seen],
                out[:, :, asked],
                total[:, :, asked],
                0.0,
                causal,
                scale=ctx.scale,
            )

        for start, stop in ctx.ancestry.chains:
            chain = slice(start, stop)
            for whole, part in zip(input_grads, parts(chain, chain, causal=True), strict=True):
                whole[:, :, chain] = part
        for each in ctx.ancestry.across:
            key_span, query_span = _spans(each)
            shares = parts(query_span, key_span, causal=False)
            for whole, span, part in zip(
                input_grads, (query_span, key_span, key_span), shares, strict=True
            ):
                whole[:, :, span] += part
        return input_grads[0], input_grads[1], input_grads[2], None, None


_split: Any = _Split.apply


def _spans(part: AttentionSpanPair) -> tuple[slice, slice]:
    return slice(part.key_start, part.key_stop), slice(part.query_start, part.query_stop)


def _refuse_what_changes_scores(module: torch.nn.Module, options: dict[str, Any]) -> None:
    for name in ("softcap", "position_bias"):
        if options.get(name) is not None:
            raise ConfigError(
                f"{type(module).__name__} modifies attention with {name}, which rows with shared "
                "prefixes do not support"
            )


def _takes_functions(model: PreTrainedModel) -> bool:
    return bool(getattr(model, "_supports_attention_backend", False))


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)

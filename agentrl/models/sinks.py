"""Attention sinks for `sdpa`, which transformers lacks: one more key without a value, at which each
head looks with a logit that is learned. Source: gpt-oss, arXiv 2508.10925.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "agentrl_sinks"
"""Name of the attention function in transformers' registry."""
SINKS = ("gpt_oss",)
"""Types of models that have attention sinks, and no `sdpa` of their own."""

_sdpa: Any = sdpa_attention_forward


def implementation_of(model_type: str) -> str:
    """Return the name of the attention that a type of models is to be loaded with."""
    return NAME if model_type in SINKS else "sdpa"


def attend_with_sinks(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    s_aux: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend with a first key whose product with each query is the head's sink, and no value;
    transformers calls it for every layer, with the sinks as `s_aux`.

    One more number of each query and key carries it, so that any kernel computes it.
    """
    width, places = query.shape[-1], query.shape[2]
    scale = options.get("scaling") or width**-0.5
    # Kernels want widths that are multiples of eight, and values as wide as keys.
    wide = -(-max(width + 1, value.shape[-1]) // 8) * 8
    column = (s_aux.to(query.dtype) / scale)[None, :, None, None].expand(*query.shape[:3], 1)
    query = pad(torch.cat((query, column), dim=-1), (0, wide - width - 1))
    key = pad(key, (0, wide - width, 1, 0))
    key = key + pad(key.new_ones(1, 1, 1, 1), (width, wide - width - 1, 0, key.shape[2] - 1))
    value_width = value.shape[-1]
    value = pad(value, (0, wide - value_width, 1, 0))
    is_causal = mask is None and places > 1
    if is_causal:
        # With a query in front, too, what is seen is causal again, and takes no mask.
        query = pad(query, (0, 0, 1, 0))
    elif mask is not None:
        mask = pad(mask, (1, 0), value=1 if mask.dtype == torch.bool else 0)
    options |= {"scaling": scale, "is_causal": is_causal}
    out, _ = _sdpa(module, query, key, value, mask, **options)
    return out[:, int(is_causal) :, :, :value_width], None


AttentionInterface.register(NAME, attend_with_sinks)
AttentionMaskInterface.register(NAME, sdpa_mask)

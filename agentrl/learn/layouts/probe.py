"""Check that a model computes the same in a layout as row by row."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.sequence_layout import MaskedTokens, SequenceLayout
from agentrl.learn.token_logprobs import score
from agentrl.models.devices import computing_device

SEQUENCES = ((1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2, 6), (2, 1))
"""Sequences to try: branches of three depths, and one that shares nothing."""
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Relative and absolute tolerances by type, in nats; `ROUGH` for all others."""
ROUGH = 5e-2


def check_layout(
    model: PreTrainedModel,
    layout: SequenceLayout,
    *,
    way_out: str = "learn.layout: padded",
    dtype: torch.dtype | None = None,
) -> None:
    """Raise `ConfigError` if the model computes something else in this layout than row by row;
    `way_out` is the setting that helps. `dtype` is what it computes in, if its weights have another
    type.

    Models differ from plain causal attention in many ways (recurrent layers, attention in chunks,
    positions of their own), so it is tried on a few sequences that share prefixes.
    """
    if isinstance(layout, PaddedLayout):
        return
    size = min(8, model.config.get_text_config().vocab_size)
    probes = [MaskedTokens(np.array(row) % size, np.arange(len(row)) > 0) for row in SEQUENCES]
    alone = _logprobs(model, probes, PaddedLayout(limit_tokens=0))
    try:
        together = _logprobs(model, probes, layout)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{type(model).__name__} cannot process several sequences in one row: {error}; set "
            f"{way_out}"
        ) from error
    tolerance = TOLERANCES.get(dtype or model.dtype, ROUGH)
    if not torch.allclose(alone, together, rtol=tolerance, atol=tolerance):
        raise ConfigError(
            f"{type(model).__name__} changes the log-probs of sequences in one row by "
            f"{float((alone - together).abs().max()):.2g} nats; set {way_out}"
        )


def _logprobs(
    model: PreTrainedModel, probes: Sequence[MaskedTokens], layout: SequenceLayout
) -> Float[Tensor, "rows width"]:
    tokens = layout.tokens(probes, device=computing_device(model))
    with torch.no_grad():
        return score(model, tokens, temperature=1.0, head_at_positions=False).logprobs

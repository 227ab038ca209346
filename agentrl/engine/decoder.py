"""Interface between the engine's loop and a model: the decoder, which computes logits.

A decoder owns a copy of the weights and the key-value cache of every slot. Everything else, such as
who is in which slot, stopping and sampling, is the engine's and written once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine.image_encoder import ImageEncoder, PromptImages
from agentrl.engine.weights import Weights
from agentrl.models.vision.model import sees
from agentrl.models.vision.processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class DecodeSegment:
    """Consecutive tokens of one slot to be computed now."""

    slot: int
    start: int
    """Position of the first token; keys of all before it are in the slot."""
    tokens: Sequence[int]
    wanted: int
    """Number of its last tokens after which the logits are asked for."""
    sight: PromptImages | None = None
    """Images of its context."""


@runtime_checkable
class ModelDecoder(Protocol):
    """Computes logits of segments, with a cache per slot."""

    vocabulary: int
    eyes: ImageEncoder | None
    """None where it takes no images."""

    def forward(self, segments: Sequence[DecodeSegment]) -> Tensor:
        """Return float32 logits (wanted tokens, vocabulary), in the order of segments and tokens.

        Segments of one call are of different slots. Keys at and after a segment's start are
        overwritten.
        """
        ...

    def reuse(self, source: int, target: int, tokens: int) -> int:
        """Let `target` hold the keys of the first `tokens` of `source`, which may be itself.

        Returns how many it holds: fewer, or none, where the model's cache cannot be cut there.
        """
        ...

    def load(self, weights: Weights) -> None:
        """Copy new weights and forget all keys; raises before anything has changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCapacity:
    """Slots and tokens that a decoder must hold at once."""

    slots: int
    context_tokens: int
    prefill_tokens: int
    """Prompt tokens of one call, beside one token per slot."""


def open_decoder(
    model: PreTrainedModel,
    capacity: DecoderCapacity,
    *,
    device: torch.device,
    dtype: torch.dtype,
    images: ImageProcessor | None = None,
) -> ModelDecoder:
    """Return the fast decoder for architectures it knows, or one that calls the model itself.

    Only the fast one takes images, of a model that sees and with a processor.
    """
    from agentrl.engine.fallback import FallbackDecoder
    from agentrl.engine.llama import LlamaDecoder
    from agentrl.engine.llama_shape import shape_of

    shape = shape_of(model)
    if shape is None:
        return FallbackDecoder(model, capacity, device=device, dtype=dtype)
    eyes = None
    if images is not None and sees(model):
        eyes = ImageEncoder(model, images, device=device, dtype=dtype)
    return LlamaDecoder(model, shape, capacity, device=device, dtype=dtype, eyes=eyes)

"""Interface between the engine's loop and a model: the decoder, which computes logits.

A decoder owns a copy of the weights and the key-value cache of every slot. Everything else, such as
who is in which slot, stopping and sampling, is the engine's and written once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from agentrl.engine.image_encoder import ImageEncoder, PromptImages
from agentrl.engine.weights import Weights


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

    def release_cache(self) -> None:
        """Forget all keys and give up their memory; the next `forward` takes it again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCapacity:
    """Slots and tokens that a decoder must hold at once."""

    slots: int
    context_tokens: int
    prefill_tokens: int
    """Prompt tokens of one call, beside one token per slot."""

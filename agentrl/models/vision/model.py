"""Images into Hugging Face models of the Qwen-VL family.

The text half of such a model is called with embeddings, of which some are an image's, and with
positions in three dimensions. Where an image stands is told by its span, never by a token's id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.message import ImageSpan
from agentrl.models.vision.encoder_cache import EncoderCache, trains

FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The kinds of model, by their configuration's name."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceImages:
    """Images of one sequence in a forward pass."""

    line: int
    places: Tensor
    """Places of its tokens on its line; it may share them with other sequences."""
    spans: tuple[ImageSpan, ...]
    cache: EncoderCache | None

    def encoder(self) -> EncoderCache:
        """Return the encoder cache of its images; `ConfigError` without an image processor."""
        if self.cache is None:
            raise ConfigError(
                "there is an image to process but no image processor; give the trainer or the warm "
                "start the processor of the model's folder (`images=`)"
            )
        return self.cache


def sees(model: PreTrainedModel) -> bool:
    """Return whether a model takes images, and takes them the way this module gives them."""
    name = type(model).__name__
    return model.config.model_type in FAMILY and name.endswith("ForConditionalGeneration")


def trains_vision(model: PreTrainedModel) -> bool:
    """Return whether training moves the vision tower of a model that takes images."""
    whole: Any = model
    return sees(model) and trains(whole.model.visual)


def rope_positions(
    eye: Any, length: int, images: Sequence[tuple[ImageSpan, tuple[int, int, int]]]
) -> Tensor:
    """Return the positions (3, length) of tokens that show `images` with their grids of patches.

    They are the model's own. Those of a token depend on nothing behind it.
    """
    kinds = torch.zeros((1, length), dtype=torch.int)
    for span, _ in images:
        kinds[0, span.start : span.stop] = 1
    positions, _ = eye.get_rope_index(
        torch.zeros((1, length), dtype=torch.long),
        mm_token_type_ids=kinds,
        image_grid_thw=torch.tensor([grid for _, grid in images]),
    )
    return positions[:, 0]


def build_text_inputs(
    model: Any, inputs: Tensor, shown: Sequence[SequenceImages], positions: Tensor | None = None
) -> dict[str, Any]:
    """Return the text half's keyword arguments to read `inputs` (lines, length) with images.

    `positions` are those of text alone, from 0 in every line by default. An image that several
    sequences show is computed once; its gradient is that of all its places.
    """
    placed = {
        (one.line, int(one.places[span.start])): (one, span) for one in shown for span in one.spans
    }
    order = sorted(placed)
    images = [placed[at][1].image for at in order]
    distinct = list(dict.fromkeys(images))
    encoded = placed[order[0]][0].encoder().encode(model.model, distinct)
    image_features = dict(zip(distinct, encoded, strict=True))
    features = [image_features[image] for image in images]
    mask = torch.zeros(inputs.shape, dtype=torch.bool, device=inputs.device)
    for line, place in order:
        span = placed[line, place][1]
        mask[line, place : place + span.stop - span.start] = True
    embeddings = model.get_input_embeddings()(inputs)
    image_embeds = torch.cat([one.embeddings for one in features]).to(embeddings.dtype)
    called: dict[str, Any] = {
        "inputs_embeds": embeddings.masked_scatter(mask[..., None], image_embeds),
        "position_ids": _positions(model.model, inputs, shown, positions),
        "use_cache": False,
    }
    if features[0].deep:
        levels = zip(*(one.deep for one in features), strict=True)
        called["visual_pos_masks"] = mask
        called["deepstack_visual_embeds"] = [torch.cat(level) for level in levels]
    return called


def _positions(
    eye: Any, inputs: Tensor, shown: Sequence[SequenceImages], positions: Tensor | None
) -> Tensor:
    """Return the positions (3, lines, length) of every place."""
    lines, length = inputs.shape
    if positions is None:
        positions = torch.arange(length).expand(lines, length)
    deep = positions.cpu().expand(3, lines, length).clone()
    for one in shown:
        grids = [(span, one.encoder().grid(span.image)) for span in one.spans]
        deep[:, one.line, one.places] = rope_positions(eye, len(one.places), grids)
    return deep.to(inputs.device)

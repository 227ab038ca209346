"""Images into Hugging Face models of the Qwen-VL family.

The text half of such a model is called with embeddings, of which some are an image's, and with
positions in three dimensions. Where an image stands is told by its span, never by a token's id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.message import ImageSpan
from agentrl.models.vision.processor import ImagePatches, ImageProcessor

FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The kinds of model, by their configuration's name."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFeatures:
    """An image as the text half reads it."""

    embeddings: Tensor
    """(tokens, hidden), in the place of the embeddings of its tokens."""
    deep: tuple[Tensor, ...] = ()
    """(tokens, hidden) each, added to what comes out of the first layers (DeepStack,
    arXiv 2406.04334)."""

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return sum(part.nbytes for part in (self.embeddings, *self.deep))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceImages:
    """Images of one sequence in a forward pass."""

    line: int
    places: Tensor
    """Places of its tokens on its line; it may share them with other sequences."""
    spans: tuple[ImageSpan, ...]
    processor: ImageProcessor | None

    def patches(self, span: ImageSpan) -> ImagePatches:
        """Return an image as the tower reads it; `ConfigError` where nobody can cut it up."""
        if self.processor is None:
            raise ConfigError(
                "there is an image to process but no image processor; give the trainer or the warm "
                "start the processor of the model's folder (`images=`)"
            )
        return self.processor.patches(span.image)


def sees(model: PreTrainedModel) -> bool:
    """Return whether a model takes images, and takes them the way this module gives them."""
    name = type(model).__name__
    return model.config.model_type in FAMILY and name.endswith("ForConditionalGeneration")


def features_of(eye: Any, images: Sequence[ImagePatches]) -> list[ImageFeatures]:
    """Return the features that a vision tower makes of images; `eye` is a model without head."""
    device = next(eye.visual.parameters()).device
    values = torch.from_numpy(np.concatenate([image.values for image in images])).to(device)
    grids = torch.tensor([image.grid for image in images], device=device)
    outputs = eye.get_image_features(values, grids, return_dict=True)
    deep: Sequence[Sequence[Tensor]] = getattr(outputs, "deepstack_features", None) or ()
    return [
        ImageFeatures(embeddings, tuple(level[at] for level in deep))
        for at, embeddings in enumerate(outputs.pooler_output)
    ]


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
    sequences show is computed once.
    """
    placed = {
        (one.line, int(one.places[span.start])): (one, span) for one in shown for span in one.spans
    }
    order = sorted(placed)
    patches = {placed[at][1].image: placed[at][0].patches(placed[at][1]) for at in order}
    image_features = dict(zip(patches, features_of(model.model, [*patches.values()]), strict=True))
    features = [image_features[placed[at][1].image] for at in order]
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
        grids = [(span, one.patches(span).grid) for span in one.spans]
        deep[:, one.line, one.places] = rope_positions(eye, len(one.places), grids)
    return deep.to(inputs.device)

"""Vision of the engine: a copy of the vision tower, and each image's features until a load."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine.weights import take
from agentrl.message import Image, ImageSpan
from agentrl.models.vision.encoder_cache import ImageFeatures, features_of
from agentrl.models.vision.model import rope_positions
from agentrl.models.vision.processor import ImageCache, ImageProcessor


@dataclass(frozen=True, slots=True, eq=False)
class PromptImages:
    """Images of a prompt."""

    prompt: tuple[int, ...]
    """The prompt with the tokens of each image named by the image: two prompts are equal up to a
    token if, and only if, the model sees the same up to there."""
    spans: tuple[ImageSpan, ...]
    positions: Tensor
    """(3, tokens up to the last image and one more)."""

    def positions_at(self, start: int, count: int) -> Tensor:
        """Return the positions (3, count) of tokens from `start` on."""
        length = self.positions.shape[1]
        inside = self.positions[:, start : start + count]
        begin = max(start, length)
        if begin >= start + count:
            return inside
        behind = torch.arange(begin - length + 1, start + count - length + 1)
        return torch.cat((inside, self.positions[:, -1:] + behind), dim=1)


class ImageEncoder:
    """The vision tower of a model, copied."""

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ImageProcessor,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        whole: Any = model.base_model
        # The model without its text half: what knows of positions, around a tower of our own.
        self._eye: Any = copy.copy(whole)
        tower = copy.deepcopy(whole.visual).to(device, dtype).eval()
        self._eye.__dict__["_modules"] = {"visual": tower}
        self._processor = processor
        self._names = ImageCache(_name)
        self._features = ImageCache(self._look, lambda features: features.nbytes)

    def sight(self, prompt: Sequence[int], spans: Sequence[ImageSpan]) -> PromptImages:
        """Return the images of a prompt. Raises `ValueError` for spans that do not fit it."""
        self._processor.check_spans(prompt, spans)
        tokens = list(prompt)
        for span in spans:
            tokens[span.start : span.stop] = [self._names.get(span.image)] * (
                span.stop - span.start
            )
        grids = [(span, self._processor.grid(span.image)) for span in spans]
        positions = rope_positions(self._eye, spans[-1].stop + 1, grids)
        return PromptImages(tuple(tokens), tuple(spans), positions)

    def has(self, image: Image) -> bool:
        """Return whether an image was looked at, and need not be cut up again."""
        return self._features.has(image) and self._processor.has_grid(image)

    def features(self, image: Image) -> ImageFeatures:
        """Return the tower's features of an image; computed alone, so the same in any batch."""
        return self._features.get(image)

    def select_weights(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tower's weights among those of a model; `ValueError` if they do not fit."""
        tensors: Mapping[str, Tensor] = self._eye.visual.state_dict()
        # Saved folders of Qwen2-VL and Qwen2.5-VL keep the names of their first release.
        root = "visual." if any(name.startswith("visual.") for name in state) else "model.visual."
        return {n: take(state, f"{root}{n}", tuple(t.shape)) for n, t in tensors.items()}

    def load(self, taken: Mapping[str, Tensor]) -> None:
        """Take over what `select_weights` returned. Features stay where nothing has changed."""
        tensors: Mapping[str, Tensor] = self._eye.visual.state_dict()
        with torch.no_grad():
            new = {n: taken[n].to(t.device, t.dtype) for n, t in tensors.items()}
            if all(t.equal(new[n]) for n, t in tensors.items()):
                return
            for name, tensor in tensors.items():
                tensor.copy_(new[name])
        self._features.clear()

    def _look(self, image: Image) -> ImageFeatures:
        return features_of(self._eye, [self._processor.patches(image)])[0]


def _name(image: Image) -> int:
    """Return a negative number that no other image has: as many bits as do not collide."""
    return -1 - int(image.digest[:30], 16)

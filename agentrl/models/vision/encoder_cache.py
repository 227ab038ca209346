"""Features of images by a vision tower, and those of a batch, kept."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.message import Image
from agentrl.models.vision.processor import ImagePatches, ImageProcessor

BATCH_BYTES = 2 * 2**30
"""Bytes of a batch's features and patches that are kept, in the host's memory: the features of some
370 screenshots of one megapixel (Qwen2.5-VL-3B in bfloat16), or the patches of 85."""


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

    def copy_to(self, device: torch.device | str) -> "ImageFeatures":
        """Return a copy on a device, in memory of its own."""
        embeddings, *deep = (part.to(device, copy=True) for part in (self.embeddings, *self.deep))
        return ImageFeatures(embeddings, tuple(deep))


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


def trains(tower: nn.Module) -> bool:
    """Return whether training moves a vision tower."""
    return any(parameter.requires_grad for parameter in tower.parameters())


@dataclass(slots=True, eq=False)
class EncoderCache:
    """Patches and features of the images of one batch, each made once, whatever micro-batches,
    contexts, passes and epochs show them.

    A tower that trains is asked in every pass that is differentiated, because each needs a graph of
    its own, and once in the passes of a block of `fixed_weights`. What does not fit `limit_bytes`
    is made again, and what came first stays: passes in the same order find it. Outside of a
    `batch` nothing is kept. Belongs to one trainer, and to its thread.
    """

    processor: ImageProcessor
    keeps_patches: bool = True
    """False where all towers are frozen: each image is cut up for one encoding alone."""
    limit_bytes: int = BATCH_BYTES
    _features: dict[nn.Module, dict[Image, ImageFeatures]] = field(init=False, default_factory=dict)
    _patches: dict[Image, ImagePatches] = field(init=False, default_factory=dict)
    _grids: dict[Image, tuple[int, int, int]] = field(init=False, default_factory=dict)
    _used_bytes: int = field(init=False, default=0)
    _in_batch: bool = field(init=False, default=False)
    _is_fixed: bool = field(init=False, default=False)

    @contextmanager
    def batch(self) -> Generator[None]:
        """Keep what is made of images in the block, and drop it at its end."""
        self._in_batch = True
        try:
            yield
        finally:
            self._in_batch = False
            self._features.clear()
            self._patches.clear()
            self._grids.clear()
            self._used_bytes = 0

    @contextmanager
    def fixed_weights(self) -> Generator[None]:
        """Keep features of towers that train, too, until the end of the block, in which no weight
        changes."""
        self._is_fixed = True
        try:
            yield
        finally:
            self._is_fixed = False
            for tower in [tower for tower in self._features if trains(tower)]:
                dropped = self._features.pop(tower)
                self._used_bytes -= sum(features.nbytes for features in dropped.values())

    def grid(self, image: Image) -> tuple[int, int, int]:
        """Return an image's patches in time, from top to bottom, and from left to right."""
        cached = self._grids.get(image)
        return self.patches(image).grid if cached is None else cached

    def patches(self, image: Image) -> ImagePatches:
        """Return the patches of an image. Raises `EnvError` for bytes that are no image."""
        if (cached := self._patches.get(image)) is not None:
            return cached
        patches = self.processor.patches(image)
        if self._in_batch:
            self._grids[image] = patches.grid
            if self.keeps_patches and self._take(patches.values.nbytes):
                self._patches[image] = patches
        return patches

    def encode(self, eye: Any, images: Sequence[Image]) -> list[ImageFeatures]:
        """Return the features of images, all different, by the tower of a model without head."""
        tower: nn.Module = eye.visual
        is_constant = not trains(tower)
        if not is_constant and (torch.is_grad_enabled() or not self._is_fixed):
            return features_of(eye, [self.patches(image) for image in images])
        cached = self._features.get(tower, {})
        missing = [image for image in images if image not in cached]
        encoded: dict[Image, ImageFeatures] = {}
        if missing:
            with torch.no_grad():
                features = features_of(eye, [self.patches(image) for image in missing])
            encoded = dict(zip(missing, features, strict=True))
            self._keep(tower, encoded)
        device = next(tower.parameters()).device
        return [
            encoded[each] if each in encoded else cached[each].copy_to(device) for each in images
        ]

    def _keep(self, tower: nn.Module, encoded: dict[Image, ImageFeatures]) -> None:
        cached = self._features.setdefault(tower, {})
        for image, features in encoded.items():
            if self._in_batch and self._take(features.nbytes):
                cached[image] = features.copy_to("cpu")

    def _take(self, count: int) -> bool:
        """Return whether so many bytes fit beside what is kept, and count them if so."""
        fits = self._used_bytes + count <= self.limit_bytes
        self._used_bytes += count * fits
        return fits

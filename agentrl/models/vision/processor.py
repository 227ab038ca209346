"""Images to patches, by the image processor of a model's folder; each image is computed once."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.errors import ConfigError, EnvError
from agentrl.message import Image, ImageSpan
from agentrl.runtime.extras import check_installed
from agentrl.runtime.image_decoding import decode_image, read_size
from agentrl.runtime.threads import run_in_thread

KEPT_BYTES = 256 * 2**20
"""Bytes of patches and features that are kept. A screenshot of one megapixel is 24 MB."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ImagePatches:
    """An image as a vision tower reads it."""

    values: npt.NDArray[np.float32]
    """(patches, numbers of one)."""
    grid: tuple[int, int, int]
    """Patches in time (1), from top to bottom, and from left to right."""


class ImageCache(Generic[T]):
    """Cache of values made from the images seen last, up to so many bytes, the images' among them.
    Safe between threads."""

    def __init__(
        self,
        make: Callable[[Image], T],
        size: Callable[[T], int] = lambda made: 8,
        limit: int = KEPT_BYTES,
    ) -> None:
        self._make, self._size, self._limit = make, size, limit
        self._held: OrderedDict[Image, T] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, image: Image) -> T:
        """Return the value made of an image; the one just made stays, however large."""
        with self._lock:
            if image in self._held:
                self._held.move_to_end(image)
                return self._held[image]
        value = self._make(image)
        with self._lock:
            if image not in self._held:
                self._held[image] = value
                self._bytes += self._size(value) + len(image.data)
            while self._bytes > self._limit and len(self._held) > 1:
                old, dropped = self._held.popitem(last=False)
                self._bytes -= self._size(dropped) + len(old.data)
        return value

    def has(self, image: Image) -> bool:
        """Return whether what is made of an image is there."""
        with self._lock:
            return image in self._held

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self._bytes = 0


class ImageProcessor:
    """The image processor of a Qwen-VL model folder, and the token that stands for an image.

    Its tokens are `grid / merge_size ** 2` copies of `token_id`.
    """

    def __init__(self, processor: Any, *, token_id: int, kept_bytes: int = KEPT_BYTES) -> None:
        """`processor` is one of transformers, with the interface of Qwen2-VL's.

        Raises `ConfigError` for one of another family.
        """
        if not hasattr(processor, "get_number_of_image_patches") or not getattr(
            processor, "merge_size", 0
        ):
            raise ConfigError(
                f"{type(processor).__name__} is not an image processor of the Qwen-VL family, "
                "whose images are plain grids of patches; use a Qwen2-VL, Qwen2.5-VL or Qwen3-VL "
                "model"
            )
        self.token_id = token_id
        self._processor = processor
        self._patches = ImageCache(self._cut, lambda patches: patches.values.nbytes, kept_bytes)
        self._grids = ImageCache[tuple[int, int, int]](lambda image: self.patches(image).grid)
        self._counts = ImageCache(self._count_tokens)

    def tokens(self, image: Image) -> int:
        """Return the number of tokens of an image; only the head of the file is read.

        Raises `EnvError` for bytes that are no image.
        """
        return self._counts.get(image)

    def patches(self, image: Image) -> ImagePatches:
        """Return the patches of an image. Raises `EnvError` for bytes that are no image."""
        return self._patches.get(image)

    def grid(self, image: Image) -> tuple[int, int, int]:
        """Return the numbers of an image's patches, kept for longer than those. Raises alike."""
        return self._grids.get(image)

    def has_grid(self, image: Image) -> bool:
        """Return whether an image's numbers of patches are there."""
        return self._grids.has(image)

    async def prepare(self, spans: Sequence[ImageSpan]) -> None:
        """Cut up images in a thread, so that `patches` has them at hand. Raises as it does."""
        for span in spans:
            if not self._patches.has(span.image):
                await run_in_thread(self._prepare_image, span.image)

    @property
    def most_tokens(self) -> int:
        """Most tokens of an image."""
        area: int = (self._processor.patch_size * self._processor.merge_size) ** 2
        return max(1, self._processor.size["longest_edge"] // area)

    def blank(self, tokens: int) -> ImagePatches:
        """Return the patches of an empty image about as high as it is wide, of `tokens` at most."""
        merge, processor = self._processor.merge_size, self._processor
        rows = isqrt(tokens)
        height, width = rows * merge, tokens // rows * merge
        numbers = 3 * processor.temporal_patch_size * processor.patch_size**2
        return ImagePatches(np.zeros((height * width, numbers), np.float32), (1, height, width))

    def save_pretrained(self, save_directory: Path) -> Any:
        """Write the processor's configuration into a model folder."""
        return self._processor.save_pretrained(save_directory)

    def check_spans(self, token_ids: Sequence[int], spans: Sequence[ImageSpan]) -> None:
        """Raise `ValueError` unless every image has its own tokens at its place."""
        end = 0
        for span in spans:
            count = self.tokens(span.image)
            # Two images side by side would be one to what counts their positions.
            if span.start <= end or span.stop > len(token_ids) or span.stop - span.start != count:
                raise ValueError(
                    f"an image of {count} tokens is declared at tokens {span.start} to "
                    f"{span.stop} of {len(token_ids)}, after a previous span that ends at {end}; "
                    "put text before each image and between two images"
                )
            if any(token != self.token_id for token in token_ids[span.start : span.stop]):
                raise ValueError(
                    f"the tokens from {span.start} to {span.stop} are not all the image "
                    f"placeholder {self.token_id}"
                )
            end = span.stop

    def _prepare_image(self, image: Image) -> None:
        self.patches(image)
        self.grid(image)

    def _count_tokens(self, image: Image) -> int:
        width, height = read_size(image)
        try:
            patches = self._processor.get_number_of_image_patches(height, width)
        except ValueError as error:
            raise EnvError(f"an image of {width} x {height} pixels: {error}") from error
        return int(patches) // self._processor.merge_size**2

    def _cut(self, image: Image) -> ImagePatches:
        outputs = self._processor(images=[decode_image(image)], return_tensors="np")
        grid = tuple(int(n) for n in outputs["image_grid_thw"][0])
        values = np.ascontiguousarray(outputs["pixel_values"], dtype=np.float32)
        return ImagePatches(values, (grid[0], grid[1], grid[2]))


def new_processor(*, patch_size: int, max_pixels: int, token_id: int) -> ImageProcessor:
    """Return a processor for a model of our own; images are made to fit `max_pixels`."""
    check_installed("policy.make.vision", "PIL")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"shortest_edge": (2 * patch_size) ** 2, "longest_edge": max_pixels}
    kind: Any = Qwen2VLImageProcessorPil
    processor = kind(patch_size=patch_size, merge_size=2, temporal_patch_size=2, size=size)
    return ImageProcessor(processor, token_id=token_id)


def load_processor(path: str | Path, *, token_id: int) -> ImageProcessor:
    """Return the image processor of a Hugging Face folder or hub name.

    Raises `ConfigError` if there is none, or none that can be read, and without Pillow.
    """
    check_installed(f"policy.path={str(path)!r}, a vision-language model,", "PIL")
    from transformers import AutoImageProcessor

    kind: Any = AutoImageProcessor
    try:
        # By name: with torchvision around, another one would give other pixels.
        processor = kind.from_pretrained(path, backend="pil")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.path={str(path)!r} is a vision-language model whose image processor cannot be "
            f"read: {error}; copy preprocessor_config.json from the model's folder"
        ) from error
    return ImageProcessor(processor, token_id=token_id)

"""Vision-language models in vLLM: it is given images as patches, and tokens that are expanded.

vLLM would cut images up itself, with a Hugging Face processor that needs a tokenizer and, of
torchvision, one function. What agentrl records is cut up already, so each model gets a processor
that knows no more than how large an image can be, and requests carry what comes out of one.
"""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from vllm.inputs.engine import mm_input  # pyright: ignore[reportMissingImports]
from vllm.model_executor.models.registry import (  # pyright: ignore[reportMissingImports]
    ModelRegistry,
)
from vllm.multimodal import MULTIMODAL_REGISTRY  # pyright: ignore[reportMissingImports]
from vllm.multimodal.inputs import (  # pyright: ignore[reportMissingImports]
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import (  # pyright: ignore[reportMissingImports]
    BaseProcessingInfo,
)

from agentrl.message import ImageSpan
from agentrl.models.vision.processor import ImagePatches, ImageProcessor

MODELS = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
}
"""vLLM's module for each model that is shown images."""
_IMAGE = "image"
_NEEDS_TORCHVISION = "transformers.models.qwen2_vl.image_processing_qwen2_vl"


def register(architecture: str, images: ImageProcessor) -> None:
    """Let vLLM know a model of `MODELS` as one that is shown images cut up by `images`.

    It holds for whatever is loaded next in this process.
    """
    with _replace_torchvision():
        module = import_module(f"vllm.model_executor.models.{MODELS[architecture]}")
    # Values of patches are what the tower reads; vLLM would take them for bytes of colour.
    ready = {"supports_mm_device_do_normalize": False}
    model = type(architecture, (getattr(module, architecture),), ready)

    def info(context: Any) -> _Info:
        return _Info(context, images)

    give = MULTIMODAL_REGISTRY.register_processor(_Processor, info=info, dummy_inputs=_no_inputs)
    ModelRegistry.register_model(architecture, give(model))


def prompt_of(
    tokens: Sequence[int], spans: Sequence[ImageSpan], images: ImageProcessor
) -> Mapping[str, Any]:
    """Return a prompt that shows images, as vLLM takes it.

    Blocks of keys are told apart by what they show, so an image is named by its content.
    """
    return mm_input(
        list(tokens),
        MultiModalKwargsItems({_IMAGE: [_item(images.patches(s.image)) for s in spans]}),
        {_IMAGE: [span.image.digest for span in spans]},
        {_IMAGE: [PlaceholderRange(s.start, s.stop - s.start) for s in spans]},
    )


class _Info(BaseProcessingInfo):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(self, context: Any, images: ImageProcessor) -> None:
        super().__init__(context)
        self.images = images

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {_IMAGE: None}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        return {_IMAGE: min(self.images.most_tokens, seq_len)}


def _no_inputs(info: _Info) -> None:
    """Make what vLLM would make blank images with, if `_Processor` did not."""


class _Processor:
    """Stands where vLLM keeps what cuts up images; makes only what it measures its memory with."""

    def __init__(self, info: _Info, dummy_inputs: None) -> None:
        self.info = info

    def get_dummy_mm_inputs(self, mm_counts: Mapping[str, int], **_: Any) -> Any:
        info = self.info
        most = info.get_mm_max_tokens_per_item(info.ctx.model_config.max_model_len, mm_counts)
        count, length = mm_counts.get(_IMAGE, 0), most[_IMAGE]
        return mm_input(
            [info.images.token_id] * (length * count),
            MultiModalKwargsItems({_IMAGE: [_item(info.images.blank(length))] * count}),
            {_IMAGE: ["blank"] * count},
            {_IMAGE: [PlaceholderRange(n * length, length) for n in range(count)]},
        )


def _item(patches: ImagePatches) -> Any:
    # What stays on the CPU vLLM's worker keeps. It forgets the rest of an image whose keys it found
    # in its cache, and cannot compute that image when the request is computed again: after new
    # weights, or where memory was short. A tower moves to its device what it is given.
    whole = MultiModalFieldConfig.flat(_IMAGE, [slice(None)], keep_on_cpu=True)
    each = MultiModalFieldConfig.batched(_IMAGE, keep_on_cpu=True)
    (values,) = whole.build_elems("pixel_values", torch.from_numpy(patches.values))
    (grid,) = each.build_elems("image_grid_thw", torch.tensor([patches.grid]))
    return MultiModalKwargsItem({"pixel_values": values, "image_grid_thw": grid})


@contextmanager
def _replace_torchvision() -> Generator[None]:
    """Let vLLM's models be imported where there is no torchvision, as beside its CPU build.

    Of the image processor that needs it they take one function, which the one without has, too.
    """
    if find_spec("torchvision") is not None or _NEEDS_TORCHVISION in sys.modules:
        yield
        return
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as pil

    stands_in: Any = ModuleType(_NEEDS_TORCHVISION)
    stands_in.smart_resize = pil.smart_resize
    stands_in.Qwen2VLImageProcessor = pil.Qwen2VLImageProcessorPil
    sys.modules[_NEEDS_TORCHVISION] = stands_in
    try:
        yield
    finally:
        del sys.modules[_NEEDS_TORCHVISION]

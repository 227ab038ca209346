"""Tiny random vision-language models, pictures, and prompts that show them."""

import io
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from PIL import Image as Pictures
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from agentrl.message import Image, ImageSpan
from agentrl.models.vision.processor import ImageProcessor

VOCABULARY = 300
PAD, START, END = 290, 292, 293
"""Of an image: what stands for it, and what is around it."""
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
_SPECIAL: dict[str, Any] = {
    "image_token_id": PAD,
    "video_token_id": 291,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}


def tiny(
    family: str,
    seed: int = 0,
    *,
    tied: bool = True,
    head_dim: int = 16,
    vocabulary: int = VOCABULARY,
) -> PreTrainedModel:
    """Return a fresh random model."""
    torch.manual_seed(seed)
    model: PreTrainedModel
    special: dict[str, Any] = {**_SPECIAL, "tie_word_embeddings": tied}
    sizes: dict[str, Any] = {**_TEXT, "vocab_size": vocabulary}
    heads = {"num_attention_heads": 64 // head_dim, "num_key_value_heads": 32 // head_dim}
    sections = [head_dim // 4, head_dim // 8, head_dim // 8]
    rope: dict[str, Any] = {**_ROPE, "mrope_section": sections}
    match family:
        case "qwen2_vl":
            vision = {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 64,
                "num_heads": 2,
                "mlp_ratio": 2,
            }
            text = {**sizes, **heads, "rope_parameters": rope}
            model = Qwen2VLForConditionalGeneration(
                Qwen2VLConfig(text_config=text, vision_config=vision, **special)
            )
        case "qwen2_5_vl":
            # Windows of 4 x 4 patches, and one block that looks at all of them.
            vision = {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            }
            text = {**sizes, **heads, "rope_parameters": rope}
            model = Qwen2_5_VLForConditionalGeneration(
                Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special)
            )
        case _:
            vision = {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            }
            rope["mrope_interleaved"] = True
            sizes = {k: v for k, v in sizes.items() if k not in ("bos_token_id", "eos_token_id")}
            text = {**sizes, **heads, "head_dim": head_dim, "rope_parameters": rope}
            model = Qwen3VLForConditionalGeneration(
                Qwen3VLConfig(text_config=text, vision_config=vision, **special)
            )
    with torch.no_grad():
        for weight in model.parameters():
            # Fresh models have norms of 1 and biases of 0, which would hide how they are used.
            weight += 0.05 * torch.randn_like(weight)
    return model.eval()


@cache
def shared(family: str) -> PreTrainedModel:
    """Return a model that no test may change."""
    return tiny(family)


@cache
def processor(family: str) -> ImageProcessor:
    """Return an image processor that takes pictures from 2 x 2 tokens to about 5 x 5."""
    return ImageProcessor(pil_processor(family), token_id=PAD)


def pil_processor(family: str) -> Any:
    """Return the image processor of transformers below."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    patch = PATCH[family]
    size = {"shortest_edge": (4 * patch) ** 2, "longest_edge": (10 * patch) ** 2}
    return Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=size)


class CountingProcessor:
    """An image processor of transformers, and how many images it has cut up."""

    def __init__(self, family: str) -> None:
        self.count = 0
        self._processor = pil_processor(family)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def __call__(self, **inputs: Any) -> Any:
        self.count += len(inputs["images"])
        return self._processor(**inputs)


@cache
def picture(seed: int, width: int = 80, height: int = 60) -> Image:
    """Return a picture of random blots."""
    rng = random.Random(seed)
    made = Pictures.new("RGB", (width, height))
    for _ in range(12):
        x, y = rng.randrange(width), rng.randrange(height)
        colour = tuple(rng.randrange(256) for _ in range(3))
        made.paste(colour, (x, y, x + 30, y + 20))
    file = io.BytesIO()
    made.save(file, "PNG")
    return Image(file.getvalue())


def prompt(
    family: str, images: Sequence[Image], *, seed: int = 0, words: int = 6
) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
    """Return words with the images in between, and where these are."""
    rng = random.Random(seed)
    tokens = [rng.randrange(1, 280) for _ in range(words)]
    spans: list[ImageSpan] = []
    for image in images:
        tokens.append(START)
        count = processor(family).tokens(image)
        spans.append(ImageSpan(image, len(tokens), len(tokens) + count))
        tokens += [PAD] * count
        tokens += [END, *(rng.randrange(1, 280) for _ in range(words))]
    return tuple(tokens), tuple(spans)


def logits_of(model: Any, family: str, tokens: Sequence[int], images: Sequence[Image]) -> Tensor:
    """Return (tokens, vocabulary) logits of a plain forward pass with what transformers wants."""
    ids = torch.tensor([list(tokens)])
    given: dict[str, Any] = {}
    if images:
        patches = [processor(family).patches(image) for image in images]
        given = {
            "pixel_values": torch.cat([torch.from_numpy(p.values) for p in patches]),
            "image_grid_thw": torch.tensor([p.grid for p in patches]),
            "mm_token_type_ids": (ids == PAD).int(),
        }
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **given).logits[0].float()

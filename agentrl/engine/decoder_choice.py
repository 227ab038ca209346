"""Choice of the decoder that suits a model."""

import torch
from transformers import PreTrainedModel

from agentrl.engine.decoder import DecoderCapacity, ModelDecoder
from agentrl.engine.fallback import FallbackDecoder
from agentrl.engine.image_encoder import ImageEncoder
from agentrl.engine.llama import LlamaDecoder
from agentrl.engine.llama_shape import shape_of
from agentrl.models.vision.model import sees
from agentrl.models.vision.processor import ImageProcessor


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
    shape = shape_of(model)
    if shape is None:
        return FallbackDecoder(model, capacity, device=device, dtype=dtype)
    eyes = None
    if images is not None and sees(model):
        eyes = ImageEncoder(model, images, device=device, dtype=dtype)
    return LlamaDecoder(model, shape, capacity, device=device, dtype=dtype, eyes=eyes)

"""The decoder for every other architecture: it calls the Hugging Face model, one slot at a time.

Slower than the fast decoder, and right wherever the model's own `forward` is. How a prompt is cut
into pieces can change the last bits of what follows, so a request's log-probs are the same in any
batch and across a cache hit only up to rounding.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from agentrl.engine.decoder import DecoderCapacity, DecodeSegment
from agentrl.engine.image_encoder import ImageEncoder
from agentrl.engine.weights import Weights, read_weights, take
from agentrl.errors import ConfigError


class FallbackDecoder:
    """Owns a copy of the model and one `DynamicCache` per slot. It takes no images."""

    eyes: ImageEncoder | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: DecoderCapacity,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        config: Any = model.config
        if config.is_encoder_decoder:
            raise ConfigError(
                f"{type(model).__name__} is an encoder-decoder model, but the local engine decodes "
                "causal language models (AutoModelForCausalLM); use one of those"
            )
        self.vocabulary: int = config.get_text_config().vocab_size
        model_copy: Any = copy.deepcopy(model)
        self._model: Any = model_copy.to(device, dtype).eval()
        self._config: Any = config
        self._cache_key = name_cache_argument(model.forward)
        self._device = device
        self._caches = [self._empty() for _ in range(capacity.slots)]

    @torch.inference_mode()
    def forward(self, segments: Sequence[DecodeSegment]) -> Tensor:
        rows = [self._advance(segment) for segment in segments]
        logits = [row for row, s in zip(rows, segments, strict=True) if s.wanted]
        if not logits:
            return torch.empty(0, self.vocabulary, device=self._device)
        return torch.cat(logits)

    def reuse(self, source: int, target: int, tokens: int) -> int:
        """Let `target` hold the first `tokens` of `source`, or nothing where it cannot be cut.

        Caches of full attention are cut anywhere. Others (sliding windows, recurrent states) are
        continued or copied whole.
        """
        with torch.inference_mode():
            cache: Any = self._caches[source]
            if cache.get_seq_length() == tokens:
                self._caches[target] = cache if source == target else copy.deepcopy(cache)
                return tokens
            if not all(type(layer) is DynamicLayer for layer in cache.layers):
                tokens = 0
            fresh = self._empty()
            if tokens:
                for index, layer in enumerate(cache.layers):
                    keys, values = layer.keys[..., :tokens, :], layer.values[..., :tokens, :]
                    fresh.update(keys.clone(), values.clone(), index)
            self._caches[target] = fresh
            return tokens

    def load(self, weights: Weights) -> None:
        state = read_weights(weights, device=self._device)
        tensors: dict[str, Tensor] = self._model.state_dict()
        # The same tensor under two names: a saved folder holds one of them.
        first = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
        source_names = {
            name: name if name in state else first[tensor.data_ptr()]
            for name, tensor in tensors.items()
        }
        new = {name: take(state, source_names[name], tuple(t.shape)) for name, t in tensors.items()}
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(new[name])
        self.release_cache()

    def release_cache(self) -> None:
        self._caches = [self._empty() for _ in self._caches]

    def _advance(self, segment: DecodeSegment) -> Tensor:
        ids = torch.tensor([list(segment.tokens)], device=self._device)
        if segment.start == 0:
            self._caches[segment.slot] = self._empty()
        cache = self._caches[segment.slot]
        if cache.get_seq_length() != segment.start:
            raise RuntimeError(
                f"{type(self._model).__name__} keeps {cache.get_seq_length()} positions in its "
                f"cache after {segment.start} were computed; the local engine cannot continue such "
                "a cache"
            )
        # 0 would keep the logits of every token.
        keep = max(1, segment.wanted)
        arguments = {self._cache_key: cache}
        out = self._model(input_ids=ids, use_cache=True, logits_to_keep=keep, **arguments)
        return out.logits[0, -keep:].float()

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self._config)


def name_cache_argument(forward: Callable[..., object]) -> str:
    """Return the argument of a model's `forward` that takes the cache.

    It is `past_key_values` before transformers 5.24 and in older code that comes with a model.
    """
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"

"""Shapes of models, published or in a folder: enough to plan with, without weights or a network."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.folders import CONFIG_FAULTS, describe_fault, load_model_config, make_model
from agentrl.models.place import is_gguf, policy_place
from agentrl.models.sinks import implementation_of
from agentrl.models.vision.model import FAMILY

_QWEN3: Mapping[str, Any] = {
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
}


def _qwen3(
    width: int, layers: int, heads: int, feed_forward: int, *, tied: bool
) -> Mapping[str, Any]:
    return {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
        "tie_word_embeddings": tied,
    }


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen3-8B": _qwen3(4096, 36, 32, 12288, tied=False),
    "Qwen3-30B-A3B": {
        **_qwen3(2048, 48, 32, 6144, tied=False),
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    "Qwen2.5-VL-7B-Instruct": {
        "model_type": "qwen2_5_vl",
        "text_config": {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "max_position_embeddings": 128000,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [16, 24, 24],
            },
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "out_hidden_size": 3584,
            "intermediate_size": 3420,
            "num_heads": 16,
        },
        "tie_word_embeddings": False,
    },
}
"""Configs that the makers publish with their weights, by the last part of the hub's name."""

MOST_LAYERS = 1024
"""Most layers of a model that is planned: each is made, and traced."""

BYTES = {"float32": 4, "bfloat16": 2}

STATES = ("linear_attention", "mamba", "conv", "moe", "mlp")
"""Types of layers without keys and values: their state, if any, is as large for every context."""


@dataclass(frozen=True)
class ModelShape:
    """A model without weights."""

    name: str
    make: Callable[[], PreTrainedModel]
    """Makes it; under the meta device, or of fake tensors."""

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model on the meta device."""
        with torch.device("meta"):
            return self.make()

    @property
    def config(self) -> PreTrainedConfig:
        """Return the config of its text model."""
        return self.model.config.get_text_config()

    @cached_property
    def parameters(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(p.numel() for p in self.model.parameters())

    @cached_property
    def expert_parameters(self) -> int:
        """Number of parameters in experts, of which a token meets a few."""
        named = self.model.named_parameters()
        return sum(p.numel() for name, p in named if ".experts." in name)

    @property
    def experts(self) -> tuple[int, int]:
        """Return the number of experts of a layer, and of those a token meets; 1, 1 without."""
        if not self.expert_parameters:
            return 1, 1
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        count = next((getattr(self.config, n) for n in names if hasattr(self.config, n)), 1)
        names = ("num_experts_per_tok", "top_k_experts")
        per_token = next((getattr(self.config, n) for n in names if hasattr(self.config, n)), count)
        return count, min(count, per_token)

    @property
    def active_parameters(self) -> int:
        """Return the number of parameters that one token meets."""
        count, met = self.experts
        return self.parameters - self.expert_parameters * (count - met) // count

    @cached_property
    def layers(self) -> Sequence[PreTrainedConfig]:
        """The config of each layer: the model's, but for sizes that differ between layers."""
        layer_configs = getattr(self.config, "per_layer_config", None)
        return tuple(layer_configs or (self.config,) * self.config.num_hidden_layers)

    @property
    def heads(self) -> tuple[int, int]:
        """Return the number of attention heads of a layer, and of its key-value heads; those of
        the layer with the fewest."""
        return min(map(_count_heads, self.layers))

    @property
    def latent_width(self) -> int | None:
        """Return the width of the one vector that MLA keeps for all heads; None without MLA."""
        rank = getattr(self.config, "kv_lora_rank", None)
        return None if rank is None else rank + self.config.qk_rope_head_dim

    def kv_widths(self, tensor: int = 1) -> list[int]:
        """Return the numbers that each layer's KV cache has for one token, on one of so many
        tensor-parallel ranks: each has at least one head.

        0 for a layer that keeps a state instead, or reads the keys of another one.
        """
        kinds = getattr(self.config, "layer_types", None) or [""] * len(self.layers)
        modes = getattr(self.config, "kv_sharing_modes", None) or [""] * len(self.layers)
        return [
            0 if kind in STATES or mode == "reuse" else self._kv_width(layer, tensor)
            for layer, kind, mode in zip(self.layers, kinds, modes, strict=True)
        ]

    def _kv_width(self, layer: PreTrainedConfig, tensor: int) -> int:
        if self.latent_width is not None:
            return self.latent_width
        _, kv_heads = _count_heads(layer)
        return 2 * max(1, kv_heads // tensor) * head_width(layer)


def _count_heads(layer: PreTrainedConfig) -> tuple[int, int]:
    heads = layer.num_attention_heads
    return heads, getattr(layer, "num_key_value_heads", None) or heads


def head_width(layer: PreTrainedConfig) -> int:
    """Return the width of an attention head."""
    return getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads


def find_shape(config: RunConfig) -> ModelShape:
    """Return the shape of a run's policy, without a look at the network.

    Raises `ConfigError` for a path that is neither a folder with config.json nor a published name.
    """
    if config.policy.make is not None:
        section, context_tokens = config.policy.make, config.engine.context_tokens
        images = (4, 5, 6) if section.vision is not None else None

        def make_new() -> PreTrainedModel:
            return make_model(
                section,
                vocab_size=section.vocab_size,
                eos_token_id=1,
                pad_token_id=0,
                context_tokens=context_tokens,
                seed=0,
                image_token_ids=images,
            )

        return ModelShape("a new model", make_new)
    assert config.policy.path is not None, "load_config sees to it"
    return shape_at(config.policy.path)


def shape_at(path: str) -> ModelShape:
    """Return the shape of a published or packaged model, or of the folder that a path names."""
    folder = Path(policy_place(path))
    if (folder / "config.json").is_file() and not is_gguf(path):
        _check_layers(path, folder / "config.json")
        model_config = load_model_config(folder)
        return ModelShape(folder.name, lambda: _make(model_config))
    name = next((n for n in PUBLISHED if n.lower() == Path(path).name.lower()), None)
    if name is None:
        raise ConfigError(
            f"policy.path is {path!r}, which has no config.json and is none of the models whose "
            f"shape is known here ({', '.join(PUBLISHED)}); a plan downloads nothing, so "
            "give a folder with the model's config.json"
        )
    return ModelShape(name, lambda: _make(_published_config(name)))


def _check_layers(path: str, file: Path) -> None:
    """Raise `ConfigError` for no layers, or more than are planned; transformers takes both."""
    try:
        fields = json.loads(file.read_bytes())
        sections = [fields, fields.get("text_config") or {}]
        counts = [section.get("num_hidden_layers", 1) for section in sections]
        wrong = next((count for count in counts if not 1 <= count <= MOST_LAYERS), None)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return  # transformers says what is wrong with it
    if wrong is not None:
        raise ConfigError(
            f"policy.path={path!r} has a config.json with num_hidden_layers {wrong:,}, and a plan "
            f"is of 1 to {MOST_LAYERS:,}; give the folder of a language model"
        )


def _published_config(name: str) -> PreTrainedConfig:
    fields = json.loads(json.dumps(PUBLISHED[name]))
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def _make(config: PreTrainedConfig) -> PreTrainedModel:
    kind: Any = AutoModelForCausalLM
    if config.model_type in FAMILY:
        kind = AutoModelForImageTextToText
    try:
        attention = implementation_of(config.model_type)
        return kind.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except CONFIG_FAULTS as error:
        raise ConfigError(
            f"a {config.model_type} of this config.json cannot be made: {describe_fault(error)}; "
            "give the folder of a language model that transformers has sdpa attention for"
        ) from error

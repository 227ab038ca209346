"""Models that the fast decoder knows, and their sizes."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from agentrl.models.vision.model import sees

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
ROOT, ROOT_THAT_SEES = "model", "model.language_model"
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of RoPE whose frequencies do not depend on how long the sequence is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of a Llama-like decoder: pre-norm, rotary positions, grouped heads, gated SiLU."""

    vocabulary: int
    hidden: int
    inner: int
    """Width of the feed-forward half."""
    layers: int
    heads: int
    """Heads of keys and values."""
    group: int
    head: int
    epsilon: float
    tied: bool
    """The output head is the embedding."""
    root: str = ROOT
    """Prefix of its modules' names."""


def shape_of(model: PreTrainedModel) -> LlamaShape | None:
    """Return the sizes, or None where the architecture does anything the decoder does not."""
    is_known = model.config.model_type in KNOWN and type(model).__name__.endswith("ForCausalLM")
    if not is_known and not sees(model):
        return None
    config: Any = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    plain = (
        config.hidden_act == "silu"
        and _slides_nowhere(config)
        and rope.get("rope_type", "default") in FIXED_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and head % 2 == 0
    )
    if not plain:
        return None
    return LlamaShape(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_key_value_heads,
        group=config.num_attention_heads // config.num_key_value_heads,
        head=head,
        epsilon=config.rms_norm_eps,
        tied=model.config.tie_word_embeddings,
        root=ROOT if is_known else ROOT_THAT_SEES,
    )


def _slides_nowhere(config: Any) -> bool:
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return False
    # Mistral has a window and no layer types; Qwen keeps one it does not use.
    return config.model_type != "mistral" or config.sliding_window is None

"""Longest context that a model is made for, by its config.json, beside that of a run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig

KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
"""Names under which models have their longest context."""
NOT_SCALED = ("su", "longrope", "llama3")
"""Kinds of rotary scaling whose model states the scaled length."""
ALLOW_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""Environment variable with which vLLM takes longer contexts."""


def find_context_limit(fields: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a context that a model's config allows, as vLLM derives it: what it
    states, times the factor of its rotary scaling. None where it states nothing."""
    text = fields.get("text_config")
    section = text if isinstance(text, Mapping) else fields
    stated = [n for key in KEYS if isinstance(n := section.get(key), int) and n > 0]
    if not stated:
        return None
    limit, factor = float(min(stated)), 1.0
    if "gemma3" in str(section.get("model_type")):
        return int(limit)  # states the scaled length
    for scaling in _list_scalings(section):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in NOT_SCALED:
            continue
        if isinstance(ratio := scaling.get("factor"), int | float):
            factor = ratio
        original = scaling.get("original_max_position_embeddings")
        if kind == "yarn" and isinstance(original, int):
            limit = original
    return int(limit * factor)


def read_context_limit(folder: Path) -> int | None:
    """Return the limit of the model in a folder; None without a config.json that can be read."""
    try:
        fields = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # who loads the model says what is wrong with it
    return find_context_limit(fields) if isinstance(fields, dict) else None


def _list_scalings(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rotary parameters, one of all layers or one of each kind of layer."""
    parameters = section.get("rope_parameters") or section.get("rope_scaling")
    if not isinstance(parameters, Mapping):
        return []
    nested = [one for one in parameters.values() if isinstance(one, Mapping)]
    return nested or [parameters]


def find_context_fault(config: RunConfig, limit: int | None) -> str:
    """Return the fault of a run's context for a model with such a limit, or an empty string.
    Rotary scaling of `engine.vllm.options` changes the limit in a way not known here."""
    tokens = config.engine.context_tokens
    options = {name.replace("-", "_") for name in config.engine.vllm.options}
    if limit is None or tokens <= limit or "hf_overrides" in options:
        return ""
    return (
        f"engine.context_tokens is {tokens:,}, but the model is made for contexts of up to "
        f"{limit:,} tokens (max_position_embeddings); set it to at most {limit}, or give a "
        "config.json whose rotary scaling reaches further"
    )


def is_refused(config: RunConfig, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the engine refuses contexts beyond the limit, rather than compute them: vLLM
    does, unless a variable of the environment says otherwise."""
    return config.engine.kind == "vllm" and environment.get(ALLOW_VARIABLE, "0") in ("", "0")

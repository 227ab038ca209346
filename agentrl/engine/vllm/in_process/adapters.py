"""Adapters in vLLM as adapters: the base stays packed as it is, and only small matrices change.

vLLM knows adapters by folders that requests name. Here there is one, always the same, whose
matrices are put into its worker from memory; every request names it, also before there is one to
speak of, so that requests in flight go on with whatever was put last.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.pytorch_utils import Conv1D

from agentrl.engine.vllm.launch import find_room
from agentrl.errors import ConfigError
from agentrl.weight_sync.adapters import LoraAdapter

NAME, NUMBER = "agentrl", 1
"""Name and id of the adapter. No folder is called so: it is never looked for, since it is always
there."""


def arguments(model: str, rank: int) -> dict[str, Any]:
    """Return vLLM's arguments for adapters of a rank.

    Of all modules that may have one, those of linear layers get it: what embeds and the head are
    computed as without. Raises `ConfigError` for a rank that is too high.
    """
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": find_room(rank),
        "lora_target_modules": _linear_parts(model),
    }


def _linear_parts(model: str) -> list[str]:
    """Return the last parts of the names of a model's linear layers, without the head."""
    with torch.device("meta"):
        body: nn.Module = AutoModel.from_config(AutoConfig.from_pretrained(model))
    linear = [n for n, m in body.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    return sorted({name.rpartition(".")[2] for name in linear})


def request() -> Any:
    """Return the LoRA request with which a request uses the adapter."""
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

    return LoRARequest(lora_name=NAME, lora_int_id=NUMBER, lora_path=NAME)


def install_adapters(worker: Any, adapters: Mapping[str, LoraAdapter]) -> None:
    """Let a worker compute with adapters, by the Hugging Face names of their weights, from its next
    step on, in place of those before. Raises `ConfigError` for one that vLLM has no place for."""
    from vllm.lora.lora_model import LoRAModel  # pyright: ignore[reportMissingImports]
    from vllm.lora.lora_weights import (  # pyright: ignore[reportMissingImports]
        LoRALayerWeights,
    )

    manager: Any = worker.model_runner.lora_manager._adapter_manager
    layers: dict[str, Any] = {}
    for weight, adapter in adapters.items():
        name = _find_vllm_name(manager.model, weight)
        layers[name] = LoRALayerWeights(
            module_name=name,
            rank=adapter.a.shape[0],
            lora_alpha=1,
            # Copies: vLLM multiplies B by the scale in place.
            lora_a=adapter.a.to("cpu", manager.lora_config.lora_dtype, copy=True),
            lora_b=adapter.b.to("cpu", manager.lora_config.lora_dtype, copy=True),
            scaling=adapter.scale,
        )
    places = _places(manager)
    if homeless := sorted(layers.keys() - places):
        raise ConfigError(
            "vLLM supports adapters only for linear layers of the language model, not for "
            f"{homeless[0]} ({len(homeless)} in all); choose other learn.lora.targets, or set "
            "engine.vllm.adapters to merged"
        )
    manager.remove_adapter(NUMBER)
    if layers:
        lora = LoRAModel(NUMBER, manager.lora_config.max_lora_rank, layers)
    else:
        lora = manager.create_dummy_lora(NUMBER, 1, {})  # zeros; it takes none without a layer
    manager.add_adapter(lora)
    manager.activate_adapter(NUMBER)


def _find_vllm_name(model: Any, weight: str) -> str:
    from vllm.lora.utils import (  # pyright: ignore[reportMissingImports]
        parse_fine_tuned_lora_name,
    )

    mapper = getattr(model, "hf_to_vllm_mapper", None)
    name = f"base_model.model.{weight.removesuffix('.weight')}.lora_A.weight"
    return parse_fine_tuned_lora_name(name, mapper and mapper.get_rename_mapper())[0]


def _places(manager: Any) -> set[str]:
    """Return the names of modules for which there may be an adapter, those in packed ones too."""
    packed: Mapping[str, list[str]] = manager.packed_modules
    return {part for name in manager.modules for part in packed.get(name, [name])}

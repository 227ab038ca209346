"""Adapters as a folder that peft's readers know."""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.runtime.atomic_files import apply_umask
from agentrl.weight_sync.adapters import AdapterWeights

FILE, SETTINGS, PREFIX = "adapter_model.safetensors", "adapter_config.json", "base_model.model."
"""Names of peft's adapter files, and prefix of the tensor names in them."""


def write_adapter(weights: AdapterWeights, folder: Path) -> None:
    """Write adapters as `PeftModel.from_pretrained` and servers read them; the folder is new.

    Raises `ConfigError` for those that such a folder does not hold.
    """
    tensors: dict[str, Tensor] = {}
    sizes: set[tuple[int, float]] = set()
    for name, adapter in weights.adapters.items():
        if adapter.transposed:
            raise ConfigError(
                f"learn.lora.targets names {name}, which is not a linear layer, but servers of "
                "engine.kind endpoint accept adapters only for linear layers; remove it"
            )
        module = f"{PREFIX}{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = adapter.a.detach().cpu().contiguous()
        tensors[f"{module}.lora_B.weight"] = adapter.b.detach().cpu().contiguous()
        sizes.add((adapter.a.shape[0], adapter.scale))
    if len(sizes) != 1:
        raise ConfigError(
            f"adapters with ranks and scales {sorted(sizes)} cannot be combined, because a server "
            "accepts only one rank and scale for all; set learn.lora.targets so that they agree"
        )
    ((rank, scale),) = sizes
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted({n.split(".")[-2] for n in weights.adapters}),
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    save_file(tensors, partial / FILE)
    (partial / SETTINGS).write_text(json.dumps(settings))
    apply_umask(partial)
    partial.rename(folder)

"""Low-rank adapters (peft) in a model that otherwise stays as it is.

Source: Hu et al. 2021 (LoRA), equation 3: W + alpha / rank x B A, with B = 0 at first.
"""

import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.config.learn import LoraSection
from agentrl.errors import ConfigError
from agentrl.learn.dtensor import alike, gather_tensor, local
from agentrl.learn.swap import trainable_parameters
from agentrl.runtime.extras import check_installed
from agentrl.weight_sync.adapters import LoraAdapter

ADAPTER = "default"
"""The name peft gives an adapter that has none."""

FILE, PREFIX = "adapter_model.safetensors", "base_model.model."
"""Name of peft's adapter file, and prefix of the tensor names in it."""


def adapt(model: PreTrainedModel, section: LoraSection, *, seed: int) -> None:
    """Put adapters into the model, in place, and let nothing but them train.

    They are float32 whatever the model is. The same seed makes the same adapters, and the caller's
    random state is left as it was. Raises `ConfigError` without peft, for targets that are not
    there or are no matrices, and for weights that are shared: the engine could not be given two for
    one.
    """
    check_installed("learn.lora", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    _check_targets(model, section)
    targets = section.targets
    config = LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=section.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # That weights are transposed, which peft sees to, tied or of experts, which is checked
        # below.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.default_generator.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise ConfigError(
                f"learn.lora.targets={targets!r} does not fit {type(model).__name__}: {error}"
            ) from error
    _check_matrices(model, section)
    _check_not_shared(model, section)
    model.eval()
    for parameter in trainable_parameters(model).values():
        parameter.data = parameter.data.float()
    for _, layer in find_adapted(model):
        layer.lora_dropout[ADAPTER].register_forward_pre_hook(_drop_where_it_trains)


def find_adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield every module that has an adapter, with its name."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def is_adapted(model: nn.Module) -> bool:
    """Return whether there are adapters in the model."""
    return any(True for _ in find_adapted(model))


def base_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights below the adapters by their Hugging Face names, detached and not copied;
    all of them where there are no adapters."""
    return {
        name.replace(".base_layer.", "."): value.detach()
        for name, value in model.state_dict().items()
        if ".lora_" not in name
    }


def adapters_of(model: nn.Module) -> dict[str, LoraAdapter]:
    """Return the adapters by the Hugging Face names of their weights, detached and not copied."""
    return {f"{name}.weight": _adapter(layer) for name, layer in find_adapted(model)}


def silent_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return weights, by name, with which adapters add nothing: every B is 0, in its shards."""
    return {
        name: torch.zeros_like(parameter)
        for name, parameter in model.named_parameters()
        if ".lora_B." in name or ".lora_embedding_B." in name
    }


def _adapter(layer: Any) -> LoraAdapter:
    scale = float(layer.scaling[ADAPTER])
    if ADAPTER in layer.lora_embedding_A:
        a, b = layer.lora_embedding_A[ADAPTER], layer.lora_embedding_B[ADAPTER]
        return LoraAdapter(a.detach(), b.detach(), scale, transposed=True)
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    return LoraAdapter(a.detach(), b.detach(), scale, transposed=layer.fan_in_fan_out)


def save_adapter(model: PreTrainedModel, folder: Path | None) -> None:
    """Write the adapter as peft does: `PeftModel.from_pretrained(base model, folder)` reads it.

    A collective where it is in shards: all but one rank give no folder.
    """
    from peft import get_peft_model_state_dict

    state = {n: gather_tensor(v).contiguous() for n, v in get_peft_model_state_dict(model).items()}
    if folder is None:
        return
    config = copy.deepcopy(_configs(model)[ADAPTER])
    config.base_model_name_or_path = model.name_or_path or None
    config.inference_mode = True
    config.save_pretrained(folder)
    save_file({f"{PREFIX}{n}": v for n, v in state.items()}, folder / FILE)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Take over what `save_adapter` wrote, into a model with adapters of the same shape."""
    from peft import get_peft_model_state_dict

    state = load_file(folder / FILE)
    with torch.no_grad():
        for name, value in get_peft_model_state_dict(model).items():
            local(value).copy_(local(alike(state[f"{PREFIX}{name}"], value)))


def identity(model: PreTrainedModel, types: Mapping[str, torch.dtype]) -> dict[str, str]:
    """Return the scales and the base that adapted models share beside shapes. Empty for a model
    without adapters. `types` are those that weights of the base are rounded to, by name."""
    if not is_adapted(model):
        return {}
    config = _configs(model)[ADAPTER]
    return {
        "alpha": str(config.lora_alpha),
        "dropout": str(config.lora_dropout),
        "base": fingerprint(
            p.to(types.get(name, p.dtype))
            for name, p in model.named_parameters()
            if not p.requires_grad
        ),
    }


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of tensors, one after the other."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _configs(model: PreTrainedModel) -> dict[str, Any]:
    return model.peft_config  # pyright: ignore[reportAttributeAccessIssue, reportReturnType]


def find_absent_targets(names: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Return the targets that name none of the modules, nor the last parts of any's name."""
    dotted = [f".{name}" for name in names]
    return [target for target in targets if not any(n.endswith(f".{target}") for n in dotted)]


def _check_targets(model: PreTrainedModel, section: LoraSection) -> None:
    """Raise `ConfigError` for a target that is not there; peft passes over it beside others."""
    if isinstance(section.targets, str):
        return
    # Experts' weights are parameters of one module; these are refused as what they are.
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters()) if name]
    absent = find_absent_targets(names, section.targets)
    if not absent:
        return
    kinds = (nn.Linear, nn.Embedding)
    parts = {
        n.rpartition(".")[2] for n, module in model.named_modules() if isinstance(module, kinds)
    }
    near = [name for target in absent for name in get_close_matches(target, parts, n=3, cutoff=0.6)]
    offered = list(dict.fromkeys(near)) or sorted(parts)
    raise ConfigError(
        f"learn.lora.targets names {', '.join(absent)}, but {type(model).__name__} has no such "
        f"modules; {'similar ones are' if near else 'there are'} {', '.join(offered)}"
    )


def _check_matrices(model: PreTrainedModel, section: LoraSection) -> None:
    """Raise `ConfigError` for an adapter of what is no matrix: engines add a product of two."""
    for name, layer in find_adapted(model):
        base = layer.get_base_layer()
        kind, weight = type(base).__name__, getattr(base, "weight", None)
        # Experts of a layer are one module whose weights are stacked, three-dimensional parameters.
        if weight is None:
            weights = base.named_parameters()
            shapes = ", ".join(f"{name} of shape {tuple(w.shape)}" for name, w in weights)
        elif weight.ndim != 2:
            shapes = f"a weight of shape {tuple(weight.shape)}"
        else:
            continue
        raise ConfigError(
            f"learn.lora.targets={section.targets!r} adapts {name}, a {kind} with {shapes}, but "
            "adapters apply only to linear layers and embeddings; name those of the attention, "
            "such as [q_proj, k_proj, v_proj, o_proj]"
        )


def _check_not_shared(model: PreTrainedModel, section: LoraSection) -> None:
    """Raise `ConfigError` where two modules share a weight and one of them is adapted."""
    # Not by address: a model on the meta device, which a plan is made with, has none.
    owners = Counter(id(value) for value in model.state_dict(keep_vars=True).values())
    for name, layer in find_adapted(model):
        if owners[id(layer.base_layer.weight)] > 1:
            raise ConfigError(
                f"learn.lora.targets={section.targets!r} adapts {name}, whose weight is shared "
                "with another module (tied embeddings), so the engine could not be updated; remove "
                "it from the targets"
            )


def _drop_where_it_trains(dropout: nn.Module, _: Any) -> None:
    dropout.train(torch.is_grad_enabled())

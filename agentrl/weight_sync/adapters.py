"""Weights that are a base, which stays, and low-rank adapters: what trains is all that travels.

    trainer   `AdapterWeights`: the base, and two small matrices for each weight that has an adapter
    on a wire the base once, by its id; then adapters that name it (`pack_adapters`), every update
    engine    `AdapterWeights` again, over its own copy of the base (`unpack_adapters`)

An `AdapterWeights` is a state dict, so that whoever knows nothing of adapters reads merged weights.
All merge by `merge_adapter`, from a base that nobody changes: what an engine computes with after a
thousand updates is, on the same kind of device, what the trainer merges, bit for bit.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agentrl.weight_sync.check import CheckedWeights

MARK = "agentrl.adapters"
"""Header key of a safetensors file that holds adapters; its value names their base and scales."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter:
    """Term added to one weight: scale x B A, transposed where the weight is stored so.

    Source: Hu et al. 2021 (LoRA), equation 3; scale = alpha / rank.
    """

    a: Tensor
    """(rank, in)"""
    b: Tensor
    """(out, rank)"""
    scale: float
    transposed: bool = False
    """True if the weight is (in, out), as those of embeddings and of GPT-2 are."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the weight that it is for."""
        out, into = self.b.shape[0], self.a.shape[1]
        return (into, out) if self.transposed else (out, into)

    def delta(self) -> Tensor:
        """Return the term that is added to the weight."""
        product = self.b @ self.a
        return (product.t() if self.transposed else product) * self.scale

    def to_device(self, device: torch.device) -> "LoraAdapter":
        """Return the adapter with its matrices there."""
        return replace(self, a=self.a.to(device), b=self.b.to(device))


def merge_adapter(weight: Tensor, adapter: LoraAdapter) -> Tensor:
    """Return a weight with its adapter added.

    The sum is float32: an adapter's part may be less than the last bit of a bfloat16 weight.
    """
    with torch.no_grad():
        return weight.detach().float() + adapter.delta().float()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class BaseWeights:
    """Weights that stay as they are, by their Hugging Face names."""

    weights: Mapping[str, Tensor]
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    """No two bases have the same."""


class AdapterWeights(Mapping[str, Tensor]):
    """A state dict whose values are merged when they are asked for, each time anew."""

    def __init__(
        self,
        base: BaseWeights,
        adapters: Mapping[str, LoraAdapter],
        *,
        device: torch.device | None = None,
    ) -> None:
        """Take adapters by the names of their weights; nothing is copied.

        Weights are merged on `device`, or where they are. Raises `ValueError` for adapters that do
        not fit the base.
        """
        for name, adapter in adapters.items():
            if name not in base.weights:
                raise ValueError(
                    f"there is an adapter for {name!r}, but the base model has no such weight; "
                    "these adapters belong to another model"
                )
            shape = tuple(base.weights[name].shape)
            if shape != adapter.shape or adapter.a.shape[0] != adapter.b.shape[1]:
                raise ValueError(
                    f"the adapter of {name!r} has A {tuple(adapter.a.shape)} and B "
                    f"{tuple(adapter.b.shape)}, but the weight is {shape}; these adapters belong "
                    "to another model"
                )
        self.base = base
        self.adapters = adapters
        self._device = device

    def to_device(self, device: torch.device) -> "AdapterWeights":
        """Return the same, merged on a device."""
        return AdapterWeights(self.base, self.adapters, device=device)

    def __getitem__(self, name: str) -> Tensor:
        weight, adapter = self.base.weights[name], self.adapters.get(name)
        if adapter is None:
            return weight
        if self._device is not None:
            weight, adapter = weight.to(self._device), adapter.to_device(self._device)
        return merge_adapter(weight, adapter)

    def __contains__(self, name: object) -> bool:
        return name in self.base.weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.base.weights)

    def __len__(self) -> int:
        return len(self.base.weights)


def find_adapters(weights: Mapping[str, Tensor]) -> AdapterWeights | None:
    """Return the base and adapters that weights are made of; None for those that are not."""
    if isinstance(weights, CheckedWeights):
        weights = weights.weights
    return weights if isinstance(weights, AdapterWeights) else None


def pack_adapters(weights: AdapterWeights) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the adapters as the tensors and the header of a safetensors file."""
    tensors: dict[str, Tensor] = {}
    for name, adapter in weights.adapters.items():
        tensors |= {f"{name}.A": adapter.a, f"{name}.B": adapter.b}
    settings = {n: [adapter.scale, adapter.transposed] for n, adapter in weights.adapters.items()}
    return tensors, {MARK: json.dumps({"base": weights.base.id, "of": settings})}


def unpack_adapters(
    tensors: Mapping[str, Tensor], header: Mapping[str, str], base: BaseWeights | None
) -> AdapterWeights:
    """Return the adapters that `pack_adapters` wrote, over a copy of their base.

    Raises `ValueError` for another base, or none, and for what nobody packed.
    """
    try:
        metadata: Any = json.loads(header[MARK])
        uid, of = str(metadata["base"]), dict(metadata["of"])
        adapters = {
            # In memory of their own: how far products are alike may depend on alignment.
            str(name): LoraAdapter(
                tensors[f"{name}.A"].clone(),
                tensors[f"{name}.B"].clone(),
                float(scale),
                bool(transposed),
            )
            for name, (scale, transposed) in of.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these adapters are not valid: {error!r}") from error
    if base is None or base.id != uid:
        here = "none" if base is None else base.id
        raise ValueError(
            f"these adapters belong to base {uid}, but the base here is {here}; send the base first"
        )
    return AdapterWeights(base, adapters)

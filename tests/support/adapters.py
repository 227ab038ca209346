"""Random adapters over a model's weights, as tests of engines share them."""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def base_of(model: PreTrainedModel) -> BaseWeights:
    """Return the weights of a model as a base; they are not copied."""
    return BaseWeights({name: value.detach() for name, value in model.state_dict().items()})


def merged(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """Return a copy of a model with other weights."""
    own = copy.deepcopy(model)
    own.load_state_dict(dict(weights))
    return own


def adapted(base: BaseWeights, seed: int, *, targets: Sequence[str] = TARGETS) -> AdapterWeights:
    """Return a base with adapters of rank 4 that are as large as what they are added to."""
    made = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=made)

    names = tuple(f"{target}.weight" for target in targets)
    chosen = {n: weight for n, weight in base.weights.items() if n.endswith(names)}
    return AdapterWeights(
        base,
        {
            name: LoraAdapter(noise(4, weight.shape[1]), noise(weight.shape[0], 4), 0.5 + seed)
            for name, weight in chosen.items()
        },
    )

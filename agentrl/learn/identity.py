"""Properties that two models must share for one to take the other's checkpoint."""

import json
from typing import Any

from transformers import PreTrainedModel

from agentrl.learn.lora import identity

_NO_IDENTITY = {"_name_or_path", "transformers_version", "architectures", "dtype"}
"""Config keys that differ between loading a model and making it; tensors name their own types."""


def identity_of(model: PreTrainedModel) -> dict[str, Any]:
    """Return config, tensors and adapters of a model that is in no shards, as plain JSON."""
    config = {k: v for k, v in model.config.to_dict().items() if k not in _NO_IDENTITY}
    tensors = {
        name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        for name, value in model.state_dict().items()
    }
    parts = {"config": config, "tensors": tensors, "adapter": identity(model)}
    return json.loads(json.dumps(parts, default=str))

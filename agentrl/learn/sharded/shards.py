"""Tensors in shards on disk: every rank writes its part, and any number of ranks reads them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def write_shards(folder: Path, state: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Write a state into a new folder. A collective; what is whole on all ranks is written once."""
    save(dict(state), checkpoint_id=folder, process_group=group)


def read_shards(
    folder: Path, like: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, Tensor]:
    """Return the tensors in a folder, in the shards of `like` where it has something of that name.

    Without a group everything is read whole, by this process alone.
    """
    metadata: dict[str, Any] = FileSystemReader(folder).read_metadata().state_dict_metadata
    state: dict[str, Tensor] = {}
    for name, entry in metadata.items():
        template = like.get(name)
        if template is not None and template.shape == entry.size:
            state[name] = torch.empty_like(template, dtype=entry.properties.dtype)
        else:
            state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        # That one process alone reads, which is what is meant.
        warnings.simplefilter("ignore", UserWarning)
        load(state, checkpoint_id=folder, process_group=group, no_dist=group is None)
    return state

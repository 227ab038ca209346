"""Moments of AdamW in 8 bits: torchao's optimiser, and its state as tensors that any file holds.

Source: Dettmers et al. 2021 (8-bit optimizers via block-wise quantization), arXiv 2110.02861.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from agentrl.errors import ConfigError
from agentrl.learn.dtensor import alike, gather_tensor, local
from agentrl.runtime.extras import install_command

BLOCK = 256
"""Numbers that share a scale; torchao's own default."""
SMALLEST = 4096
"""Numbers below which torchao keeps moments in float32."""
MAP_BYTES = 4 * 256
"""Bytes of the values that codes stand for, which every moment has a copy of."""
MOMENTS = ("exp_avg", "exp_avg_sq")
CODES, SCALES = "_codes", "_scales"
"""Ends of the names of the two parts of a moment in 8 bits: a byte for each number, and the scales
of blocks, a row for each rank that wrote it."""
KINDS = ("step", *(f"{moment}{end}" for moment in MOMENTS for end in ("", CODES, SCALES)))
"""Names of all that a state may hold of a parameter."""


def is_quantized(weight: Tensor) -> bool:
    """Return whether torchao holds the moments of a weight in 8 bits on all ranks that share it."""
    sizes = _share_sizes(weight)
    return all(size >= SMALLEST and size % BLOCK == 0 for size in sizes)


def moment_bytes(weight: Tensor) -> int:
    """Return the bytes of one moment of this rank's part of a weight."""
    size = local(weight).numel()
    return size + 4 * (size // BLOCK) + MAP_BYTES if is_quantized(weight) else 4 * size


def check_torchao() -> None:
    """Raise `ConfigError` without torchao."""
    try:
        import_module("torchao.optim")
    except ImportError as error:
        raise ConfigError(
            "learn.optimizer.moments is 8bit, which needs torchao, but it cannot be imported "
            f"({error}): {install_command('torchao')}, or set it to float32"
        ) from error


def new_optimizer(weights: Sequence[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """Return torchao's 8-bit AdamW of weights whose moments are quantised."""
    from torchao.optim import AdamW8bit  # pyright: ignore[reportMissingImports]

    optimizer: Any = AdamW8bit(weights, block_size=BLOCK, **options)
    return optimizer


def take_step(optimizer: torch.optim.Optimizer, *, rate: float) -> None:
    """Update the weights. On the CPU nothing is compiled: that takes minutes, and saves less."""
    weights: list[Tensor] = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["lr"].fill_(rate)
    on_cpu = weights[0].device.type == "cpu"
    with torch.compiler.set_stance("force_eager" if on_cpu else "default"):
        optimizer.step()


def split_moment(kind: str, moment: Tensor, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a state's tensor, named by their kinds: one in 8 bits has two."""
    shard: Any = local(moment)
    if not hasattr(shard, "codes"):
        yield kind, moment
        return
    codes, scales = shard.codes, shard.scale[None]
    if isinstance(weight, DTensor):
        # The last rank may have fewer rows than the others.
        longest = max(_share_sizes(weight)) // BLOCK
        scales = pad(scales, (0, longest - scales.shape[1]))
        codes = _join_shards(codes, weight, tuple(weight.shape))
        scales = _join_shards(scales, weight, (weight.device_mesh.size(), longest))
    yield f"{kind}{CODES}", codes
    yield f"{kind}{SCALES}", scales


def join_moment(
    kind: str, parts: Mapping[str, Tensor], weight: Tensor, *, quantizes: bool
) -> Tensor | None:
    """Return a moment from the parts of it, in 8 bits or in float32; None where there are none.

    What as many ranks as now have written has the same bits. Moments of another number of ranks
    were rounded in other blocks, so they are rounded once more, and so are those in float32.
    """
    plain, codes, scales = (parts.get(f"{kind}{end}") for end in ("", CODES, SCALES))
    signed = kind == "exp_avg"
    moment = _new_moment(weight, signed=signed, quantizes=quantizes)
    shard: Any = local(moment)
    if codes is not None and scales is not None:
        codes, scales = local(alike(codes, weight)), gather_tensor(scales).to(shard.device)
        rank, ranks = _place(weight)
        if quantizes and scales.shape[0] == ranks:
            shard.codes.copy_(codes)
            shard.scale.copy_(scales[rank, : shard.scale.numel()])
            return moment
        start = rank * -(-weight.shape[0] // ranks) * weight[0].numel()
        shard.copy_(_dequantize(codes, scales, signed=signed, start=start, shape=weight.shape))
        return moment
    if plain is None:
        return None
    shard.copy_(local(alike(plain, weight)))
    return moment


def _share_sizes(weight: Tensor) -> list[int]:
    """Return the numbers of the first and of the last rank's part; all but the last are alike."""
    if not isinstance(weight, DTensor):
        return [weight.numel()] if weight.dim() else [0]
    rows, ranks = weight.shape[0], weight.device_mesh.size()
    share = -(-rows // ranks)
    row = weight.numel() // max(1, rows)
    return [share * row, max(0, rows - share * (ranks - 1)) * row]


def _place(weight: Tensor) -> tuple[int, int]:
    """Return which rank of how many this is."""
    if not isinstance(weight, DTensor):
        return 0, 1
    return weight.device_mesh.get_local_rank(), weight.device_mesh.size()


def _join_shards(part: Tensor, weight: DTensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of which this rank's rows are `part`, and others' those on other ranks."""
    strides = torch.empty(shape, device="meta").stride()
    joined = DTensor.from_local(
        part,
        weight.device_mesh,
        [Shard(0)],
        run_check=False,
        shape=torch.Size(shape),
        stride=strides,
    )
    # It was moved to the device of the mesh, and offloaded weights are not there.
    return joined.to(part.device)


def _new_moment(weight: Tensor, *, signed: bool, quantizes: bool) -> Tensor:
    if not quantizes:
        return torch.zeros_like(weight, requires_grad=False)
    shard = local(weight)
    moment = _new_state(shard, signed=signed)
    if not isinstance(weight, DTensor):
        return moment
    return _join_shards(moment, weight, tuple(weight.shape))


def _new_state(like: Tensor, *, signed: bool) -> Any:
    check_torchao()
    from torchao.optim.subclass_8bit import (  # pyright: ignore[reportMissingImports]
        OptimState8bit,
    )

    state: Any = OptimState8bit
    return state.zeros(like.shape, signed, BLOCK, like.device, dtype=like.dtype)


def _dequantize(
    codes: Tensor, scales: Tensor, *, signed: bool, start: int, shape: Sequence[int]
) -> Tensor:
    """Return the numbers that a part's codes stand for; it begins at number `start` of the whole,
    which has this shape."""
    values = _new_state(torch.empty(BLOCK, device=codes.device), signed=signed).qmap
    flat = codes.flatten()
    share = -(-shape[0] // scales.shape[0]) * math.prod(shape[1:])
    numbers = torch.empty(flat.shape, device=codes.device)
    at, end = start, start + flat.numel()
    while at < end:
        writer = at // share
        stop = min(end, (writer + 1) * share)
        first, last = at - writer * share, stop - writer * share
        blocks = scales[writer, first // BLOCK : -(-last // BLOCK)].repeat_interleave(BLOCK)
        skipped = first % BLOCK
        part = slice(at - start, stop - start)
        numbers[part] = values[flat[part].int()] * blocks[skipped : skipped + last - first]
        at = stop
    return numbers.view(codes.shape)

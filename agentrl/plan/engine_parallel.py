"""Division of an engine's model over GPUs, as vLLM's server divides it: what one GPU holds of it.

The rules are those of vLLM's parallel layers: heads and the inner width of feed-forward layers are
split over tensor-parallel ranks, key-value heads too, down to one on each; embeddings and head by
rows of the vocabulary; norms, routers and the latent projections of MLA are on every rank. Layers
are split over pipeline stages. Data-parallel ranks have a model and a cache each, but for experts,
which are split over all of them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, prod

from agentrl.config.run import RunConfig
from agentrl.engine.vllm.launch import count_devices, read_size
from agentrl.errors import ConfigError
from agentrl.plan.machine import THIS, MachineSpec
from agentrl.plan.model_shape import BYTES, ModelShape

OPTIONS = "engine.vllm.options"
VOCABULARY_ROWS = 64
"""vLLM fills the rows of embeddings and head up to a multiple of these."""
REPLICATED = ("gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa")
"""Linear layers that every tensor-parallel rank has whole."""
ROW_PARALLEL = ("o_proj", "down_proj")
"""Linear layers that are split by their inputs, so that each rank has all of the bias."""
KEY_VALUE = ("k_proj", "v_proj")
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParallelism:
    """Sizes of vLLM's kinds of parallelism; their product is the number of GPUs of an engine."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    is_expert: bool = False
    """Whether GPUs have whole experts, in place of a part of each."""

    @property
    def devices(self) -> int:
        """Return the number of GPUs of an engine."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_ranks(self) -> int:
        """Return the number of GPUs that share the experts of a layer."""
        return self.tensor * self.data

    def describe(self) -> str:
        """Return the sizes that are not 1, such as `TP 4, PP 2`."""
        sizes = {"TP": self.tensor, "PP": self.pipeline, "DP": self.data}
        parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        if self.is_expert and self.expert_ranks > 1:
            parts.append(f"EP {self.expert_ranks}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShard:
    """Part of a model on one GPU of an engine, in the largest pipeline stage."""

    parallelism: EngineParallelism = EngineParallelism()
    parameters: int
    expert_parameters: int
    """Of these in experts, of which a token meets a few."""
    experts: tuple[int, int]
    """Number of experts of a layer in the whole model, and of those a token meets."""
    layers: int
    cache_width: int
    """Numbers that one token has in the KV cache of all its layers."""
    hidden_size: int

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes of the KV cache for one token, on this GPU."""
        return self.cache_width * BYTES[dtype]

    def touched_parameters(self, tokens: float) -> float:
        """Return the parameters that so many tokens of a data-parallel rank meet, experts drawn
        evenly by the tokens of all ranks."""
        count, met = self.experts
        drawn = tokens * self.parallelism.data
        share = 1 - (1 - met / count) ** drawn if count > met else 1.0
        return self.parameters - self.expert_parameters * (1 - share)

    @property
    def flops_per_token(self) -> float:
        """Return the operations of one token of a data-parallel rank, and of its share of the
        experts for the tokens of the other ranks."""
        count, met = self.experts
        experts = self.expert_parameters * self.parallelism.data * met / count
        return 2 * (self.parameters - self.expert_parameters + experts)


def read_parallelism(config: RunConfig) -> EngineParallelism:
    """Return the parallelism of each engine that a run starts.

    Raises `ConfigError` for a size above 1 where an engine is on one device.
    """
    engine, options = config.engine, config.engine.vllm.options
    if engine.kind != "vllm" or engine.addresses:
        return EngineParallelism()
    devices = count_devices(options)
    by_ray = config.cluster.kind == "ray" and engine.processes > 0
    if devices > 1 and (by_ray or not engine.is_server):
        reason = (
            "cluster.kind is ray, whose engines are on one GPU each"
            if by_ray
            else "engine.vllm.sampler is agentrl, which runs vLLM in one process"
        )
        raise ConfigError(
            f"{OPTIONS} asks for {devices} GPUs for one engine and {reason}; remove one of the two"
        )
    name = "enable_expert_parallel"
    return EngineParallelism(
        tensor=read_size(options, "tensor_parallel_size"),
        pipeline=read_size(options, "pipeline_parallel_size"),
        data=read_size(options, "data_parallel_size"),
        is_expert=bool(options.get(name, options.get(name.replace("_", "-"), False))),
    )


def check_parallelism(
    parallelism: EngineParallelism, shape: ModelShape, machine: MachineSpec
) -> None:
    """Raise `ConfigError` for sizes that vLLM refuses for a model, or a machine has no GPUs for."""
    faults = [*_find_size_faults(parallelism, shape), *_find_device_faults(parallelism, machine)]
    if faults:
        raise ConfigError("; ".join(faults))


def _find_device_faults(parallelism: EngineParallelism, machine: MachineSpec) -> Iterator[str]:
    most = min(machine.count, machine.per_node)
    if machine.device.name != THIS and parallelism.devices > most:
        yield (
            f"{OPTIONS} asks for {parallelism.devices} GPUs for one engine "
            f"({parallelism.describe()}), and a server of vLLM is on one machine, of which "
            f"{machine.name} has {most}; lower its parallel sizes"
        )


def _find_size_faults(parallelism: EngineParallelism, shape: ModelShape) -> Iterator[str]:
    tensor, config = parallelism.tensor, shape.config
    heads, kv_heads = shape.heads
    if heads % tensor:
        yield (
            f"{OPTIONS}.tensor_parallel_size is {tensor}, which does not divide the {heads} "
            f"attention heads of {shape.name}; set it to {_name_divisors(heads)}"
        )
        return
    if max(kv_heads, tensor) % min(kv_heads, tensor) and shape.latent_width is None:
        yield (
            f"{OPTIONS}.tensor_parallel_size is {tensor}, and {shape.name} has {kv_heads} "
            "key-value heads: one has to divide the other, so set it to "
            f"{_name_divisors(kv_heads)}"
        )
    if parallelism.pipeline > config.num_hidden_layers:
        yield (
            f"{OPTIONS}.pipeline_parallel_size is {parallelism.pipeline}, and {shape.name} has "
            f"{config.num_hidden_layers} layers; set it to at most that"
        )
    has_experts = shape.experts[0] > 1
    if parallelism.is_expert and not has_experts:
        yield (
            f"{OPTIONS}.enable_expert_parallel is true, but {shape.name} has no experts; remove it"
        )
    ranks, width = tensor, getattr(config, "intermediate_size", None)
    sizes = f"tensor_parallel_size is {tensor}"
    if has_experts:
        ranks, width = parallelism.expert_ranks, getattr(config, "moe_intermediate_size", width)
        sizes += f" and data_parallel_size is {parallelism.data}"
    splits_width = not (has_experts and parallelism.is_expert)
    if splits_width and isinstance(width, int) and width % ranks:
        way = ", or enable_expert_parallel: true" if has_experts else ""
        yield (
            f"{OPTIONS}: {sizes}, but {ranks} does not divide the width {width} of "
            f"{shape.name}'s feed-forward layers; set a product of {_name_divisors(width)}{way}"
        )


def list_tensor_sizes(parallelism: EngineParallelism, shape: ModelShape, *, most: int) -> list[int]:
    """Return the larger tensor-parallel sizes, up to 8, that a model allows on so many devices."""
    larger = [replace(parallelism, tensor=size) for size in (2, 4, 8) if size > parallelism.tensor]
    return [
        one.tensor
        for one in larger
        if one.devices <= most and not list(_find_size_faults(one, shape))
    ]


def _name_divisors(number: int) -> str:
    """Return the sizes up to 16 that divide a number, as words."""
    *others, last = [str(size) for size in range(1, 17) if number % size == 0]
    return f"{', '.join(others)} or {last}" if others else last


def split_layers(layers: int, stages: int) -> list[int]:
    """Return the number of layers of each pipeline stage. What is left over goes to the stages
    before the last, from behind, as the last has the head."""
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return counts


def shard_engine(shape: ModelShape, parallelism: EngineParallelism) -> EngineShard:
    """Return the part of a model on one GPU of an engine. Its parameters are those of the pipeline
    stage with the most of them, its layers those of the stage with the most layers, its cache that
    of the stage with the widest.

    `check_parallelism` comes before: sizes that do not divide are rounded up.
    """
    stages = parallelism.pipeline
    counts = split_layers(shape.config.num_hidden_layers, stages)
    numbers, expert_numbers = [0] * stages, [0] * stages
    for name, size, places in _place_parameters(shape, counts):
        count = count_held(name, size, shape, parallelism)
        for stage in places:
            numbers[stage] += count
            expert_numbers[stage] += count if ".experts." in name else 0
    largest = max(range(stages), key=numbers.__getitem__)
    widths = iter(shape.kv_widths(parallelism.tensor))
    return EngineShard(
        parallelism=parallelism,
        parameters=numbers[largest],
        expert_parameters=expert_numbers[largest],
        experts=shape.experts,
        layers=max(counts),
        cache_width=max(sum(islice(widths, count)) for count in counts),
        hidden_size=shape.config.hidden_size,
    )


def _place_parameters(
    shape: ModelShape, counts: Sequence[int]
) -> Iterator[tuple[str, Sequence[int], set[int]]]:
    """Yield each parameter's name and size, and the pipeline stages that have it: what comes
    before the layers is in the first, what comes after them in the last, a shared head in both."""
    stage_of = [stage for stage, count in enumerate(counts) for _ in range(count)]
    last, here = len(counts) - 1, 0
    parameters = dict(shape.model.named_parameters())
    is_tied = not any(name.endswith("lm_head.weight") for name in parameters)
    for name, parameter in parameters.items():
        layer = _LAYER.search(name)
        if layer is not None:
            here = stage_of[min(int(layer[1]), len(stage_of) - 1)]
            yield name, parameter.shape, {here}
        elif _is_vocabulary(name):
            is_head = name.endswith("lm_head.weight")
            yield name, parameter.shape, {0, last} if is_tied else {last if is_head else 0}
        else:
            yield name, parameter.shape, {last if here == last else 0}


def _is_vocabulary(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "lm_head.weight"))


def count_held(
    name: str, size: Sequence[int], shape: ModelShape, parallelism: EngineParallelism
) -> int:
    """Return the numbers of a parameter that one tensor-parallel rank holds."""
    tensor, numbers = parallelism.tensor, prod(size)
    *_, layer, kind = name.split(".")
    if ".experts." in name:
        count, ranks = shape.experts[0], parallelism.expert_ranks
        if parallelism.is_expert:
            return numbers // count * ceil(count / ranks)
        return ceil(numbers / ranks)
    if _is_vocabulary(name):
        rows = ceil(size[0] / VOCABULARY_ROWS) * VOCABULARY_ROWS if tensor > 1 else size[0]
        return ceil(rows / tensor) * size[1]
    is_bias = kind == "bias" and layer.endswith(("proj", "qkv"))
    if layer in REPLICATED or (is_bias and layer in ROW_PARALLEL):
        return numbers
    if len(size) != 2 and not is_bias:
        return numbers  # norms, and what sees patches
    heads, kv_heads = shape.heads
    own_heads = max(1, kv_heads // tensor)
    if layer in KEY_VALUE:
        return numbers // kv_heads * own_heads
    if layer == "qkv_proj":
        return numbers // (heads + 2 * kv_heads) * (heads // tensor + 2 * own_heads)
    return ceil(numbers / tensor)

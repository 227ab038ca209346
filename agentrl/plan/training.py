"""Memory and work of training on one rank: the trainer's own forward and backward pass, traced.

The model is made of its config with fake tensors, prepared, sharded and scored by the code that
trains, so layouts, checkpointing, LoRA, precision and the chunked head cost here as much as there.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.errors import ConfigError
from agentrl.learn.context_parallel import check_heads
from agentrl.learn.dtensor import local
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.lora import adapt
from agentrl.learn.optimizer import AdamW
from agentrl.learn.quantized_moments import moment_bytes
from agentrl.learn.sequence_layout import ModelInputs, SequenceLayout, TokenSequence
from agentrl.learn.sharded.rank_spec import form_context
from agentrl.learn.sharded.shard import shard
from agentrl.learn.token_logprobs import keeps_logits, score
from agentrl.models.folders import checkpoint_layers
from agentrl.models.precision import round_to
from agentrl.plan.kernel_time import paging_s, total_s
from agentrl.plan.machine import DeviceSpec
from agentrl.plan.op_trace import KernelWork, OpTrace, trace_ops

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Bytes that one rank holds while it trains, and the kernels of its largest micro-batch."""

    parameter_bytes: int
    """The model as it is held: a shard of it on several ranks."""
    gradient_bytes: int
    optimizer_bytes: int
    """Moments, and float32 masters where the model is rounded."""
    host_bytes: int
    """Part of all these that `learn.offload` keeps in the host's memory, and not on the device."""
    copy_bytes: int
    """A frozen reference and a moving average of the weights, where the config has them."""
    activation_bytes: int
    """Peak beyond the above: activations, collected weights, the head's logits."""
    saved_bytes: int
    """Activations between the forward and the backward pass; part of `activation_bytes`."""
    places: int
    """Places of the micro-batch, padding included."""
    tokens: int
    """Tokens of its sequences, each counted in every sequence that has it."""
    forward: dict[KernelWork, int]
    backward: dict[KernelWork, int]
    """Kernels of the backward pass, with what it recomputes."""
    is_flex: bool
    """Whether a GPU computes its attention with FlexAttention."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the device that stay between steps and micro-batches."""
        states = self.gradient_bytes + self.optimizer_bytes + self.copy_bytes
        return self.parameter_bytes + states - self.host_bytes

    @property
    def peak_bytes(self) -> int:
        """Return the most bytes held at once."""
        return self.held_bytes + self.activation_bytes

    @property
    def flops(self) -> int:
        """Return the operations of the micro-batch."""
        both = (*self.forward.items(), *self.backward.items())
        return sum(kernel.flops * calls for kernel, calls in both)


def largest_pass(
    layout: SequenceLayout, sequences: Sequence[TokenSequence]
) -> Sequence[TokenSequence]:
    """Return the sequences of the micro-batch with the most places."""
    measured = layout.measure(sequences)
    largest = max(measured.plan(layout.limit_tokens), key=measured.places)
    return [sequences[index] for index in largest]


def trace_training(
    make_model: Callable[[], PreTrainedModel],
    section: LearnSection,
    sequences: Sequence[TokenSequence],
    *,
    dtype: torch.dtype = torch.float32,
    ranks: int = 1,
    temperature: float = 1.0,
) -> TrainingCost:
    """Return the cost of one micro-batch of these sequences in a step that has several of them.

    So gradients are there already and moments are known, as they are in all but the first step.
    Raises `ConfigError` in a process that has a process group, for several ranks.
    """
    context_size = section.devices.context_parallel
    # Outside the trace: peft moves modules in a way that fake tensors do not allow.
    with torch.device("meta"):
        model = _prepare(make_model, section, dtype)
    check_heads(model.config, context_size)
    with _fake_mesh(ranks) as mesh:
        context = form_context(context_size)
        layout = LAYOUTS[section.layout](section.micro_batch_tokens, None, context)
        if mesh is not None:
            shard(model, mesh, precision=section.precision)
        try:
            return _trace_model(
                model, section, layout, sequences, temperature, is_sharded=ranks > 1
            )
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ConfigError(
                f"{type(model).__name__} decides by the values of tensors ({error.func}), which a "
                "plan has none of; measure a short run instead"
            ) from error


def _trace_model(
    model: PreTrainedModel,
    section: LearnSection,
    layout: SequenceLayout,
    sequences: Sequence[TokenSequence],
    temperature: float,
    *,
    is_sharded: bool,
) -> TrainingCost:
    with trace_ops() as trace:
        model.to_empty(device=CPU)
        if not is_sharded:
            model.tie_weights()
        weights = [local(p) for p in model.parameters()]
        parameter_bytes = sum(w.numel() * w.element_size() for w in weights)
        # A decayed rate asks for the number of steps, and the number changes no memory; moments
        # are counted without what holds them.
        plain = section.optimizer.model_copy(update={"moments": "float32"})
        optimizer = AdamW(model, plain, steps=1)
        masters = list(optimizer.named_parameters().values())
        for master in masters:
            master.grad = torch.zeros_like(master)
        own = [local(m) for m in masters]
        gradient_bytes = sum(m.numel() * m.element_size() for m in own)
        rounded = 4 * sum(w.numel() for w in weights if w.dtype != torch.float32 and not is_sharded)
        trained_rounded = rounded if section.lora is None else 0
        in_bytes = section.optimizer.moments == "8bit"
        optimizer_bytes = 2 * sum(
            moment_bytes(m) if in_bytes else 4 * local(m).numel() for m in masters
        )
        optimizer_bytes += trained_rounded
        host_bytes = 0
        if section.offload:
            # One device computes with its own weights, so the host has float32 ones beside them.
            on_device = [p for p in model.parameters() if p.requires_grad and not is_sharded]
            copied = 4 * sum(p.numel() for p in on_device if p.dtype == torch.float32)
            optimizer_bytes += copied
            host_bytes = gradient_bytes + optimizer_bytes + (parameter_bytes if is_sharded else 0)
        copy_bytes, offloaded = _copy_bytes(section, parameter_bytes, gradient_bytes, is_sharded)
        tokens = layout.tokens(sequences, device=CPU)
        forward, saved_bytes, base_bytes = _trace_pass(trace, model, section, tokens, temperature)
        return TrainingCost(
            parameter_bytes=parameter_bytes,
            gradient_bytes=gradient_bytes,
            optimizer_bytes=optimizer_bytes,
            host_bytes=host_bytes + offloaded,
            copy_bytes=copy_bytes,
            activation_bytes=trace.peak_bytes - base_bytes,
            saved_bytes=saved_bytes,
            places=tokens.inputs.numel(),
            tokens=sum(len(s.token_ids) for s in sequences),
            forward=forward,
            backward=trace.kernels,
            is_flex=section.layout != "padded",
        )


def _trace_pass(
    trace: OpTrace,
    model: PreTrainedModel,
    section: LearnSection,
    tokens: ModelInputs,
    temperature: float,
) -> tuple[dict[KernelWork, int], int, int]:
    """Run a forward and a backward pass; return the kernels of the first, and live bytes."""
    trace.restart()
    base_bytes = trace.live_bytes
    scores = score(
        model,
        tokens,
        temperature=temperature,
        head_at_positions=keeps_logits(model),
        entropy_gradient=section.entropy_bonus > 0,
        head_chunk_tokens=section.head_chunk_tokens,
    )
    forward, saved_bytes = trace.kernels, trace.live_bytes - base_bytes
    trace.kernels = {}
    (scores.logprobs.sum() + scores.entropies.sum()).backward()
    return forward, saved_bytes, base_bytes


def _prepare(
    make_model: Callable[[], PreTrainedModel],
    section: LearnSection,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Return the model as `models.folders.prepare` makes it ready, without trying anything."""
    model = make_model().eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    round_to(model, section.precision)
    if section.lora is not None:
        adapt(model, section.lora, seed=0)
    if section.gradient_checkpointing:
        checkpoint_layers(model)
    return model


def _copy_bytes(
    section: LearnSection, parameter_bytes: int, trained_bytes: int, is_sharded: bool
) -> tuple[int, int]:
    """Return the bytes of a reference model, which LoRA needs none of, and of the average; and what
    of them is in the host's memory."""
    reference = parameter_bytes if section.kl is not None and section.lora is None else 0
    average = trained_bytes if section.ema is not None else 0
    offloaded = average + (reference if is_sharded else 0) if section.offload else 0
    return reference + average, offloaded


@contextmanager
def _fake_mesh(ranks: int) -> Generator[DeviceMesh | None]:
    """Give the mesh of a process group in which nothing is sent; None for a single rank."""
    if ranks == 1:
        yield None
        return
    if dist.is_initialized():
        raise ConfigError(
            "this process already has a torch.distributed process group, and a plan for "
            f"{ranks} ranks makes a fake one; plan in another process"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def forward_s(cost: TrainingCost, device: DeviceSpec) -> float:
    """Return the seconds of the micro-batch's forward pass."""
    return total_s(cost.forward, device, is_flex=cost.is_flex)


def pass_s(cost: TrainingCost, device: DeviceSpec) -> float:
    """Return the seconds of the micro-batch, forward and backward."""
    backward_s = total_s(cost.backward, device, is_flex=cost.is_flex)
    return forward_s(cost, device) + backward_s + paging_s(cost.saved_bytes, device)


def optimizer_s(cost: TrainingCost, device: DeviceSpec) -> float:
    """Return the seconds of the optimiser: gradients are read for their norm and scaled, then
    weights and both moments are read and written.

    In the host's memory that takes no longer than the link to it, over which gradients come and
    weights go: so much is counted, and no more is known of the host.
    """
    weight_bytes = cost.gradient_bytes
    bytes_per_s = device.host_bytes_per_s if cost.host_bytes else device.bytes_per_s
    moved_bytes = 2 * weight_bytes if cost.host_bytes else 0
    return (3 * weight_bytes + 7 * weight_bytes + moved_bytes) / bytes_per_s

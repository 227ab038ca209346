"""Keys of the training section: one section per slot, with a method chosen by name and its own
keys."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.config.learning.advantage import AnyAdvantage, GrpoAdvantage
from agentrl.config.learning.correction import AnyCorrection, TruncatedCorrection
from agentrl.config.learning.group_reward import AnyGroupReward
from agentrl.config.learning.hint import AnyHint
from agentrl.config.learning.loss import Aggregation, AnyLoss, PpoClipLoss
from agentrl.config.learning.proximal import AnyProximal, RecomputedProximal
from agentrl.config.learning.rejection import AnyRejection
from agentrl.config.learning.selection import AnySelection
from agentrl.config.learning.shaping import AnyShaping
from agentrl.config.section import ConfigSection

LayoutName = Literal["padded", "packed", "tree"]
"""`padded` puts each sequence in a row of its own; `packed` concatenates sequences in one row;
`tree` also stores common prefixes only once."""


Precision = Literal["float32", "bfloat16"]
"""Precision of forward and backward passes. With bfloat16, the optimiser keeps master weights,
gradients, and moments in float32, and the policy is the rounded master weights."""


DecayRate = Annotated[float, Field(ge=0, lt=1)]


class CriticSection(ConfigSection):
    """Value head on the policy's last hidden states, with its own optimiser."""

    hidden_size: NonNegativeInt = 0
    """Width of a hidden layer between hidden states and value; 0 makes the head linear."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the head."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm of the head; larger gradients are clipped."""
    clip: PositiveFloat | None = 0.5
    """Value clipping: maximum change from the value at batch start that lowers the loss; null
    disables it."""
    shared: bool = False
    """Let the critic's loss train the policy's weights too; false trains only the head."""
    coefficient: float = Field(default=0.1, gt=0)
    """With `shared`: weight of the critic's loss, which is added to the policy loss."""


class DevicesSection(ConfigSection):
    """Devices that train one model together, each in a process with a shard of the weights (FSDP2).
    Under `torchrun` its processes are used; otherwise the run starts them: on this machine, or with
    `cluster.kind: ray` as actors placed by Ray."""

    count: PositiveInt = 1
    """Number of devices; 1 trains in the run's own process."""
    context_parallel: PositiveInt = 1
    """Context parallelism (Ulysses): number of neighbouring devices that divide each line of
    `micro_batch_tokens` between them, for contexts whose activations exceed the memory of one. It
    must divide `count` and the model's attention heads."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Communication backend for weights and gradients: `auto` uses nccl between GPUs and gloo
    between CPUs."""
    start_s: PositiveFloat = 600.0
    """Timeout for the other processes to load the model and join the process group."""
    step_s: PositiveFloat = 1800.0
    """Maximum time a process waits for the others in a training step before the run fails."""


class EmaSection(ConfigSection):
    """Exponential moving average of the weights, in float32, used by evaluations and saved in
    `ema/` of a checkpoint. Training trajectories are sampled with the current weights."""

    decay: float = Field(default=0.99, ge=0, lt=1)
    """Fraction of the average that is kept at each update; 0 tracks the current weights."""


class GapAlarmSection(ConfigSection):
    """Compares tokens sampled at the trainer's own version, which may differ only numerically."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` ends the run before the weights change; `warn` prints a warning once and continues."""
    mean_abs: PositiveFloat = 0.1
    """Maximum mean of |log trainer - log engine|, in nats. Expected values are below 1e-4 with
    float32 on both sides, and about 0.02 with bfloat16; a wrong temperature causes more than
    0.1."""


class LoraSection(ConfigSection):
    """LoRA: W + alpha / rank x B A, where only A and B train; requires the `lora` extra (peft)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """Scale of the adapters, divided by `rank`."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A during training; the trained policy then differs slightly from the
    one that sampled."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Modules that get adapters, by the last parts of their names; `all-linear` means all linear
    layers except the head."""


class AdamWSection(ConfigSection):
    """AdamW with a linear warm-up and an optional decay of the learning rate over the run."""

    learning_rate: PositiveFloat = 1e-6
    """Learning rate after the warm-up."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the first and second moments."""
    epsilon: PositiveFloat = 1e-8
    """Added to the square root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of all parameters, norms and embeddings included; not applied in a step without
    advantages."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of updates until the full rate; the first update already uses a rate above 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate, multiplied with the warm-up. It runs from the full rate, at the
    first step, to the final rate, at the step after the last one of `run.steps`."""
    final_learning_rate_fraction: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate, as a fraction of `learning_rate`."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are clipped."""
    moments: Literal["float32", "8bit"] = "float32"
    """Precision of both moments. `8bit` quantises them in blocks of 256 numbers, 2 bytes per
    parameter instead of 8, except in tensors below 4096 numbers per device; requires the `torchao`
    extra."""


class KlSection(ConfigSection):
    """KL(policy || reference), estimated on the sampled tokens and added to the loss. The reference
    is the initial policy of the run, or a later one with `reset_every`. Costs a forward pass and a
    frozen copy of the weights, which `lora` needs not."""

    coefficient: PositiveFloat = 1e-3
    """Weight of the estimate in the loss."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator, with d = log(policy / reference): k1 is d, k2 is d^2 / 2, k3 is exp(-d) - 1 +
    d."""
    straight_through: bool = True
    """Use the estimator's value with the gradient of k2, which is that of the reverse KL; the
    gradient of k1 is 0 in expectation, and that of k3 resembles a forward KL."""
    off_policy: bool = False
    """Multiply by policy over behaviour, so that stale tokens do not bias the estimate."""
    reset_every: PositiveInt | None = None
    """Number of steps after which the current policy becomes the reference, again and again (ProRL,
    BroRL); null keeps the initial one."""


class LearnSection(ConfigSection):
    """Training on a batch of groups: advantages, loss, and optimiser."""

    group_reward: AnyGroupReward | None = None
    """Group reward: replaces the rewards of a group before they are shaped, for example by votes;
    reports show the environment's reward. Null keeps the environment's."""
    reward_shaping: tuple[AnyShaping, ...] = ()
    """Reward shaping, applied in order before advantages are computed; reports show the unshaped
    reward."""
    advantage: AnyAdvantage = GrpoAdvantage()
    critic: CriticSection | None = None
    """Critic that provides values for the advantage; `gae` requires it, other methods do not allow
    it."""
    loss: AnyLoss = PpoClipLoss()
    proximal: AnyProximal = RecomputedProximal()
    correction: AnyCorrection = TruncatedCorrection()
    rejection: tuple[AnyRejection, ...] = ()
    """Rejection filters: a token trains only if all of them keep it. Denominators of the loss do
    not change."""
    selection: tuple[AnySelection, ...] = ()
    """Sample selection, applied to the batch in order after advantages are computed."""
    hint: AnyHint | None = None
    """Prompt after which trajectories train whose environment gave a hint in it. Null is the one
    with the hint, as sampled."""
    aggregation: Aggregation | None = None
    """Aggregation of token losses, counted over the whole optimiser step. Null uses the default of
    the loss: seq-mean-token-mean for gspo and sapo, token-mean for the others."""
    horizon_tokens: PositiveInt | None = None
    """Constant divisor of seq-mean-token-sum-norm."""
    kl: KlSection | None = None
    """KL penalty towards a reference policy; null applies none."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the policy's exact entropy, in nats per token, which is subtracted from the
    loss."""
    gap_alarm: GapAlarmSection = GapAlarmSection()
    """Reaction to a gap between the log-probs of engine and trainer under the same weights."""
    minibatches: PositiveInt = 1
    """Optimiser steps per pass over the batch; each takes an equal share of the trajectories."""
    epochs: PositiveInt = 1
    """Number of passes over the batch."""
    layout: LayoutName = "tree"
    """Layout of sequences in a forward pass; does not change the result. `padded`: one row per
    sequence; `packed`: sequences concatenated; `tree`: concatenated, with common prefixes computed
    once."""
    micro_batch_tokens: PositiveInt = 8192
    """Maximum number of tokens in one forward pass, padding included; at least
    `engine.context_tokens`. Does not change the result."""
    head_chunk_tokens: PositiveInt = 1024
    """Number of predictions per chunk of the output head, used when full-vocabulary logits would
    exceed 64 MiB. Does not change the result; costs up to a third of the head's time."""
    gradient_checkpointing: bool = False
    """Activation checkpointing: store only layer inputs and recompute activations in the backward
    pass. Saves memory at the cost of one more forward pass; gradients are the same."""
    precision: Precision = "float32"
    """Precision of training: float32, or bfloat16 with float32 master weights."""
    offload: bool = False
    """CPU offload: keep gradients, moments, and master weights in host memory, with several devices
    the shards of the weights too, and update on the CPU. Saves GPU memory at the cost of transfers;
    no effect with `policy.device: cpu`."""
    devices: DevicesSection = DevicesSection()
    lora: LoraSection | None = None
    """LoRA adapters to train; null trains all weights."""
    optimizer: AdamWSection = AdamWSection()
    ema: EmaSection | None = None
    """Moving average of the weights to evaluate; null evaluates the current weights."""

"""Keys of the training section: one section per slot, with a method chosen by name and its own
keys."""

from pydantic import Field, PositiveInt

from agentrl.config.learning.advantage import AnyAdvantage, GrpoAdvantage
from agentrl.config.learning.aggregation import Aggregation
from agentrl.config.learning.correction import AnyCorrection, TruncatedCorrection
from agentrl.config.learning.critic import CriticSection
from agentrl.config.learning.devices import DevicesSection
from agentrl.config.learning.ema import EmaSection
from agentrl.config.learning.gap import GapAlarmSection
from agentrl.config.learning.layout import LayoutName
from agentrl.config.learning.lora import LoraSection
from agentrl.config.learning.loss import AnyLoss, PpoClipLoss
from agentrl.config.learning.optimizer import AdamWSection
from agentrl.config.learning.precision import Precision
from agentrl.config.learning.proximal import AnyProximal, RecomputedProximal
from agentrl.config.learning.regularisers import KlSection
from agentrl.config.learning.rejection import AnyRejection
from agentrl.config.learning.selection import AnySelection
from agentrl.config.learning.shaping import AnyShaping
from agentrl.config.section import ConfigSection


class LearnSection(ConfigSection):
    """Training on a batch of groups: advantages, loss, and optimiser."""

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
    devices: DevicesSection = DevicesSection()
    lora: LoraSection | None = None
    """LoRA adapters to train; null trains all weights."""
    optimizer: AdamWSection = AdamWSection()
    ema: EmaSection | None = None
    """Moving average of the weights to evaluate; null evaluates the current weights."""

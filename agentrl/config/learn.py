"""The learning half's keys: one section per slot, a method chosen by name with its own knobs."""

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
    """Training on a batch of groups: credit, loss and optimiser."""

    reward_shaping: tuple[AnyShaping, ...] = ()
    """Change the reward that credit is made of, one after the other; reports keep the raw one."""
    advantage: AnyAdvantage = GrpoAdvantage()
    critic: CriticSection | None = None
    """Critic that gives the advantage its values; `gae` needs it, the others may not have it."""
    loss: AnyLoss = PpoClipLoss()
    proximal: AnyProximal = RecomputedProximal()
    correction: AnyCorrection = TruncatedCorrection()
    rejection: tuple[AnyRejection, ...] = ()
    """A token trains if none of these rejects it; denominators stay as they are."""
    selection: tuple[AnySelection, ...] = ()
    """Applied to the batch one after the other, once its credit is known."""
    aggregation: Aggregation | None = None
    """Aggregation of token losses; counts are those of the whole optimiser step. Null takes the
    loss's own: seq-mean-token-mean for gspo and sapo, token-mean for the others."""
    horizon_tokens: PositiveInt | None = None
    """The constant that seq-mean-token-sum-norm divides by."""
    kl: KlSection | None = None
    """Null lets the policy go where the rewards lead."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the policy's exact entropy in nats per token, subtracted from the loss."""
    gap_alarm: GapAlarmSection = GapAlarmSection()
    """Reaction to a gap between engine and trainer under the same weights."""
    minibatches: PositiveInt = 1
    """Optimiser steps per pass over the batch; each takes an equal share of its trajectories."""
    epochs: PositiveInt = 1
    """Passes over the batch."""
    layout: LayoutName = "tree"
    """Layout of sequences in a forward pass; never changes the result. `padded`: a row each;
    `packed`: one after the other; `tree`: with common prefixes computed once."""
    micro_batch_tokens: PositiveInt = 8192
    """Most tokens in one forward pass, padding included, at least `engine.context_tokens`; never
    changes the result."""
    head_chunk_tokens: PositiveInt = 1024
    """Most predictions whose logits over the whole vocabulary exist at once, where they would take
    more than 64 MiB together; changes no value, and costs up to a third of the head's time."""
    gradient_checkpointing: bool = False
    """Keep the inputs of layers only, and compute the rest again in the backward pass: less memory
    for one more forward pass, and the same gradient."""
    precision: Precision = "float32"
    """Precision of the trainer: float32, or bfloat16 over float32 master weights."""
    devices: DevicesSection = DevicesSection()
    lora: LoraSection | None = None
    """Null trains all weights."""
    optimizer: AdamWSection = AdamWSection()
    ema: EmaSection | None = None
    """Null evaluates the weights as they are."""

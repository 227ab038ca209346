"""The learning half's keys: one section per slot, a method chosen by name with its own knobs."""

from typing import Literal

from pydantic import PositiveInt

from agentrl.config.learning.advantage import AnyAdvantage, GrpoAdvantage
from agentrl.config.learning.correction import AnyCorrection, TruncatedCorrection
from agentrl.config.learning.loss import AnyLoss, PpoClipLoss
from agentrl.config.learning.optimizer import AdamWSection
from agentrl.config.learning.proximal import AnyProximal, RecomputedProximal
from agentrl.config.learning.rejection import AnyRejection
from agentrl.config.learning.selection import AnySelection
from agentrl.config.section import Section


class LearnSection(Section):
    """How a batch of groups becomes new weights."""

    advantage: AnyAdvantage = GrpoAdvantage()
    loss: AnyLoss = PpoClipLoss()
    proximal: AnyProximal = RecomputedProximal()
    correction: AnyCorrection = TruncatedCorrection()
    rejection: tuple[AnyRejection, ...] = ()
    """A token trains if none of these rejects it; denominators stay as they are."""
    selection: tuple[AnySelection, ...] = ()
    """Applied to the batch one after the other, once its credit is known."""
    aggregation: Literal[
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
    ] = "token-mean"
    """How token losses become one number; counts are those of the whole optimiser step."""
    minibatches: PositiveInt = 1
    """Optimiser steps per pass over the batch; each takes an equal share of its trajectories."""
    epochs: PositiveInt = 1
    """Passes over the batch."""
    micro_batch_tokens: PositiveInt = 8192
    """Most padded tokens in one forward pass, at least `engine.context_tokens`; never changes the
    result."""
    optimizer: AdamWSection = AdamWSection()

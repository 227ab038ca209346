"""From a config section to the function it names. One row per method: this is the list of them.

A method is a section class in `agentrl.config.learn` (its knobs and their defaults), a pure
function (its formula and source) and a row here, which binds one to the other and records what the
method has to be given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from agentrl.config.learn import (
    GrpoAdvantage,
    LearnSection,
    NoCorrection,
    PpoClipLoss,
    TruncatedCorrection,
)
from agentrl.config.section import Section
from agentrl.learn.advantage import AdvantageFunction, grpo, per_trajectory
from agentrl.learn.correction import (
    CorrectionFunction,
    sequence_truncated,
    token_truncated,
    uncorrected,
)
from agentrl.learn.loss import LossFunction, PolicyTokens, TokenLoss, ppo_clip

Need = Literal["reward", "behaviour logprobs", "proximal logprobs"]
"""`proximal logprobs`: those of the trainer's weights at batch start. A correction that does not
need them takes the behaviour policy for the proximal one."""

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Method(Generic[F]):
    """How a section becomes a function, and what the function has to be given."""

    bind: Callable[[Any], F]
    needs: frozenset[Need]


def _grpo(section: GrpoAdvantage) -> AdvantageFunction:
    return per_trajectory(
        partial(
            grpo,
            normalise_std=section.normalise_std,
            epsilon=section.epsilon,
            singleton=section.singleton,
        )
    )


def _ppo_clip(section: PpoClipLoss) -> LossFunction:
    clip = partial(
        ppo_clip,
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        dual_clip=section.dual_clip,
    )

    def loss(tokens: PolicyTokens) -> TokenLoss:
        return clip(tokens.logprobs - tokens.proximal, tokens.advantages)

    return loss


def _uncorrected(section: NoCorrection) -> CorrectionFunction:
    return uncorrected


def _truncated(section: TruncatedCorrection) -> CorrectionFunction:
    truncated = {"token": token_truncated, "sequence": sequence_truncated}[section.level]
    return partial(truncated, cap=section.cap)


ADVANTAGES: Mapping[type[Section], Method[AdvantageFunction]] = {
    GrpoAdvantage: Method(_grpo, frozenset({"reward"})),
}
LOSSES: Mapping[type[Section], Method[LossFunction]] = {
    PpoClipLoss: Method(_ppo_clip, frozenset()),
}
CORRECTIONS: Mapping[type[Section], Method[CorrectionFunction]] = {
    NoCorrection: Method(_uncorrected, frozenset({"behaviour logprobs"})),
    TruncatedCorrection: Method(_truncated, frozenset({"behaviour logprobs", "proximal logprobs"})),
}


def advantage_of(section: Section) -> AdvantageFunction:
    """Return the advantage function `section` names, with its knobs."""
    return _method(ADVANTAGES, section).bind(section)


def loss_of(section: Section) -> LossFunction:
    """Return the loss function `section` names, with its knobs."""
    return _method(LOSSES, section).bind(section)


def correction_of(section: Section) -> CorrectionFunction:
    """Return the correction `section` names, with its knobs."""
    return _method(CORRECTIONS, section).bind(section)


def needs_of(section: LearnSection) -> frozenset[Need]:
    """Return everything the chosen methods have to be given."""
    return (
        _method(ADVANTAGES, section.advantage).needs
        | _method(LOSSES, section.loss).needs
        | _method(CORRECTIONS, section.correction).needs
    )


def _method(slot: Mapping[type[Section], Method[F]], section: Section) -> Method[F]:
    if type(section) not in slot:
        known = sorted(kind.__name__ for kind in slot)
        raise ValueError(f"{type(section).__name__} is no method of this slot; known: {known}")
    return slot[type(section)]

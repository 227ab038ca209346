"""The methods a config chose, bound to their knobs, and what they have to be given together."""

from dataclasses import dataclass

from agentrl.config.learn import LearnSection
from agentrl.config.section import ConfigSection
from agentrl.learn import (
    advantages,
    corrections,
    losses,
    proximals,
    rejections,
    selection,
    shaping,
)
from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.correction import AnyCorrectionFunction, RejectionFunction
from agentrl.learn.loss import AnyLossFunction
from agentrl.learn.method import Need, bind_method, find_needs
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.regularisers import LossRegularisers
from agentrl.learn.selection import SelectionFunction
from agentrl.learn.shaping import ShapingFunction


@dataclass(frozen=True, slots=True)
class LearnMethods:
    """One function per slot, or several that are applied one after the other."""

    shapings: tuple[ShapingFunction, ...]
    advantage: AdvantageFunction
    loss: AnyLossFunction
    proximal: ProximalFunction
    correction: AnyCorrectionFunction
    rejections: tuple[RejectionFunction, ...]
    selections: tuple[SelectionFunction, ...]
    needs: frozenset[Need]
    """Everything they have to be given."""

    @classmethod
    def from_config(cls, section: LearnSection) -> "LearnMethods":
        """Return the methods of a config; `ConfigError` for a function that cannot be imported."""
        one = (
            (advantages.METHODS, section.advantage),
            (losses.METHODS, section.loss),
            (proximals.METHODS, section.proximal),
            (corrections.METHODS, section.correction),
        )
        several = (
            *((shaping.METHODS, each) for each in section.reward_shaping),
            *((rejections.METHODS, each) for each in section.rejection),
            *((selection.METHODS, each) for each in section.selection),
        )
        return cls(
            shapings=tuple(bind_method(shaping.METHODS, each) for each in section.reward_shaping),
            advantage=advantage_of(section.advantage),
            loss=loss_of(section.loss),
            proximal=bind_method(proximals.METHODS, section.proximal),
            correction=correction_of(section.correction),
            rejections=tuple(bind_method(rejections.METHODS, each) for each in section.rejection),
            selections=tuple(bind_method(selection.METHODS, each) for each in section.selection),
            needs=LossRegularisers.from_config(section).needs.union(
                *(find_needs(rows, each) for rows, each in one + several)
            ),
        )


def advantage_of(section: ConfigSection) -> AdvantageFunction:
    """Return the advantage function `section` names, with its knobs."""
    return bind_method(advantages.METHODS, section)


def loss_of(section: ConfigSection) -> AnyLossFunction:
    """Return the loss `section` names, with its knobs."""
    return bind_method(losses.METHODS, section)


def correction_of(section: ConfigSection) -> AnyCorrectionFunction:
    """Return the correction `section` names, with its knobs."""
    return bind_method(corrections.METHODS, section)

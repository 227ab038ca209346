"""The methods a config chose, bound to their knobs, and what they have to be given together."""

from dataclasses import dataclass

from agentrl.config.learn import LearnSection
from agentrl.learn import (
    advantages,
    corrections,
    group_reward,
    hint,
    losses,
    proximals,
    rejections,
    selection,
    shaping,
)
from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.catalogue import SLOTS
from agentrl.learn.correction import AnyCorrectionFunction, RejectionFunction
from agentrl.learn.custom_function import (
    guard_correction,
    guard_loss,
    guard_proximal,
    guard_rejection,
)
from agentrl.learn.group_reward import GroupRewardFunction
from agentrl.learn.hint import HintFunction
from agentrl.learn.loss import AnyLossFunction
from agentrl.learn.method import Need, bind_method, find_needs
from agentrl.learn.proximal import ProximalFunction
from agentrl.learn.regularisers import LossRegularisers
from agentrl.learn.selection import SelectionFunction
from agentrl.learn.shaping import ShapingFunction


@dataclass(frozen=True, slots=True)
class LearnMethods:
    """One function per slot, or several that are applied one after the other."""

    group_reward: GroupRewardFunction | None
    shapings: tuple[ShapingFunction, ...]
    advantage: AdvantageFunction
    loss: AnyLossFunction
    proximal: ProximalFunction
    correction: AnyCorrectionFunction
    rejections: tuple[RejectionFunction, ...]
    selections: tuple[SelectionFunction, ...]
    hint: HintFunction | None
    needs: frozenset[Need]

    @classmethod
    def from_config(cls, section: LearnSection) -> "LearnMethods":
        """Return the methods of a config; `ConfigError` for a function that cannot be imported."""
        reward_section = section.group_reward
        return cls(
            group_reward=None
            if reward_section is None
            else bind_method(group_reward.METHODS, reward_section),
            shapings=tuple(bind_method(shaping.METHODS, each) for each in section.reward_shaping),
            advantage=bind_method(advantages.METHODS, section.advantage),
            loss=guard_loss(section.loss, bind_method(losses.METHODS, section.loss)),
            proximal=guard_proximal(
                section.proximal, bind_method(proximals.METHODS, section.proximal)
            ),
            correction=guard_correction(
                section.correction, bind_method(corrections.METHODS, section.correction)
            ),
            rejections=tuple(
                guard_rejection(each, bind_method(rejections.METHODS, each))
                for each in section.rejection
            ),
            selections=tuple(bind_method(selection.METHODS, each) for each in section.selection),
            hint=None if section.hint is None else bind_method(hint.METHODS, section.hint),
            needs=LossRegularisers.from_config(section).needs.union(
                *(find_needs(s.methods, each) for s in SLOTS for each in s.sections(section))
            ),
        )

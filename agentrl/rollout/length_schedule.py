"""Limits on the length of turns and trajectories, as a schedule over training steps.

Short limits make the policy put its answer in few tokens, long ones let it explore again. Only what
is begun at a step has its caps, for as long as it lives; nothing here has a state, so a run that is
resumed goes on where it was. Source: SIRI (arXiv 2509.25176), which caps the tokens of an answer;
a cap on turns is the same for agents.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from agentrl.events.kinds import GroupRequest
from agentrl.task import Task

Wave = Literal["cosine", "stair", "stair_cosine"]
"""Course of caps from the most to the least and back: along a cosine; at once, the least first; or
along a cosine with a quarter of the period at either end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCaps:
    """Of what is begun at one step."""

    turn_tokens: int
    turns: int

    def apply_to(self, order: GroupRequest) -> GroupRequest:
        """Return an order under these caps; turns it has less of stay as they are."""
        turns = self.turns if order.max_turns is None else min(order.max_turns, self.turns)
        return replace(order, max_turns=turns, max_turn_tokens=self.turn_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSchedule:
    """Caps that go between `least` and `most`, which they begin at (`stair`: end at)."""

    wave: Wave
    period_steps: int
    least: LengthCaps
    most: LengthCaps

    def find_caps(self, step: int) -> LengthCaps:
        """Return the caps of what is begun at a step, counted from 0."""
        height = crest(self.wave, step, period_steps=self.period_steps)

        def between(low: int, high: int) -> int:
            return math.floor(low + height * (high - low) + 0.5)

        return LengthCaps(
            turn_tokens=between(self.least.turn_tokens, self.most.turn_tokens),
            turns=between(self.least.turns, self.most.turns),
        )


def crest(wave: Wave, step: int, *, period_steps: int) -> float:
    """Return the height of a wave at a step: 0 for the least, 1 for the most."""
    # In eighths of a period, so that where one piece ends is no matter of rounding.
    at = 8 * (step % period_steps) / period_steps
    match wave:
        case "cosine":
            return _cosine(at / 8)
        case "stair":
            return 0.0 if at < 4 else 1.0
        case "stair_cosine":
            if at < 1 or at >= 7:
                return 1.0
            if at < 3:
                return _cosine((at - 1) / 4)
            return 0.0 if at < 5 else _cosine((at - 3) / 4)


def _cosine(cycles: float) -> float:
    return (1 + math.cos(2 * math.pi * cycles)) / 2


def cap_orders(
    tasks: Callable[[int], Sequence[Task | GroupRequest]], find_caps: Callable[[], LengthCaps]
) -> Callable[[int], list[GroupRequest]]:
    """Return `tasks` as orders under the caps of the moment at which each is handed out."""

    def orders(count: int) -> list[GroupRequest]:
        caps = find_caps()
        return [caps.apply_to(GroupRequest.from_task(task)) for task in tasks(count)]

    return orders


def cap_figures(orders: Iterable[GroupRequest | None]) -> dict[str, float]:
    """Return the mean caps of the groups of a step; nothing where lengths are not scheduled."""
    requests = [
        order for order in orders if order is not None and order.max_turn_tokens is not None
    ]
    if not requests:
        return {}
    return {
        "caps/turn_tokens": fmean(order.max_turn_tokens or 0 for order in requests),
        "caps/turns": fmean(order.max_turns or 0 for order in requests),
    }

"""A kind of task on a site: what is asked, what the state is once it is done, who can do it."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from agentrl_envs.templates import Wanted
from agentrl_envs.web.episode_site import SiteVerdict
from agentrl_envs.web.sites.asgi import Check
from agentrl_envs.web.sites.play import Player

State = TypeVar("State")
_AMOUNT = re.compile(r"(?:eur|euro|euros|€)?\s*(\d+(?:\.\d+)?)\s*(?:eur|euro|euros|€)?")
_EDGES = " \t\n.!\"'`"


def change_nothing(state: Any, wanted: Wanted) -> None:
    """Change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTemplate(Generic[State]):
    """One kind of task."""

    name: str
    level: int
    """1 to 3: how many steps and conditions."""
    make: Callable[[Random, State], Wanted]
    """Choose a task on a fresh state. Raises `UnfitChoice` to be asked again with another seed."""
    play: Player
    do: Callable[[State, Wanted], None] = change_nothing
    """Do the task on the state: what the state is then is what is wanted, and nothing else."""
    prepare: Callable[[State, Wanted], None] = change_nothing
    """Change a fresh state before the episode begins."""
    right: Callable[[str, str], bool] | None = None
    """Compares an answer with `wanted["answer"]`; None where nothing is to be answered."""


def build_checker(
    template: SiteTemplate[State],
    wanted: Wanted,
    start: State,
    summary: Callable[[State], Mapping[str, Any]],
) -> Check[State]:
    """Return the check of an episode that begins with `start`.

    It pays 1 once the state is as it must be in everything `summary` tells, what nobody asked for
    included; with an answer to give, when that is right too. It ends with success or a last word.
    """
    goal_state = copy.deepcopy(start)
    template.do(goal_state, wanted)
    aim = summary(goal_state)

    def check(state: State, said: str | None) -> SiteVerdict:
        fits = summary(state) == aim
        if template.right is not None:
            fits = fits and said is not None and template.right(said, wanted["answer"])
        return SiteVerdict(reward=float(fits), done=fits or said is not None)

    return check


def is_same_text(said: str, wanted: str) -> bool:
    """Return whether two texts are one but for case, white space, quotes and an article before."""
    return bool(_normalize(said)) and _normalize(said) == _normalize(wanted)


def is_same_amount(said: str, wanted: str) -> bool:
    """Return whether two texts are the same number, with or without the currency."""
    matches = [_AMOUNT.fullmatch(text.casefold().strip(_EDGES)) for text in (said, wanted)]
    return all(matches) and len({float(match[1]) for match in matches if match}) == 1


def _normalize(text: str) -> str:
    words = " ".join(text.casefold().strip(_EDGES).split())
    return re.sub(r"^(?:an?|the) ", "", words)

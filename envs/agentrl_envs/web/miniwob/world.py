"""One episode on a page of MiniWoB++: the page makes the problem and knows when it is solved."""

from collections.abc import Mapping
from typing import Any, Self

from agentrl.errors import EnvError
from agentrl_envs.web.episode_site import LivePage, SiteVerdict, WebRequest, WebResponse
from agentrl_envs.web.miniwob import pages

_BEGIN = pages.script("begin.js")
_JUDGE = pages.script("judge.js")
_LEFT = "the page of the problem was left"

RELOADED = frozenset(
    (
        *("book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy"),
        *("choose-date-medium", "choose-date-nodelay", "click-pie", "click-pie-nodelay"),
        *("drag-items", "drag-items-grid", "drag-shapes", "drag-shapes-2", "drag-sort-numbers"),
        *("form-sequence-3", "hover-shape", "moving-items", "search-engine", "simon-says"),
        *("stock-market", "terminal", "use-autocomplete", "use-autocomplete-nodelay"),
        *("use-colorwheel", "use-colorwheel-2"),
    )
)
"""Families whose page is loaded for every episode: widgets keep what was done to them, things move,
or what was typed is put into the page's markup. On the others an episode after another looks like
one on a fresh page; tests compare them."""


FULL_REWARDS: Mapping[str, float] = {"circle-center": 0.9}
"""Raw rewards that count as full, where no action earns 1: the page of circles pays 1 less the
distance in radii, and measures it from a dot that is never where the pixel is. No pixel earns more
than 0.982, and the centre as an observation gives it 0.915 or more."""


class MiniWobSite:
    """A page of a family under a seed.

    The reward is the page's own, without its decay over time: 1 for the full reward of the page,
    and nothing for less unless `partial_credit` pays what lies between 0 and 1. The page's clock of
    the episode does not run out.
    """

    def __init__(self, family: str, seed: int, *, partial_credit: bool = False) -> None:
        self._family = family
        self.start_url = pages.url_of(family)
        self.origins: tuple[str, ...] = (pages.ORIGIN,)
        self.reusable = family not in RELOADED
        self._seed = seed
        self._partial_credit = partial_credit

    async def answer(self, request: WebRequest) -> WebResponse | None:
        return pages.answer(request)

    async def begin(self, page: LivePage) -> str:
        goal = await page.evaluate(_BEGIN, self._seed)
        if not isinstance(goal, str) or not goal:
            raise EnvError(f"{self.start_url} with seed {self._seed} gave no instruction: {goal!r}")
        return goal

    async def judge(self, page: LivePage, said: str | None) -> SiteVerdict:
        """Read the page's verdict; an answer in words ends the episode and is worth nothing.

        So does leaving the page: its problem is gone with it, and another page's verdict is none.
        """
        state: Mapping[str, Any] | None = await page.evaluate(_JUDGE)
        if state is None:
            return SiteVerdict(reward=0.0, done=True, info={"reason": _LEFT})
        if not state["done"]:
            return SiteVerdict(reward=0.0, done=said is not None)
        raw = float(state["raw"])
        return SiteVerdict(
            reward=compute_reward(
                raw,
                full=FULL_REWARDS.get(self._family, 1.0),
                partial_credit=self._partial_credit,
            ),
            done=True,
            info={"raw_reward": raw, "reason": state.get("reason")},
        )

    def ahead(self) -> "MiniWobSite":
        """Return the same page without a problem: the problem comes with `begin`."""
        return type(self)(self._family, 0)

    def copy(self) -> Self | None:
        """Return None: the state is in the page."""
        return None

    async def close(self) -> None:
        """Release nothing."""


def compute_reward(raw: float, *, full: float = 1.0, partial_credit: bool) -> float:
    """Return the reward for a page's raw one, which lies between -1 and 1; `full` earns 1."""
    if raw >= full:
        return 1.0
    return max(raw, 0.0) if partial_credit else 0.0

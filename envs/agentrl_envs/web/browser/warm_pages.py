"""Pages that wait in a browser for an episode to begin on them."""

from dataclasses import dataclass

from agentrl_envs.web.browser.context import EpisodeContext, PageScreen


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Requirements of an episode on its page."""

    url: str
    """`""` is nowhere yet."""
    screen: PageScreen
    used_too: bool = False
    """Whether another episode may have been on it."""
    action_ms: float | None = None
    """As in `BrowserPool.visit`; an empty page may still become stepped or not."""


class WarmPages:
    """Waiting pages, the one that has waited longest first."""

    def __init__(self) -> None:
        self._urls: dict[EpisodeContext, str] = {}

    def __len__(self) -> int:
        return len(self._urls)

    def put(self, url: str, visit: EpisodeContext) -> None:
        """Keep a page that is at an address for whoever comes next."""
        self._urls[visit] = url

    def take(self, place: PageOptions) -> EpisodeContext | None:
        """Return the page that was there last, if there is one that still works."""
        for visit in reversed(self._find_fitting(place)):
            del self._urls[visit]
            if visit.sound:
                return visit
        return None

    def count(self, place: PageOptions) -> int:
        """Return the number of such pages."""
        return len(self._find_fitting(place))

    def surplus(self, most: int) -> EpisodeContext | None:
        """Remove and return the page that has waited longest, where there are more than `most`.

        Empty pages are not counted: somebody has asked for so many of them.
        """
        somewhere = [visit for visit, url in self._urls.items() if url]
        if len(somewhere) <= most:
            return None
        del self._urls[somewhere[0]]
        return somewhere[0]

    def clear(self) -> None:
        """Forget all of them."""
        self._urls.clear()

    def _find_fitting(self, place: PageOptions) -> list[EpisodeContext]:
        return [
            visit
            for visit, url in self._urls.items()
            if url == place.url
            and visit.screen == place.screen
            and (not url or visit.stepped == (place.action_ms is not None))
            and (place.used_too or not visit.used)
        ]

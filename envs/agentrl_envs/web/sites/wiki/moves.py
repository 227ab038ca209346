"""Common moves of players of the wiki's tasks."""

from collections.abc import Mapping
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.web.sites.play import Moves, click


def go_to_article(page: ObservedPage, title: str) -> Moves:
    """Search for an article and go to it."""
    page = yield call("fill", id=page.id(name="Search articles"), text=title)
    page = yield click(page, "button", "Search")
    return (yield click(page, "link", title))


def follow_chain(page: ObservedPage, hops: list[Mapping[str, Any]]) -> Moves:
    """Go to the article that states the last fact of a chain, from link to link."""
    page = yield from go_to_article(page, hops[0]["subject"])
    for hop in hops[:-1]:
        page = yield click(page, "link", hop["value"])
    return page

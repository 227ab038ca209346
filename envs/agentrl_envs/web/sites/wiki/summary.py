"""Everything a task may be about, of a wiki's state."""

from typing import Any

from agentrl_envs.web.sites.wiki.state import WikiState


def summary(wiki: WikiState) -> dict[str, Any]:
    """Return the present articles and the watch list; not how they came about."""
    latest = {title: wiki.latest(title) for title in wiki.articles}
    return {
        "articles": {title: (it.text, it.categories) for title, it in latest.items()},
        "watched": sorted(wiki.watched),
    }

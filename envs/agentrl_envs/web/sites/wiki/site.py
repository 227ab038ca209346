"""The wiki as a site with tasks."""

from typing import Any

from agentrl_envs.web.sites.pack import TemplateSite
from agentrl_envs.web.sites.wiki.app import app
from agentrl_envs.web.sites.wiki.reading import READING
from agentrl_envs.web.sites.wiki.state import WikiState, wiki
from agentrl_envs.web.sites.wiki.writing import WRITING


def summary(wiki: WikiState) -> dict[str, Any]:
    """Return the present articles and the watch list; not how they came about."""
    latest = {title: wiki.latest(title) for title in wiki.articles}
    return {
        "articles": {title: (it.text, it.categories) for title, it in latest.items()},
        "watched": sorted(wiki.watched),
    }


WIKI: TemplateSite[WikiState] = TemplateSite(
    name="wiki",
    app=app,
    state=wiki,
    summary=summary,
    templates=(*READING, *WRITING),
    heldout_templates=frozenset({"chain", "older", "watch_works"}),
)

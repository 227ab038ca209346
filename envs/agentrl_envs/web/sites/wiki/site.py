"""The wiki as a site with tasks."""

from agentrl_envs.web.sites.pack import TemplateSite
from agentrl_envs.web.sites.wiki.app import app
from agentrl_envs.web.sites.wiki.reading import READING
from agentrl_envs.web.sites.wiki.state import WikiState, wiki
from agentrl_envs.web.sites.wiki.summary import summary
from agentrl_envs.web.sites.wiki.writing import WRITING

WIKI: TemplateSite[WikiState] = TemplateSite(
    name="wiki",
    app=app,
    state=wiki,
    summary=summary,
    templates=(*READING, *WRITING),
    heldout_templates=frozenset({"chain", "older", "watch_works"}),
)

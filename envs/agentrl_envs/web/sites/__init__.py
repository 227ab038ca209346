"""Sites of our own: served in this process, with a state of their own for every episode."""

from typing import Any

from agentrl_envs.web.sites.pack import TemplateSitePack


def shop_pack(**settings: Any) -> TemplateSitePack[Any]:
    """Return the tasks of the shop; the settings are those of `TemplateSitePack`."""
    from agentrl_envs.web.sites.shop.site import SHOP

    return TemplateSitePack(SHOP, **settings)


def wiki_pack(**settings: Any) -> TemplateSitePack[Any]:
    """Return the tasks of the wiki; the settings are those of `TemplateSitePack`."""
    from agentrl_envs.web.sites.wiki.site import WIKI

    return TemplateSitePack(WIKI, **settings)

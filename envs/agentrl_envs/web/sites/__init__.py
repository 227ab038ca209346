"""Sites of our own: served in this process, with a state of their own for every episode."""

from typing import Any

from agentrl_envs.web.sites.pack import SitePack


def shop_pack(**settings: Any) -> SitePack[Any]:
    """Return the tasks of the shop; the settings are those of `SitePack`."""
    from agentrl_envs.web.sites.shop.site import SHOP

    return SitePack(SHOP, **settings)


def wiki_pack(**settings: Any) -> SitePack[Any]:
    """Return the tasks of the wiki; the settings are those of `SitePack`."""
    from agentrl_envs.web.sites.wiki.site import WIKI

    return SitePack(WIKI, **settings)

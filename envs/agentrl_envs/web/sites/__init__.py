"""Sites of our own: served in this process, with a state of their own for every episode."""

from typing import Any

from agentrl_envs.web.sites.pack import TemplateSite, TemplateSitePack


def find_site(name: str) -> TemplateSite[Any]:
    """Return a site by its name, `shop` or `wiki`."""
    if name == "shop":
        from agentrl_envs.web.sites.shop.site import SHOP

        return SHOP
    from agentrl_envs.web.sites.wiki.site import WIKI

    return WIKI


def shop_pack(**settings: Any) -> TemplateSitePack[Any]:
    """Return the tasks of the shop; the settings are those of `TemplateSitePack`."""
    return TemplateSitePack(find_site("shop"), **settings)


def wiki_pack(**settings: Any) -> TemplateSitePack[Any]:
    """Return the tasks of the wiki; the settings are those of `TemplateSitePack`."""
    return TemplateSitePack(find_site("wiki"), **settings)

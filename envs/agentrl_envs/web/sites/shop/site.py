"""The shop as a site with tasks."""

from agentrl_envs.web.sites.pack import TemplateSite
from agentrl_envs.web.sites.shop.app import app
from agentrl_envs.web.sites.shop.buying import BUYING
from agentrl_envs.web.sites.shop.managing import MANAGING
from agentrl_envs.web.sites.shop.state import ShopState, shop
from agentrl_envs.web.sites.shop.summary import summary

SHOP: TemplateSite[ShopState] = TemplateSite(
    name="shop",
    app=app,
    state=shop,
    summary=summary,
    templates=(*BUYING, *MANAGING),
    heldout_templates=frozenset({"order_two", "best_rated", "cheaper", "forget_address"}),
)

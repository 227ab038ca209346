"""The shop as a site with tasks."""

from typing import Any

from agentrl_envs.web.sites.pack import TemplateSite
from agentrl_envs.web.sites.shop.app import app
from agentrl_envs.web.sites.shop.buying import BUYING
from agentrl_envs.web.sites.shop.managing import MANAGING
from agentrl_envs.web.sites.shop.state import CartLine, DeliveryAddress, ShopOrder, ShopState, shop


def summary(shop: ShopState) -> dict[str, Any]:
    """Return a shop in plain values; what has no order is sorted."""
    return {
        "account": (shop.name, shop.email, shop.phone, shop.newsletter),
        "cart": _lines(shop.cart),
        "coupon": shop.coupon,
        "orders": [_order(order) for order in shop.orders],
        "addresses": sorted(_address(address) for address in shop.addresses),
        "default": _address(shop.address(shop.default_address)),
        "wishlist": sorted(shop.wishlist),
        "reviews": [(review.product, review.stars, review.text) for review in shop.reviews],
    }


def _lines(lines: list[CartLine]) -> list[tuple[str, str, int]]:
    return sorted((line.product, line.colour, line.quantity) for line in lines)


def _address(address: DeliveryAddress) -> tuple[str, str, str, str]:
    return (address.name, address.street, address.city, address.postcode)


def _order(order: ShopOrder) -> dict[str, Any]:
    return {
        "lines": _lines(order.lines),
        "address": _address(order.address),
        "delivery": order.delivery,
        "coupon": order.coupon,
        "total": order.total_cents,
        "status": order.status,
        "returns": sorted((item.product, item.reason) for item in order.returns),
    }


SHOP: TemplateSite[ShopState] = TemplateSite(
    name="shop",
    app=app,
    state=shop,
    summary=summary,
    templates=(*BUYING, *MANAGING),
    heldout_templates=frozenset({"order_two", "best_rated", "cheaper", "forget_address"}),
)

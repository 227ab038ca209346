"""Tasks of buying: the cart, the checkout, the filters."""

from functools import partial
from random import Random
from typing import Any

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.web.sites.play import Script, click, fill
from agentrl_envs.web.sites.shop.choices import filtered, put, some_line, some_product, worded
from agentrl_envs.web.sites.shop.moves import add, check_out, first_product, to_list, to_product
from agentrl_envs.web.sites.shop.state import COUPONS, DELIVERIES, ShopState
from agentrl_envs.web.sites.template import SiteTemplate, UnfitChoice, Wanted


def _cart_make(random: Random, shop: ShopState) -> Wanted:
    line = some_line(random, shop)
    return {"goal": f"Put {worded(line)} into the cart.", "line": line}


def _cart_do(shop: ShopState, wanted: Wanted) -> None:
    put(shop, wanted["line"])


def _cart_play(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from to_product(page, line["name"])
    yield from add(page, colour=line["colour"], quantity=line["quantity"])


def _cheapest_make(random: Random, shop: ShopState) -> Wanted:
    line = filtered(random, shop, sort="price")
    goal = (
        f"Put the cheapest product of {line['category']} that has {line['stars']} stars or more "
        f"into the cart, one {line['colour']} piece."
    )
    return {"goal": goal, "line": line}


def _cheapest_play(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from to_list(
        page,
        category=line["category"],
        stars=f"{line['stars']} and up",
        order="Price, low to high",
    )
    page = yield click(page, "link", first_product(page, line["category"]))
    yield from add(page, colour=line["colour"], quantity=1)


def _order_make(
    random: Random, shop: ShopState, *, lines: int = 1, coupon: bool = False, city: bool = False
) -> Wanted:
    cart_lines = [some_line(random, shop) for _ in range(lines)]
    if len({line["product"] for line in cart_lines}) < lines:
        raise UnfitChoice
    for line in cart_lines[1:]:
        line["quantity"] = 1
    delivery = random.choice(list(DELIVERIES))
    address = random.choice(shop.addresses[1:]) if city else shop.addresses[0]
    spec: Wanted = {
        "lines": cart_lines,
        "delivery": delivery,
        "address": address.id,
        "place": address.line if city else "",
        "coupon": random.choice(list(COUPONS)) if coupon else "",
    }
    where = f"your address in {address.city}" if city else "your default address"
    how = f", with the coupon code {spec['coupon']}" if coupon else ""
    what = " and ".join(worded(line) for line in cart_lines)
    spec["goal"] = f"Order {what}{how}, by {delivery} delivery to {where}."
    return spec


def _order_do(shop: ShopState, wanted: Wanted) -> None:
    for line in wanted["lines"]:
        put(shop, line)
    if wanted["coupon"]:
        shop.use_coupon(wanted["coupon"])
    shop.order(address=wanted["address"], delivery=wanted["delivery"], accepted=True)


def _order_play(page: ObservedPage, wanted: Wanted) -> Script:
    for line in wanted["lines"]:
        page = yield from to_product(page, line["name"])
        page = yield from add(page, colour=line["colour"], quantity=line["quantity"])
    if wanted["coupon"]:
        page = yield fill(page, "Coupon code", wanted["coupon"])
        page = yield click(page, "button", "Use coupon")
    yield from check_out(page, delivery=wanted["delivery"], address=wanted["place"])


def _best_make(random: Random, shop: ShopState) -> Wanted:
    line = filtered(random, shop, sort="rating")
    goal = (
        f"Put the best rated product of {line['category']} that costs at most "
        f"{line['max_price']} EUR on your wish list."
    )
    wide = shop.catalogue.search(
        category=line["category"], max_price_cents=int(line["max_price"]) * 100, sort="rating"
    )
    if wide[0].id != line["product"]:
        raise UnfitChoice
    return {"goal": goal, "line": line}


def _best_play(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from to_list(
        page, category=line["category"], max_price=line["max_price"], order="Rating"
    )
    page = yield click(page, "link", first_product(page, line["category"]))
    yield click(page, "button", "Add to wish list")


def _wish_do(shop: ShopState, wanted: Wanted) -> None:
    shop.wish(wanted["line"]["product"])


def _wish_make(random: Random, shop: ShopState) -> Wanted:
    product = some_product(random, shop)
    goal = f"Put the {product.name} on your wish list."
    return {"goal": goal, "line": {"product": product.id, "name": product.name}}


def _wish_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_product(page, wanted["line"]["name"])
    yield click(page, "button", "Add to wish list")


def _mend_make(random: Random, shop: ShopState) -> Wanted:
    lines = [some_line(random, shop) for _ in range(3)]
    if len({line["product"] for line in lines}) < 3:
        raise UnfitChoice
    quantity = random.choice([n for n in range(1, 6) if n != lines[1]["quantity"]])
    goal = (
        f"Remove the {lines[0]['name']} from the cart, and change the quantity of the "
        f"{lines[1]['name']} to {quantity}."
    )
    return {"goal": goal, "lines": lines, "quantity": quantity}


def _mend_prepare(shop: ShopState, wanted: Wanted) -> None:
    for line in wanted["lines"]:
        put(shop, line)


def _mend_do(shop: ShopState, wanted: Wanted) -> None:
    shop.set_quantity(1, wanted["quantity"])
    shop.set_quantity(0, 0)


def _mend_play(page: ObservedPage, wanted: Wanted) -> Script:
    extra_label, changed, _ = (f"{line['name']}, {line['colour']}" for line in wanted["lines"])
    page = yield click(page, "link", f"Cart ({_count(wanted)})")
    page = yield click(page, "button", f"Remove {extra_label}")
    page = yield fill(page, f"Quantity of {changed}", str(wanted["quantity"]))
    yield click(page, "button", f"Update {changed}")


def _count(wanted: dict[str, Any]) -> int:
    return sum(line["quantity"] for line in wanted["lines"])


BUYING: tuple[SiteTemplate[ShopState], ...] = (
    SiteTemplate(name="cart", level=1, make=_cart_make, do=_cart_do, play=_cart_play),
    SiteTemplate(name="wish", level=1, make=_wish_make, do=_wish_do, play=_wish_play),
    SiteTemplate(name="cheapest", level=2, make=_cheapest_make, do=_cart_do, play=_cheapest_play),
    SiteTemplate(name="best_rated", level=2, make=_best_make, do=_wish_do, play=_best_play),
    SiteTemplate(
        name="mend_cart",
        level=2,
        make=_mend_make,
        prepare=_mend_prepare,
        do=_mend_do,
        play=_mend_play,
    ),
    SiteTemplate(name="order", level=2, make=_order_make, do=_order_do, play=_order_play),
    SiteTemplate(
        name="order_elsewhere",
        level=3,
        make=partial(_order_make, city=True),
        do=_order_do,
        play=_order_play,
    ),
    SiteTemplate(
        name="order_with_coupon",
        level=3,
        make=partial(_order_make, coupon=True),
        do=_order_do,
        play=_order_play,
    ),
    SiteTemplate(
        name="order_two",
        level=3,
        make=partial(_order_make, lines=2),
        do=_order_do,
        play=_order_play,
    ),
)
"""Kinds of tasks about what is bought."""

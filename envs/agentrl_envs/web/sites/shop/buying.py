"""Tasks of buying: the cart, the checkout, the filters."""

from functools import partial
from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Script, click, fill
from agentrl_envs.web.sites.shop.choices import (
    choose_filter,
    choose_line,
    choose_product,
    describe_line,
    put_into_cart,
)
from agentrl_envs.web.sites.shop.moves import (
    add,
    check_out,
    find_first_product,
    go_to_list,
    go_to_product,
)
from agentrl_envs.web.sites.shop.state import COUPONS, DELIVERIES, ShopState
from agentrl_envs.web.sites.template import SiteTemplate


def _make_cart(random: Random, shop: ShopState) -> Wanted:
    line = choose_line(random, shop)
    return {"goal": f"Put {describe_line(line)} into the cart.", "line": line}


def _do_cart(shop: ShopState, wanted: Wanted) -> None:
    put_into_cart(shop, wanted["line"])


def _play_cart(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from go_to_product(page, line["name"])
    yield from add(page, colour=line["colour"], quantity=line["quantity"])


def _make_cheapest(random: Random, shop: ShopState) -> Wanted:
    line = choose_filter(random, shop, sort="price")
    goal = (
        f"Put the cheapest product of {line['category']} that has {line['stars']} stars or more "
        f"into the cart, one {line['colour']} piece."
    )
    return {"goal": goal, "line": line}


def _play_cheapest(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from go_to_list(
        page,
        category=line["category"],
        stars=f"{line['stars']} and up",
        order="Price, low to high",
    )
    page = yield click(page, "link", find_first_product(page, line["category"]))
    yield from add(page, colour=line["colour"], quantity=1)


def _make_order(
    random: Random, shop: ShopState, *, lines: int = 1, coupon: bool = False, city: bool = False
) -> Wanted:
    cart_lines = [choose_line(random, shop) for _ in range(lines)]
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
    what = " and ".join(describe_line(line) for line in cart_lines)
    spec["goal"] = f"Order {what}{how}, by {delivery} delivery to {where}."
    return spec


def _do_order(shop: ShopState, wanted: Wanted) -> None:
    _fill_cart(shop, wanted)
    if wanted["coupon"]:
        shop.use_coupon(wanted["coupon"])
    shop.order(address=wanted["address"], delivery=wanted["delivery"], accepted=True)


def _play_order(page: ObservedPage, wanted: Wanted) -> Script:
    for line in wanted["lines"]:
        page = yield from go_to_product(page, line["name"])
        page = yield from add(page, colour=line["colour"], quantity=line["quantity"])
    if wanted["coupon"]:
        page = yield fill(page, "Coupon code", wanted["coupon"])
        page = yield click(page, "button", "Use coupon")
    yield from check_out(page, delivery=wanted["delivery"], address=wanted["place"])


def _make_best(random: Random, shop: ShopState) -> Wanted:
    line = choose_filter(random, shop, sort="rating")
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


def _play_best(page: ObservedPage, wanted: Wanted) -> Script:
    line = wanted["line"]
    page = yield from go_to_list(
        page, category=line["category"], max_price=line["max_price"], order="Rating"
    )
    page = yield click(page, "link", find_first_product(page, line["category"]))
    yield click(page, "button", "Add to wish list")


def _do_wish(shop: ShopState, wanted: Wanted) -> None:
    shop.wish(wanted["line"]["product"])


def _make_wish(random: Random, shop: ShopState) -> Wanted:
    product = choose_product(random, shop)
    goal = f"Put the {product.name} on your wish list."
    return {"goal": goal, "line": {"product": product.id, "name": product.name}}


def _play_wish(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_product(page, wanted["line"]["name"])
    yield click(page, "button", "Add to wish list")


def _make_mend(random: Random, shop: ShopState) -> Wanted:
    lines = [choose_line(random, shop) for _ in range(3)]
    if len({line["product"] for line in lines}) < 3:
        raise UnfitChoice
    quantity = random.choice([n for n in range(1, 6) if n != lines[1]["quantity"]])
    goal = (
        f"Remove the {lines[0]['name']} from the cart, and change the quantity of the "
        f"{lines[1]['name']} to {quantity}."
    )
    return {"goal": goal, "lines": lines, "quantity": quantity}


def _fill_cart(shop: ShopState, wanted: Wanted) -> None:
    for line in wanted["lines"]:
        put_into_cart(shop, line)


def _do_mend(shop: ShopState, wanted: Wanted) -> None:
    shop.set_quantity(1, wanted["quantity"])
    shop.set_quantity(0, 0)


def _play_mend(page: ObservedPage, wanted: Wanted) -> Script:
    extra_label, changed, _ = (f"{line['name']}, {line['colour']}" for line in wanted["lines"])
    count = sum(line["quantity"] for line in wanted["lines"])
    page = yield click(page, "link", f"Cart ({count})")
    page = yield click(page, "button", f"Remove {extra_label}")
    page = yield fill(page, f"Quantity of {changed}", str(wanted["quantity"]))
    yield click(page, "button", f"Update {changed}")


BUYING: tuple[SiteTemplate[ShopState], ...] = (
    SiteTemplate(name="cart", level=1, make=_make_cart, do=_do_cart, play=_play_cart),
    SiteTemplate(name="wish", level=1, make=_make_wish, do=_do_wish, play=_play_wish),
    SiteTemplate(name="cheapest", level=2, make=_make_cheapest, do=_do_cart, play=_play_cheapest),
    SiteTemplate(name="best_rated", level=2, make=_make_best, do=_do_wish, play=_play_best),
    SiteTemplate(
        name="mend_cart",
        level=2,
        make=_make_mend,
        prepare=_fill_cart,
        do=_do_mend,
        play=_play_mend,
    ),
    *(
        SiteTemplate(name=name, level=level, make=make, do=_do_order, play=_play_order)
        for name, level, make in (
            ("order", 2, _make_order),
            ("order_elsewhere", 3, partial(_make_order, city=True)),
            ("order_with_coupon", 3, partial(_make_order, coupon=True)),
            ("order_two", 3, partial(_make_order, lines=2)),
        )
    ),
)
"""Kinds of tasks about what is bought."""

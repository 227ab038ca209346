"""Tasks about what was bought, and about the account."""

from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Moves, Script, answer, click, fill, select
from agentrl_envs.web.sites.shop.catalogue import euros
from agentrl_envs.web.sites.shop.choices import choose_product
from agentrl_envs.web.sites.shop.moves import check_out, go_to_product
from agentrl_envs.web.sites.shop.state import REASONS, ShopOrder, ShopState
from agentrl_envs.web.sites.template import SiteTemplate, is_same_amount, is_same_text

_STREETS = ("Linden Street", "Brook Lane", "Market Place", "Orchard Way")
_CITIES = ("Fernley", "Grantham", "Hartfield", "Ilminster")
_OPINIONS = ("Does what it should", "Smaller than I thought", "A fine present", "Broke in a week")


def _make_price(random: Random, shop: ShopState) -> Wanted:
    product = choose_product(random, shop)
    goal = f"What does the {product.name} cost? Answer with the price in EUR, such as 12.95."
    amount = euros(product.price_cents).split()[0]
    return {"goal": goal, "name": product.name, "answer": amount}


def _play_price(page: ObservedPage, wanted: Wanted) -> Script:
    yield from go_to_product(page, wanted["name"])
    yield answer(wanted["answer"])


def _make_cheaper(random: Random, shop: ShopState) -> Wanted:
    pair = [choose_product(random, shop) for _ in range(2)]
    if pair[0].id == pair[1].id:
        raise UnfitChoice
    first, second = (product.name for product in pair)
    goal = f"Which is cheaper, the {first} or the {second}? Answer with its name."
    cheaper = min(pair, key=lambda product: product.price_cents)
    return {"goal": goal, "names": [first, second], "answer": cheaper.name}


def _play_cheaper(page: ObservedPage, wanted: Wanted) -> Script:
    for name in wanted["names"]:
        page = yield from go_to_product(page, name)
    yield answer(wanted["answer"])


def _make_paid(random: Random, shop: ShopState) -> Wanted:
    order = random.choice(shop.orders)
    goal = f"How much was paid for order {order.id}? Answer with the amount in EUR, such as 12.95."
    return {"goal": goal, "order": order.id, "answer": euros(order.total_cents).split()[0]}


def _open_order(page: ObservedPage, order: int) -> Moves:
    page = yield click(page, "link", "Orders")
    return (yield click(page, "link", f"Order {order}"))


def _play_paid(page: ObservedPage, wanted: Wanted) -> Script:
    yield from _open_order(page, wanted["order"])
    yield answer(wanted["answer"])


def _find_order(shop: ShopState, status: str) -> ShopOrder:
    return next(order for order in shop.orders if order.status == status)


def _make_cancel(random: Random, shop: ShopState) -> Wanted:
    order = _find_order(shop, "processing")
    product = shop.product(random.choice(order.lines).product).name
    goal = f"Cancel the order of the {product}, which was not sent yet."
    return {"goal": goal, "order": order.id}


def _do_cancel(shop: ShopState, wanted: Wanted) -> None:
    shop.cancel(wanted["order"])


def _play_cancel(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _open_order(page, wanted["order"])
    yield click(page, "button", "Cancel order")


def _make_return(random: Random, shop: ShopState) -> Wanted:
    order = _find_order(shop, "delivered")
    product = shop.product(random.choice(order.lines).product)
    reason = random.choice(REASONS)
    goal = f"Return the {product.name} of order {order.id}. Give the reason: {reason}."
    product_fields = {"product": product.id, "name": product.name}
    return {"goal": goal, "order": order.id, "reason": reason, **product_fields}


def _do_return(shop: ShopState, wanted: Wanted) -> None:
    shop.send_back(wanted["order"], wanted["product"], wanted["reason"])


def _play_return(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _open_order(page, wanted["order"])
    page = yield click(page, "link", "Return an item")
    page = yield select(page, "Item", wanted["name"])
    page = yield select(page, "Reason", wanted["reason"])
    yield click(page, "button", "Return item")


def _make_again(random: Random, shop: ShopState) -> Wanted:
    order = random.choice(shop.orders)
    goal = (
        f"Order once more what was in order {order.id}, for pickup. Keep the address as it is "
        "chosen."
    )
    return {"goal": goal, "order": order.id}


def _do_again(shop: ShopState, wanted: Wanted) -> None:
    shop.order_again(wanted["order"])
    shop.order(address=shop.default_address, delivery="pickup", accepted=True)


def _play_again(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from _open_order(page, wanted["order"])
    page = yield click(page, "button", "Order again")
    yield from check_out(page, delivery="pickup")


def _make_phone(random: Random, shop: ShopState) -> Wanted:
    phone = f"0{random.randrange(100, 999)} {random.randrange(10000, 99999)}"
    goal = f"Set the phone number of your account to {phone} and unsubscribe from the newsletter."
    return {"goal": goal, "phone": phone}


def _do_phone(shop: ShopState, wanted: Wanted) -> None:
    shop.update_account(name=shop.name, email=shop.email, phone=wanted["phone"], newsletter=False)


def _play_phone(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Account")
    page = yield fill(page, "Phone", wanted["phone"])
    page = yield click(page, "checkbox", "Newsletter")
    yield click(page, "button", "Save")


def _make_move(random: Random, shop: ShopState) -> Wanted:
    address = {
        "name": shop.name,
        "street": f"{random.randrange(2, 90)} {random.choice(_STREETS)}",
        "city": random.choice(_CITIES),
        "postcode": str(random.randrange(10000, 99999)),
    }
    goal = (
        f"You have moved. Add the address {address['street']}, {address['postcode']} "
        f"{address['city']} under your name, {address['name']}, and make it the default."
    )
    return {"goal": goal, "address": address}


def _do_move(shop: ShopState, wanted: Wanted) -> None:
    shop.make_default(shop.add_address(**wanted["address"]).id)


def _play_move(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Addresses")
    page = yield click(page, "link", "Add an address")
    labels = {"name": "Full name", "street": "Street", "city": "City", "postcode": "Postcode"}
    for field, label in labels.items():
        page = yield fill(page, label, wanted["address"][field])
    page = yield click(page, "button", "Save address")
    yield click(page, "button", f"Make {wanted['address']['street']} the default")


def _make_forget(random: Random, shop: ShopState) -> Wanted:
    old, new = shop.addresses
    return {
        "goal": f"Make the address in {new.city} the default, and remove the one in {old.city}.",
        "addresses": [old.id, new.id],
        "streets": [old.street, new.street],
    }


def _do_forget(shop: ShopState, wanted: Wanted) -> None:
    old, new = wanted["addresses"]
    shop.make_default(new)
    shop.remove_address(old)


def _play_forget(page: ObservedPage, wanted: Wanted) -> Script:
    old, new = wanted["streets"]
    page = yield click(page, "link", "Addresses")
    page = yield click(page, "button", f"Make {new} the default")
    yield click(page, "button", f"Remove {old}")


def _make_review(random: Random, shop: ShopState) -> Wanted:
    product = choose_product(random, shop)
    stars, text = random.randrange(1, 6), random.choice(_OPINIONS)
    goal = f'Review the {product.name}: {stars} stars, with the words "{text}".'
    product_fields = {"product": product.id, "name": product.name}
    return {"goal": goal, "stars": stars, "text": text, **product_fields}


def _do_review(shop: ShopState, wanted: Wanted) -> None:
    shop.review(wanted["product"], wanted["stars"], wanted["text"])


def _play_review(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_product(page, wanted["name"])
    page = yield click(page, "button", "Reviews (0)")
    page = yield select(page, "Your stars", str(wanted["stars"]))
    page = yield fill(page, "Your review", wanted["text"])
    yield click(page, "button", "Send review")


MANAGING: tuple[SiteTemplate[ShopState], ...] = (
    SiteTemplate(name="price", level=1, make=_make_price, play=_play_price, right=is_same_amount),
    SiteTemplate(name="paid", level=1, make=_make_paid, play=_play_paid, right=is_same_amount),
    SiteTemplate(
        name="cheaper", level=2, make=_make_cheaper, play=_play_cheaper, right=is_same_text
    ),
    SiteTemplate(name="cancel", level=1, make=_make_cancel, do=_do_cancel, play=_play_cancel),
    SiteTemplate(name="return", level=2, make=_make_return, do=_do_return, play=_play_return),
    SiteTemplate(name="order_again", level=2, make=_make_again, do=_do_again, play=_play_again),
    SiteTemplate(name="account", level=1, make=_make_phone, do=_do_phone, play=_play_phone),
    SiteTemplate(
        name="forget_address", level=1, make=_make_forget, do=_do_forget, play=_play_forget
    ),
    SiteTemplate(name="move", level=2, make=_make_move, do=_do_move, play=_play_move),
    SiteTemplate(name="review", level=2, make=_make_review, do=_do_review, play=_play_review),
)
"""Kinds of tasks about what there is already."""

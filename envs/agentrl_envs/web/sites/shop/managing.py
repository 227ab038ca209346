"""Tasks about what was bought, and about the account."""

from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.web.sites.answers import same_amount, same_text
from agentrl_envs.web.sites.play import Script, answer, click, fill, select
from agentrl_envs.web.sites.shop.catalogue import euros
from agentrl_envs.web.sites.shop.choices import some_product
from agentrl_envs.web.sites.shop.moves import check_out, to_product
from agentrl_envs.web.sites.shop.state import REASONS, ShopOrder, ShopState
from agentrl_envs.web.sites.template import SiteTemplate, UnfitChoice, Wanted

_STREETS = ("Linden Street", "Brook Lane", "Market Place", "Orchard Way")
_CITIES = ("Fernley", "Grantham", "Hartfield", "Ilminster")
_OPINIONS = ("Does what it should", "Smaller than I thought", "A fine present", "Broke in a week")


def _price_make(random: Random, shop: ShopState) -> Wanted:
    product = some_product(random, shop)
    goal = f"What does the {product.name} cost? Answer with the price in EUR, such as 12.95."
    amount = euros(product.price_cents).split()[0]
    return {"goal": goal, "name": product.name, "answer": amount}


def _price_play(page: ObservedPage, wanted: Wanted) -> Script:
    yield from to_product(page, wanted["name"])
    yield answer(wanted["answer"])


def _cheaper_make(random: Random, shop: ShopState) -> Wanted:
    pair = [some_product(random, shop) for _ in range(2)]
    if pair[0].id == pair[1].id:
        raise UnfitChoice
    first, second = (product.name for product in pair)
    goal = f"Which is cheaper, the {first} or the {second}? Answer with its name."
    cheaper = min(pair, key=lambda product: product.price_cents)
    return {"goal": goal, "names": [first, second], "answer": cheaper.name}


def _cheaper_play(page: ObservedPage, wanted: Wanted) -> Script:
    for name in wanted["names"]:
        page = yield from to_product(page, name)
    yield answer(wanted["answer"])


def _paid_make(random: Random, shop: ShopState) -> Wanted:
    order = random.choice(shop.orders)
    goal = f"How much was paid for order {order.id}? Answer with the amount in EUR, such as 12.95."
    return {"goal": goal, "order": order.id, "answer": euros(order.total_cents).split()[0]}


def _order_page(page: ObservedPage, order: int) -> Script:
    page = yield click(page, "link", "Orders")
    yield click(page, "link", f"Order {order}")


def _paid_play(page: ObservedPage, wanted: Wanted) -> Script:
    yield from _order_page(page, wanted["order"])
    yield answer(wanted["answer"])


def _with_status(shop: ShopState, status: str) -> ShopOrder:
    return next(order for order in shop.orders if order.status == status)


def _cancel_make(random: Random, shop: ShopState) -> Wanted:
    order = _with_status(shop, "processing")
    product = shop.product(random.choice(order.lines).product).name
    goal = f"Cancel the order of the {product}, which was not sent yet."
    return {"goal": goal, "order": order.id}


def _cancel_do(shop: ShopState, wanted: Wanted) -> None:
    shop.cancel(wanted["order"])


def _cancel_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Orders")
    page = yield click(page, "link", f"Order {wanted['order']}")
    yield click(page, "button", "Cancel order")


def _return_make(random: Random, shop: ShopState) -> Wanted:
    order = _with_status(shop, "delivered")
    product = shop.product(random.choice(order.lines).product)
    reason = random.choice(REASONS)
    goal = f"Return the {product.name} of order {order.id}. Give the reason: {reason}."
    product_fields = {"product": product.id, "name": product.name}
    return {"goal": goal, "order": order.id, "reason": reason, **product_fields}


def _return_do(shop: ShopState, wanted: Wanted) -> None:
    shop.send_back(wanted["order"], wanted["product"], wanted["reason"])


def _return_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Orders")
    page = yield click(page, "link", f"Order {wanted['order']}")
    page = yield click(page, "link", "Return an item")
    page = yield select(page, "Item", wanted["name"])
    page = yield select(page, "Reason", wanted["reason"])
    yield click(page, "button", "Return item")


def _again_make(random: Random, shop: ShopState) -> Wanted:
    order = random.choice(shop.orders)
    goal = (
        f"Order once more what was in order {order.id}, for pickup. Keep the address as it is "
        "chosen."
    )
    return {"goal": goal, "order": order.id}


def _again_do(shop: ShopState, wanted: Wanted) -> None:
    shop.order_again(wanted["order"])
    shop.order(address=shop.default_address, delivery="pickup", accepted=True)


def _again_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Orders")
    page = yield click(page, "link", f"Order {wanted['order']}")
    page = yield click(page, "button", "Order again")
    yield from check_out(page, delivery="pickup")


def _phone_make(random: Random, shop: ShopState) -> Wanted:
    del shop
    phone = f"0{random.randrange(100, 999)} {random.randrange(10000, 99999)}"
    goal = f"Set the phone number of your account to {phone} and unsubscribe from the newsletter."
    return {"goal": goal, "phone": phone}


def _phone_do(shop: ShopState, wanted: Wanted) -> None:
    shop.update_account(name=shop.name, email=shop.email, phone=wanted["phone"], newsletter=False)


def _phone_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Account")
    page = yield fill(page, "Phone", wanted["phone"])
    page = yield click(page, "checkbox", "Newsletter")
    yield click(page, "button", "Save")


def _move_make(random: Random, shop: ShopState) -> Wanted:
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


def _move_do(shop: ShopState, wanted: Wanted) -> None:
    shop.make_default(shop.add_address(**wanted["address"]).id)


def _move_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Addresses")
    page = yield click(page, "link", "Add an address")
    labels = {"name": "Full name", "street": "Street", "city": "City", "postcode": "Postcode"}
    for field, label in labels.items():
        page = yield fill(page, label, wanted["address"][field])
    page = yield click(page, "button", "Save address")
    yield click(page, "button", f"Make {wanted['address']['street']} the default")


def _forget_make(random: Random, shop: ShopState) -> Wanted:
    del random
    old, new = shop.addresses
    return {
        "goal": f"Make the address in {new.city} the default, and remove the one in {old.city}.",
        "addresses": [old.id, new.id],
        "streets": [old.street, new.street],
    }


def _forget_do(shop: ShopState, wanted: Wanted) -> None:
    old, new = wanted["addresses"]
    shop.make_default(new)
    shop.remove_address(old)


def _forget_play(page: ObservedPage, wanted: Wanted) -> Script:
    old, new = wanted["streets"]
    page = yield click(page, "link", "Addresses")
    page = yield click(page, "button", f"Make {new} the default")
    yield click(page, "button", f"Remove {old}")


def _review_make(random: Random, shop: ShopState) -> Wanted:
    product = some_product(random, shop)
    stars, text = random.randrange(1, 6), random.choice(_OPINIONS)
    goal = f'Review the {product.name}: {stars} stars, with the words "{text}".'
    product_fields = {"product": product.id, "name": product.name}
    return {"goal": goal, "stars": stars, "text": text, **product_fields}


def _review_do(shop: ShopState, wanted: Wanted) -> None:
    shop.review(wanted["product"], wanted["stars"], wanted["text"])


def _review_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_product(page, wanted["name"])
    page = yield click(page, "button", "Reviews (0)")
    page = yield select(page, "Your stars", str(wanted["stars"]))
    page = yield fill(page, "Your review", wanted["text"])
    yield click(page, "button", "Send review")


MANAGING: tuple[SiteTemplate[ShopState], ...] = (
    SiteTemplate(name="price", level=1, make=_price_make, play=_price_play, right=same_amount),
    SiteTemplate(name="paid", level=1, make=_paid_make, play=_paid_play, right=same_amount),
    SiteTemplate(name="cheaper", level=2, make=_cheaper_make, play=_cheaper_play, right=same_text),
    SiteTemplate(name="cancel", level=1, make=_cancel_make, do=_cancel_do, play=_cancel_play),
    SiteTemplate(name="return", level=2, make=_return_make, do=_return_do, play=_return_play),
    SiteTemplate(name="order_again", level=2, make=_again_make, do=_again_do, play=_again_play),
    SiteTemplate(name="account", level=1, make=_phone_make, do=_phone_do, play=_phone_play),
    SiteTemplate(
        name="forget_address", level=1, make=_forget_make, do=_forget_do, play=_forget_play
    ),
    SiteTemplate(name="move", level=2, make=_move_make, do=_move_do, play=_move_play),
    SiteTemplate(name="review", level=2, make=_review_make, do=_review_do, play=_review_play),
)
"""Kinds of tasks about what there is already."""

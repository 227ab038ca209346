"""Common moves of players of the shop's tasks."""

import re

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.web.sites.play import Moves, click, fill, select


def go_to_product(page: ObservedPage, name: str) -> Moves:
    """Search for a product and go to its page."""
    page = yield call("fill", id=page.id(name="Search products"), text=name)
    page = yield click(page, "button", "Search")
    return (yield click(page, "link", name))


def go_to_list(
    page: ObservedPage, *, category: str, max_price: str = "", stars: str = "", order: str = ""
) -> Moves:
    """Go to a category, filtered and ordered."""
    page = yield click(page, "link", category)
    if max_price:
        page = yield fill(page, "Highest price", max_price)
    if stars:
        page = yield select(page, "Stars", stars)
    if order:
        page = yield select(page, "Order", order)
    return (yield click(page, "button", "Apply"))


def find_first_product(page: ObservedPage, category: str) -> str:
    """Return the name of the first product of a list."""
    start = next(
        i for i, node in enumerate(page.nodes) if re.fullmatch(r"\d+ products?", node.name)
    )
    links = [node for node in page.nodes[start:] if node.role == "link"]
    if not links:
        raise LookupError(f"no product of {category} is shown")
    return links[0].name


def add(page: ObservedPage, *, colour: str, quantity: int) -> Moves:
    """Put what the page shows into the cart."""
    page = yield select(page, "Colour", colour)
    if quantity != 1:
        page = yield fill(page, "Quantity", str(quantity))
    return (yield click(page, "button", "Add to cart"))


def check_out(page: ObservedPage, *, delivery: str, address: str = "") -> Moves:
    """Order what is in the cart, which the page shows."""
    page = yield click(page, "link", "Check out")
    if address:
        page = yield select(page, "Address", address)
    if delivery != "standard":
        page = yield select(page, "Delivery", delivery)
    page = yield call("click", id=page.id("checkbox", "I accept the terms"))
    return (yield click(page, "button", "Place order"))

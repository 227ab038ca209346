"""Random choices that several kinds of tasks make, and how they are worded."""

from random import Random

from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.shop.catalogue import CATEGORIES, ShopProduct
from agentrl_envs.web.sites.shop.state import ShopState

NUMBERS = ("no", "one", "two", "three", "four")


def choose_product(random: Random, shop: ShopState) -> ShopProduct:
    """Return any product."""
    return random.choice(list(shop.catalogue.products.values()))


def choose_line(random: Random, shop: ShopState) -> Wanted:
    """Return a product, a colour and a quantity of it."""
    product = choose_product(random, shop)
    return {
        "product": product.id,
        "name": product.name,
        "colour": random.choice(product.colours),
        "quantity": random.randrange(1, 4),
    }


def describe_line(line: Wanted) -> str:
    """Return a line as a task says it."""
    return f"{NUMBERS[line['quantity']]} {line['colour']} {line['name']}"


def put_into_cart(shop: ShopState, line: Wanted) -> None:
    """Put a line into the cart."""
    shop.add_to_cart(line["product"], line["colour"], line["quantity"])


def choose_filter(random: Random, shop: ShopState, *, sort: str) -> Wanted:
    """Return conditions on a category, and the one product that is first by them."""
    category = random.choice(CATEGORIES)
    max_price = random.choice((40, 60, 80, 100))
    stars = random.choice((3, 4))
    products = shop.catalogue.search(
        category=category,
        max_price_cents=max_price * 100,
        min_rating_tenths=stars * 10,
        sort=sort,
    )
    if len(products) < 2:
        raise UnfitChoice
    first, second = products[:2]
    if sort == "rating" and first.rating_tenths == second.rating_tenths:
        raise UnfitChoice
    return {
        "category": category,
        "max_price": str(max_price),
        "stars": stars,
        "product": first.id,
        "name": first.name,
        "colour": random.choice(first.colours),
        "quantity": 1,
    }

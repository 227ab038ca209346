"""Products of a shop: made from a seed, and never changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Self

from agentrl.runtime.seeds import derive

COLOURS = ("black", "blue", "green", "red", "white")
_GOODS = {
    "Kitchen": ("Kettle", "Toaster", "Frying Pan", "Teapot", "Knife Set"),
    "Garden": ("Watering Can", "Rake", "Planter", "Bird Feeder", "Lantern"),
    "Office": ("Desk Lamp", "Stapler", "Notebook", "Desk Fan", "Bookend"),
    "Travel": ("Backpack", "Suitcase", "Water Bottle", "Umbrella", "Neck Pillow"),
    "Sport": ("Yoga Mat", "Skipping Rope", "Tennis Racket", "Football", "Dumbbell"),
}
CATEGORIES = tuple(_GOODS)
_BRANDS = ("Alder", "Birchway", "Corvo", "Denholm", "Elmset", "Farring", "Gilby", "Hesper")
_FEATURES = ("foldable", "lightweight", "hand-made", "waterproof", "recycled", "compact")
_PER_GOOD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopProduct:
    """One thing for sale."""

    id: str
    name: str
    category: str
    brand: str
    price_cents: int
    rating_tenths: int
    """Stars, times ten."""
    colours: tuple[str, ...]
    stock: int
    feature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopCatalogue:
    """All products by id, in order of their names."""

    products: Mapping[str, ShopProduct]

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: a catalogue is never changed, so copies of a shop share it."""
        return self

    def search(
        self,
        *,
        query: str = "",
        category: str = "",
        max_price_cents: int | None = None,
        min_rating_tenths: int = 0,
        sort: str = "",
    ) -> Sequence[ShopProduct]:
        """Return the products that fit: every word of the query in the name, brand or feature."""
        matches = [
            product
            for product in self.products.values()
            if all(word in _words(product) for word in query.casefold().split())
            and category in ("", product.category)
            and (max_price_cents is None or product.price_cents <= max_price_cents)
            and product.rating_tenths >= min_rating_tenths
        ]
        match sort:
            case "price":
                matches.sort(key=lambda product: product.price_cents)
            case "price-down":
                matches.sort(key=lambda product: -product.price_cents)
            case "rating":
                matches.sort(key=lambda product: -product.rating_tenths)
            case _:
                pass
        return matches


SORTS = {"": "Name", "price": "Price, low to high", "price-down": "Price, high to low"} | {
    "rating": "Rating"
}
"""Orders of a list, and what they are called."""


@lru_cache(maxsize=32)
def catalogue(seed: int) -> ShopCatalogue:
    """Return the catalogue of a seed: no two products of equal name or price."""
    random = Random(derive("shop catalogue", seed))
    prices = random.sample(range(495, 14995, 100), len(CATEGORIES) * 5 * _PER_GOOD)
    products: list[ShopProduct] = []
    for category, goods in _GOODS.items():
        for good in goods:
            ratings = random.sample(range(28, 50), _PER_GOOD)
            for brand, rating in zip(random.sample(_BRANDS, _PER_GOOD), ratings, strict=True):
                name = f"{brand} {good}"
                products.append(
                    ShopProduct(
                        id=name.lower().replace(" ", "-"),
                        name=name,
                        category=category,
                        brand=brand,
                        price_cents=prices.pop(),
                        rating_tenths=rating,
                        colours=tuple(sorted(random.sample(COLOURS, random.randrange(2, 4)))),
                        stock=random.randrange(5, 40),
                        feature=random.choice(_FEATURES),
                    )
                )
    products.sort(key=lambda product: product.name)
    return ShopCatalogue(products={product.id: product for product in products})


def euros(cents: int) -> str:
    """Return an amount as the shop writes it."""
    return f"{cents // 100}.{cents % 100:02d} EUR"


def stars(tenths: int) -> str:
    """Return a rating as the shop writes it."""
    return f"{tenths // 10}.{tenths % 10}"


def _words(product: ShopProduct) -> set[str]:
    text = f"{product.name} {product.category} {product.feature}".casefold()
    return {*text.split(), *(word.rstrip("s") for word in text.split())}

"""The pages of the shop."""

from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl_envs.web.sites.asgi import SiteRefusal
from agentrl_envs.web.sites.pages import PageTemplates, form, go, number, state_of
from agentrl_envs.web.sites.shop.catalogue import CATEGORIES, SORTS, euros, stars
from agentrl_envs.web.sites.shop.state import DELIVERIES, REASONS, ShopState

PER_PAGE = 8
Endpoint = Callable[[Request], Awaitable[Response]]
_PAGES = PageTemplates(Path(__file__).with_name("templates"), {"euros": euros, "stars": stars})


def _show(
    request: Request, name: str, *, status: int = 0, problem: str = "", **context: Any
) -> Response:
    shop: ShopState = state_of(request)
    count = sum(line.quantity for line in shop.cart)
    context |= {"shop": shop, "count": count, "categories": CATEGORIES, "problem": problem}
    return _PAGES.show(name, status=status or (422 if problem else 200), **context)


async def show_page(request: Request, *, name: str) -> Response:
    """Show a page of the shop as it is."""
    return _show(request, name)


async def search(request: Request) -> Response:
    """Show a page of the products that fit."""
    params = request.query_params
    fields = {name: params.get(name, "") for name in ("q", "category", "max", "rating", "sort")}
    products = state_of(request).catalogue.search(
        query=fields["q"],
        category=fields["category"] if fields["category"] in CATEGORIES else "",
        max_price_cents=number(fields["max"]) * 100 if fields["max"].strip() else None,
        min_rating_tenths=number(fields["rating"]) * 10,
        sort=fields["sort"],
    )
    page = max(1, number(params.get("page", "1"), 1))
    last = max(1, -(-len(products) // PER_PAGE))
    page_items = products[(page - 1) * PER_PAGE : page * PER_PAGE]
    link = "/search?" + urlencode({k: v for k, v in fields.items() if v} | {"page": ""})
    context: dict[str, Any] = {"fields": fields, "found": len(products), "shown": page_items}
    return _show(request, "search", sorts=SORTS, page=page, last=last, link=link, **context)


async def product(request: Request) -> Response:
    """Show a product."""
    return _show_product(request)


def _show_product(request: Request, problem: str = "") -> Response:
    shop: ShopState = state_of(request)
    try:
        item = shop.product(request.path_params["id"])
    except SiteRefusal as refusal:
        return _show(request, "missing", status=404, problem=str(refusal))
    reviews = [review for review in shop.reviews if review.product == item.id]
    return _show(request, "product", product=item, reviews=reviews, problem=problem)


async def add(request: Request) -> Response:
    """Put a product into the cart."""
    fields = await form(request)
    try:
        state_of(request).add_to_cart(
            request.path_params["id"], fields.get("colour", ""), number(fields.get("quantity", ""))
        )
    except SiteRefusal as refusal:
        return _show_product(request, str(refusal))
    return go("/cart")


async def review(request: Request) -> Response:
    """Review a product."""
    fields = await form(request)
    id = request.path_params["id"]
    try:
        state_of(request).review(id, number(fields.get("stars", "")), fields.get("text", ""))
    except SiteRefusal as refusal:
        return _show_product(request, str(refusal))
    return go(f"/product/{id}")


async def quantity(request: Request) -> Response:
    """Change a line of the cart."""
    count = number((await form(request)).get("quantity", ""), -1)
    place = request.path_params["place"]
    return _change_and_go("/cart", request, lambda shop: shop.set_quantity(place, count))


async def remove(request: Request) -> Response:
    """Remove a line of the cart."""
    place = request.path_params["place"]
    return _change_and_go("/cart", request, lambda shop: shop.set_quantity(place, 0))


async def coupon(request: Request) -> Response:
    """Use a coupon."""
    code = (await form(request)).get("code", "")
    return _change_and_go("/cart", request, lambda shop: shop.use_coupon(code))


async def checkout(request: Request) -> Response:
    """Show the form of an order, or order."""
    shop: ShopState = state_of(request)
    fields = {"address": str(shop.default_address), "delivery": "standard", "terms": ""}
    problem = ""
    if request.method == "POST":
        fields |= await form(request)
        try:
            order = shop.order(
                address=number(fields["address"]),
                delivery=fields["delivery"],
                accepted=bool(fields["terms"]),
            )
        except SiteRefusal as refusal:
            problem = str(refusal)
        else:
            return go(f"/orders/{order.id}")
    return _show(request, "checkout", fields=fields, problem=problem, deliveries=DELIVERIES)


async def order(request: Request) -> Response:
    """Show an order."""
    return _show_order(request, "order")


def _show_order(request: Request, name: str, problem: str = "") -> Response:
    try:
        customer_order = state_of(request).order_of(_id(request))
    except SiteRefusal as refusal:
        return _show(request, "missing", status=404, problem=str(refusal))
    return _show(request, name, order=customer_order, problem=problem, reasons=REASONS)


async def send_back(request: Request) -> Response:
    """Show the form of a return, or return."""
    if request.method == "GET":
        return _show_order(request, "return")
    fields = await form(request)
    try:
        state_of(request).send_back(_id(request), fields.get("item", ""), fields.get("reason", ""))
    except SiteRefusal as refusal:
        return _show_order(request, "return", str(refusal))
    return go(f"/orders/{_id(request)}")


async def account(request: Request) -> Response:
    """Show who the customer is, or change it."""
    shop: ShopState = state_of(request)
    fields = {"name": shop.name, "email": shop.email, "phone": shop.phone}
    fields["newsletter"] = "on" if shop.newsletter else ""
    problem = ""
    if request.method == "POST":
        fields = {**dict.fromkeys(fields, ""), **await form(request)}
        try:
            shop.update_account(
                name=fields["name"],
                email=fields["email"],
                phone=fields["phone"],
                newsletter=bool(fields["newsletter"]),
            )
        except SiteRefusal as refusal:
            problem = str(refusal)
        else:
            return go("/account")
    return _show(request, "account", fields=fields, problem=problem)


async def new_address(request: Request) -> Response:
    """Show the form of an address, or add it."""
    fields = dict.fromkeys(("name", "street", "city", "postcode"), "")
    problem = ""
    if request.method == "POST":
        form_data = await form(request)
        fields = {name: form_data.get(name, "") for name in fields}
        try:
            state_of(request).add_address(**fields)
        except SiteRefusal as refusal:
            problem = str(refusal)
        else:
            return go("/addresses")
    return _show(request, "new_address", fields=fields, problem=problem)


async def show_missing(request: Request, error: Exception) -> Response:
    """Say that there is no such page."""
    return _show(request, "missing", status=404, problem="There is no such page.")


async def change_one(
    request: Request, *, path: str, change: Callable[[ShopState, Any], None]
) -> Response:
    """Change what the number or id in the address stands for."""
    (id,) = request.path_params.values()
    return _change_and_go(path.format(id=id), request, lambda shop: change(shop, id))


def _change_and_go(path: str, request: Request, change: Callable[[ShopState], None]) -> Response:
    try:
        change(state_of(request))
    except SiteRefusal as refusal:
        return _show(request, "missing", problem=str(refusal))
    return go(path)


def _id(request: Request) -> int:
    return int(request.path_params["id"])


_GET: dict[str, Endpoint] = {
    "/": partial(show_page, name="home"),
    "/search": search,
    "/product/{id}": product,
    "/cart": partial(show_page, name="cart"),
    "/orders": partial(show_page, name="orders"),
    "/orders/{id:int}": order,
    "/addresses": partial(show_page, name="addresses"),
    "/wishlist": partial(show_page, name="wishlist"),
}
_POST: dict[str, Endpoint] = {
    "/product/{id}/add": add,
    "/product/{id}/wish": partial(change_one, path="/wishlist", change=ShopState.wish),
    "/product/{id}/unwish": partial(change_one, path="/wishlist", change=ShopState.unwish),
    "/product/{id}/review": review,
    "/cart/{place:int}/quantity": quantity,
    "/cart/{place:int}/remove": remove,
    "/cart/coupon": coupon,
    "/orders/{id:int}/cancel": partial(change_one, path="/orders/{id}", change=ShopState.cancel),
    "/orders/{id:int}/again": partial(change_one, path="/cart", change=ShopState.order_again),
    "/addresses/{id:int}/default": partial(
        change_one, path="/addresses", change=ShopState.make_default
    ),
    "/addresses/{id:int}/remove": partial(
        change_one, path="/addresses", change=ShopState.remove_address
    ),
}
_BOTH: dict[str, Endpoint] = {
    "/checkout": checkout,
    "/orders/{id:int}/return": send_back,
    "/account": account,
    "/addresses/new": new_address,
}


@cache
def app() -> Starlette:
    """Return the application, one for all episodes: the state comes with the request."""
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in _GET.items()]
    routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in _POST.items()]
    routes += [Route(path, endpoint, methods=["GET", "POST"]) for path, endpoint in _BOTH.items()]
    return Starlette(routes=routes, exception_handlers={404: show_missing, 405: show_missing})

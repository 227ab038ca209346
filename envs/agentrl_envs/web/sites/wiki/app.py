"""The pages of the wiki."""

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl_envs.web.sites.asgi import SiteRefusal
from agentrl_envs.web.sites.pages import PageTemplates, form, go, number, state_of
from agentrl_envs.web.sites.wiki.state import WikiState

RESULTS_MAX = 12
_LINK = re.compile(r"\[\[([^\[\]]+)\]\]")


def build_path(title: str) -> str:
    """Return the path of an article."""
    return "/article/" + quote(title.replace(" ", "_"), safe="")


def _render_links(text: str) -> Markup:
    parts = _LINK.split(text)
    pieces = [
        Markup('<a href="{}">{}</a>').format(build_path(part), part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    ]
    return Markup("").join(pieces)


_PAGES = PageTemplates(
    Path(__file__).with_name("templates"), {"path": build_path, "linked": _render_links}
)


def _show(request: Request, name: str, *, status: int = 200, **context: Any) -> Response:
    return _PAGES.show(name, status=status, wiki=state_of(request), **context)


def _show_problem(request: Request, refusal: SiteRefusal, status: int = 422) -> Response:
    return _show(request, "missing", status=status, problem=str(refusal))


def _read_title(request: Request) -> str:
    return request.path_params["title"].replace("_", " ")


async def search(request: Request) -> Response:
    """Show what is found."""
    query = " ".join(request.query_params.get("q", "").split())
    titles = state_of(request).search(query)
    return _show(
        request, "search", query=query, found=titles[:RESULTS_MAX], more=len(titles) - RESULTS_MAX
    )


async def category(request: Request) -> Response:
    """List a category."""
    name = _read_title(request)
    return _show(request, "category", category=name, titles=state_of(request).list_category(name))


async def show_page(request: Request, *, name: str) -> Response:
    """Show a page of the wiki as it is."""
    return _show(request, name)


async def show_article(request: Request, *, name: str) -> Response:
    """Show a page about an article."""
    title = _read_title(request)
    try:
        revision = state_of(request).latest(title)
    except SiteRefusal as refusal:
        return _show_problem(request, refusal, 404)
    return _show(request, name, title=title, revision=revision)


async def edit(request: Request) -> Response:
    """Show the form of an edit, or edit."""
    wiki: WikiState = state_of(request)
    title = _read_title(request)
    try:
        revision = wiki.latest(title)
        fields = {"text": revision.text, "categories": ", ".join(revision.categories)}
        if request.method == "POST":
            fields |= {"comment": ""} | await form(request)
            wiki.edit(title, fields["text"], fields["categories"].split(","), fields["comment"])
            return go(build_path(title))
    except SiteRefusal as refusal:
        return _show_problem(request, refusal)
    return _show(request, "edit", title=title, fields=fields)


async def new(request: Request) -> Response:
    """Show the form of a new article, or begin it."""
    if request.method == "GET":
        return _show(request, "new")
    fields = dict.fromkeys(("title", "text", "categories"), "") | await form(request)
    try:
        title = state_of(request).create(
            fields["title"], fields["text"], fields["categories"].split(",")
        )
    except SiteRefusal as refusal:
        return _show_problem(request, refusal)
    return go(build_path(title))


async def restore(request: Request) -> Response:
    """Restore a revision."""
    revision = number((await form(request)).get("revision", ""))
    return await _change(request, lambda wiki, title: wiki.restore(title, revision))


async def _change(request: Request, change: Callable[[WikiState, str], None]) -> Response:
    title = _read_title(request)
    try:
        change(state_of(request), title)
    except SiteRefusal as refusal:
        return _show_problem(request, refusal)
    return go(build_path(title))


async def show_missing(request: Request, error: Exception) -> Response:
    """Say that there is no such page."""
    return _show(request, "missing", status=404, problem="There is no such page.")


@cache
def app() -> Starlette:
    """Return the application, one for all episodes: the state comes with the request."""
    get, post = ["GET"], ["POST"]
    routes = [
        Route("/", partial(show_page, name="home"), methods=get),
        Route("/search", search, methods=get),
        Route("/category/{title}", category, methods=get),
        Route("/watchlist", partial(show_page, name="watchlist"), methods=get),
        Route("/new", new, methods=[*get, *post]),
        Route("/article/{title}", partial(show_article, name="article"), methods=get),
        Route("/article/{title}/history", partial(show_article, name="history"), methods=get),
        Route("/article/{title}/links", partial(show_article, name="links"), methods=get),
        Route("/article/{title}/edit", edit, methods=[*get, *post]),
        Route("/article/{title}/restore", restore, methods=post),
        Route("/article/{title}/watch", partial(_change, change=WikiState.watch), methods=post),
        Route(
            "/article/{title}/unwatch",
            partial(_change, change=WikiState.unwatch),
            methods=post,
        ),
    ]
    return Starlette(routes=routes, exception_handlers={404: show_missing, 405: show_missing})

"""Shared parts of our sites' applications: templates, forms, and the state behind a request."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from agentrl_envs.web.sites.asgi import STATE_KEY

BODY_BYTES_MAX = 2**20
_FIELDS_MAX = 1000
_POLICY = (
    "default-src 'self'; script-src 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; frame-src 'none'; base-uri 'none'; form-action 'self'"
)


class PageTemplates:
    """Renders the templates of one folder; every value is escaped."""

    def __init__(self, folder: Path, filters: Mapping[str, Any]) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(filters)

    def show(self, name: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page made of a template; it runs the template's own scripts and no others."""
        template = self._templates.get_template(f"{name}.html.jinja")
        nonce = secrets.token_urlsafe(18)
        return HTMLResponse(
            template.render(**context, nonce=nonce),
            status_code=status,
            headers={"content-security-policy": _POLICY.format(nonce=nonce)},
        )


def state_of(request: Request) -> Any:
    """Return the state of the episode that a request belongs to."""
    return request.scope[STATE_KEY]


def go(path: str) -> RedirectResponse:
    """Send the browser to another page of the site, after a form was accepted."""
    return RedirectResponse(path, status_code=303)


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the last of those with one name, and nothing of a huge one."""
    body = await request.body()
    if len(body) > BODY_BYTES_MAX or body.count(b"&") >= _FIELDS_MAX:
        return {}
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


def number(text: str, default: int = 0) -> int:
    """Return a whole number of a form, or the default for what is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default

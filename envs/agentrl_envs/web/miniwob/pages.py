"""The pages of MiniWoB++ as they are served: from the installed package, and from nowhere else.

A page runs its own scripts and no others. Some pages put what was typed into their markup; its
handlers, addresses and elements are no code there, by the policy that comes with every page.
"""

import base64
import mimetypes
import re
import secrets
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from agentrl.errors import ConfigError
from agentrl.runtime.extras import install_command
from agentrl_envs.web.episode_site import WebRequest, WebResponse

ORIGIN: Final = "http://miniwob.test"
_MOST_PAGES = 64
"""That are kept as they are served, at half a megabyte each."""
_SCRIPT = re.compile(rb"""<script nonce=[\w-]+ src="([\w./-]+\.js)"></script>""")
_STYLE = re.compile(rb"""<link rel="stylesheet"(?: type="text/css")? href="([\w./-]+\.css)">""")
_ELSEWHERE = re.compile(rb"""url\(["']?(?!data:)[\w./-]""")
_PICTURE = re.compile(rb"""url\(['"]?([\w./-]+\.(?:png|gif|jpg|svg))['"]?\)""")
_OWN = re.compile(rb"<(script|style)(?=[\s>])", re.IGNORECASE)
_NONCE = b"nonce-of-the-response"
"""Stands in a page that is kept, without quotes: it may be inside a string of a script."""
_OPENING = b"<script nonce=%s>" % _NONCE
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'nonce-{nonce}'{more}",
        "style-src-elem 'self' 'nonce-{nonce}'",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "media-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
_EVALUATES = re.compile(rb'class="jscolor"')
"""In pages with a colour picker, which evaluates its own settings, and nothing that is typed."""
_SCRIPTS = files("agentrl_envs.web.miniwob")


def script(name: str) -> str:
    """Return the text of a script of this package."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")


@cache
def root() -> Path:
    """Return the folder of the pages; `ConfigError` where the package is not installed."""
    spec = find_spec("miniwob")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise ConfigError(
            "the pages of MiniWoB++ come with the package miniwob, which is not installed; "
            f"pip install miniwob, or {install_command('web')}"
        )
    return Path(places[0]) / "html"


def url_of(family: str) -> str:
    """Return the address of a family's page."""
    return f"{ORIGIN}/miniwob/{family}.html"


def answer(request: WebRequest) -> WebResponse | None:
    """Answer a request for a file of the package; None for everything else."""
    parts = urlsplit(request.url)
    if request.method != "GET" or f"{parts.scheme}://{parts.netloc}" != ORIGIN:
        return None
    file = _read_file(unquote(parts.path))
    if file is None:
        return None
    kind, body = file
    if not kind.startswith("text/html"):
        return WebResponse(headers={"content-type": kind}, body=body)
    nonce = secrets.token_urlsafe(18)
    more = " 'unsafe-eval'" if _EVALUATES.search(body) else ""
    policy = _POLICY.format(nonce=nonce, more=more)
    headers = {"content-type": kind, "content-security-policy": policy}
    return WebResponse(headers=headers, body=body.replace(_NONCE, nonce.encode()))


@lru_cache(_MOST_PAGES)
def _read_file(path: str) -> tuple[str, bytes] | None:
    """Return a file's kind and bytes; in a page, `_NONCE` is at everything of its own that runs."""
    if "\0" in path:
        return None
    place = (root() / path.lstrip("/")).resolve()
    if not place.is_relative_to(root().resolve()) or not place.is_file():
        return None
    body = _read_text(place) if place.suffix in (".html", ".css") else place.read_bytes()
    if place.suffix == ".html" and place.parent.name == "miniwob":
        body = _OWN.sub(rb"<\1 nonce=" + _NONCE, body)
        body = _SCRIPT.sub(lambda found: _embed_script(place, found), body)
        body = _STYLE.sub(lambda found: _embed_style(place, found), body)
        prelude = b"<head>%s%s</script>" % (_OPENING, script("prelude.js").encode())
        body = body.replace(b"<head>", prelude, 1)
    return _guess_kind(place), body


@cache
def _read_text(place: Path) -> bytes:
    """Return a page or a style sheet with its pictures in it: they are there when it is."""
    return _PICTURE.sub(lambda found: _embed_picture(place, found), place.read_bytes())


def _embed_picture(place: Path, found: re.Match[bytes]) -> bytes:
    if (picture := _find_beside(place, found)) is None:
        return found[0]
    data = base64.b64encode(picture.read_bytes())
    return b'url("data:%s;base64,%s")' % (_guess_kind(picture).encode(), data)


def _embed_script(place: Path, found: re.Match[bytes]) -> bytes:
    file = _find_beside(place, found)
    source = b"" if file is None else _read_source(file)
    # Words that would end the element early stay in a file of their own.
    if not source or b"</script" in source.lower() or b"<!--" in source:
        return found[0]
    return b"%s%s</script>" % (_OPENING, source)


def _embed_style(place: Path, found: re.Match[bytes]) -> bytes:
    file = _find_beside(place, found)
    rules = b"" if file is None else _read_text(file)
    if not rules or b"</style" in rules.lower() or _ELSEWHERE.search(rules):
        return found[0]
    return b"<style nonce=%s>%s</style>" % (_NONCE, rules)


@cache
def _read_source(file: Path) -> bytes:
    return file.read_bytes()


def _find_beside(place: Path, found: re.Match[bytes]) -> Path | None:
    file = (place.parent / found[1].decode()).resolve()
    return file if file.is_relative_to(root().resolve()) and file.is_file() else None


def _guess_kind(place: Path) -> str:
    kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
    text = kind.startswith("text/") or kind.endswith(("javascript", "json"))
    return f"{kind}; charset=utf-8" if text else kind

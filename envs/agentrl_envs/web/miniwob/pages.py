"""The pages of MiniWoB++ as they are served: from the installed package, and from nowhere else."""

import base64
import mimetypes
import re
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from agentrl.errors import ConfigError
from agentrl_envs.web.world import WebRequest, WebResponse

ORIGIN: Final = "http://miniwob.test"
_PICTURE = re.compile(rb"""url\(['"]?([\w./-]+\.(?:png|gif|jpg|svg))['"]?\)""")
_SCRIPTS = files("agentrl_envs.web.miniwob")


def script(name: str) -> str:
    """Return the text of a script of this package."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")


@cache
def root() -> Path:
    """Return the folder of the pages; `ConfigError` where the package is not installed."""
    found = find_spec("miniwob")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise ConfigError(
            "the pages of MiniWoB++ come with the package miniwob, which is not installed; "
            "pip install miniwob, or agentrl[web]"
        )
    return Path(places[0]) / "html"


def url_of(family: str) -> str:
    """Return where a family's page is."""
    return f"{ORIGIN}/miniwob/{family}.html"


def answer(request: WebRequest) -> WebResponse | None:
    """Answer a request for a file of the package; None for everything else."""
    parts = urlsplit(request.url)
    if request.method != "GET" or f"{parts.scheme}://{parts.netloc}" != ORIGIN:
        return None
    return _file(unquote(parts.path))


@cache
def _file(path: str) -> WebResponse | None:
    if "\0" in path:
        return None
    place = (root() / path.lstrip("/")).resolve()
    if not place.is_relative_to(root().resolve()) or not place.is_file():
        return None
    body = place.read_bytes()
    if place.suffix in (".html", ".css"):
        body = _PICTURE.sub(lambda found: _inline(place, found), body)
    if place.suffix == ".html" and place.parent.name == "miniwob":
        prelude = f"<head><script>{script('prelude.js')}</script>"
        body = body.replace(b"<head>", prelude.encode(), 1)
    return WebResponse(headers={"content-type": _kind(place)}, body=body)


def _inline(place: Path, found: re.Match[bytes]) -> bytes:
    """Return a reference to a picture as the picture itself: it is there when the page is."""
    picture = (place.parent / found[1].decode()).resolve()
    if not picture.is_relative_to(root().resolve()) or not picture.is_file():
        return found[0]
    data = base64.b64encode(picture.read_bytes())
    return b'url("data:%s;base64,%s")' % (_kind(picture).encode(), data)


def _kind(place: Path) -> str:
    kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
    text = kind.startswith("text/") or kind.endswith(("javascript", "json"))
    return f"{kind}; charset=utf-8" if text else kind

"""Addresses that a page may visit: decided on the text of one, before anything is asked for."""

import re
from collections.abc import Collection
from urllib.parse import urljoin, urlsplit

_PORTS = {"http": 80, "https": 443}
_UNCLEAN = re.compile(r"[\x00-\x20\\\x7f-\xa0]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def origin_of(url: str) -> str | None:
    """Return `scheme://host[:port]` of an http(s) address, in its one spelling; None otherwise."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return None
    if scheme not in _PORTS or not host or _UNCLEAN.search(host):
        return None
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}" + ("" if port in (None, _PORTS[scheme]) else f":{port}")


def is_within(url: str, origins: Collection[str]) -> bool:
    """Return whether an address is of one of these origins."""
    return (origin := origin_of(url)) is not None and origin in {origin_of(o) for o in origins}


def resolve(text: str, *, base: str, origins: Collection[str]) -> tuple[str, str]:
    """Return the address an agent means, and why it may not go there; one of them is empty.

    What is no whole address is one of the page at `base`, as in a link.
    """
    text = text.strip()
    if _UNCLEAN.search(text):
        return (
            "",
            f"{text!r} is not an address: it contains a space, a backslash or a control character",
        )
    url = text if _SCHEME.match(text) else urljoin(base, text)
    places = ", ".join(origins)
    scheme = url.partition(":")[0].lower()
    if scheme not in _PORTS:
        return (
            "",
            f"addresses of the kind {scheme}: are not allowed; the allowed addresses are {places}",
        )
    try:
        has_user = urlsplit(url).username is not None
    except ValueError:
        return "", f"{text!r} is not an address"
    if has_user or not is_within(url, origins):
        return "", f"{url!r} is not allowed; the allowed addresses are {places}"
    return url, ""

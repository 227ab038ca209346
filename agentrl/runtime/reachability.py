"""Reachability of servers, found out within a second or so."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from urllib.parse import urlsplit

CONNECT_S = 1.1
"""Deadline for a server to accept a connection. A lost first packet is sent again after a
second."""


@dataclass(frozen=True, slots=True)
class ServerFault:
    """Reason why a server cannot be used."""

    why: str
    may_pass: bool = True
    """Whether it is over as soon as the server has been started."""


_SILENT = ServerFault(f"cannot be reached (no answer within {CONNECT_S:g} s)")


def is_url(text: str) -> bool:
    """Return whether a text is the URL of a server: HTTP, a host, and a port that can be one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def unreachable(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return why nothing listens at a URL, or an empty string; behind a proxy nobody knows."""
    fault = _ask_all([url], lambda asked: _knock_at(asked, environment)).get(url)
    return fault.why if fault is not None else ""


def place_faults(places: Sequence[str]) -> dict[str, ServerFault]:
    """Return the fault of each `host:port` at which nobody listens."""
    return _ask_all(places, lambda place: _knock(*_split(place)))


def endpoint_faults(
    urls: Sequence[str], key_variable: str, environment: Mapping[str, str] = os.environ
) -> dict[str, ServerFault]:
    """Return the faults of servers of OpenAI's API that do not answer or refuse the key in a
    variable."""
    return _ask_all(urls, lambda url: _ask_endpoint(url, key_variable, environment))


def _ask_all(
    places: Sequence[str], ask: Callable[[str], Iterator[ServerFault | None]]
) -> dict[str, ServerFault]:
    """Return the last fault found of each place by the deadline, as no name look-up has one."""
    faults: dict[str, ServerFault | None] = dict.fromkeys(places, _SILENT)

    def find_out(place: str) -> None:
        for fault in ask(place):
            faults[place] = fault

    threads = [Thread(target=find_out, args=(place,), daemon=True) for place in faults]
    deadline = time.monotonic() + CONNECT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {place: fault for place, fault in faults.items() if fault is not None}


def _knock(host: str, port: int) -> Iterator[ServerFault | None]:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        yield ServerFault(f"cannot be reached ({error.strerror or error})")
    else:
        yield None


def _knock_at(url: str, environment: Mapping[str, str]) -> Iterator[ServerFault | None]:
    if environment.get("HTTPS_PROXY") or environment.get("https_proxy"):
        yield None
        return
    if not is_url(url):
        yield ServerFault("is not the URL of a server (http://HOST:PORT/PATH)", may_pass=False)
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    yield from _knock(parts.hostname or "", port)


def _ask_endpoint(
    url: str, key_variable: str, environment: Mapping[str, str]
) -> Iterator[ServerFault | None]:
    for fault in _knock_at(url, environment):
        yield fault
        if fault is None and (why := _refusal(url, key_variable, environment)):
            yield ServerFault(why, may_pass=False)


def _refusal(url: str, key_variable: str, environment: Mapping[str, str]) -> str:
    """Return that a server refuses a key, or that there is none; any other answer says nothing."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    key = environment.get(key_variable)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        urlopen(Request(f"{url.rstrip('/')}/models", headers=headers), timeout=CONNECT_S).close()
    except HTTPError as error:
        error.close()
        if error.code not in (401, 403):
            return ""
        state = "is refused" if key else "is not set"
        return f"requires a key ({error.code}), but the variable {key_variable} {state}"
    except (OSError, ValueError, HTTPException):
        return ""
    return ""


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)

"""Requests of a page: each is answered by the world of its episode, or not at all.

Requests are held in the debugging session of their page, and redirects are held again, hop by hop,
which Playwright's own routes do not do. What never gets here (beacons of a page that is gone, other
processes of the browser) finds no network.
"""

import base64
from collections.abc import Mapping
from email.message import Message as Headers
from typing import Any

from agentrl_envs.web.browser.page import BrowserPage
from agentrl_envs.web.browser.policy import is_within
from agentrl_envs.web.episode_site import EpisodeSite, WebRequest, WebResponse

NOT_FOUND = WebResponse(
    status=404, headers={"content-type": "text/plain; charset=utf-8"}, body=b"Not found"
)
MAX_BODY_BYTES = 8 * 2**20
"""Size of the body of a world's answer."""
TOO_LARGE = WebResponse(
    status=502,
    headers={"content-type": "text/plain; charset=utf-8"},
    body=b"The answer is too large",
)
_SHOWN = ("text/", "image/", "application/xhtml+xml", "application/json", "application/xml")
_SEVERAL = "set-cookie"
_COOKIED = ("Document", "XHR", "Fetch")
"""Kinds of requests for which cookies are looked up; once there are some, for every request."""


def build_request(paused: Mapping[str, Any], cookies: str = "") -> WebRequest:
    """Return a held request as a world sees it."""
    request = paused["request"]
    headers = {name.lower(): value for name, value in request["headers"].items()}
    if cookies:
        headers["cookie"] = cookies
    parts = [base64.b64decode(part.get("bytes", "")) for part in request.get("postDataEntries", ())]
    body = b"".join(parts) or request.get("postData", "").encode()
    # What follows # is for the page alone, and no server ever sees it.
    return WebRequest(method=request["method"], url=request["url"], headers=headers, body=body)


def is_shown(response: WebResponse) -> bool:
    """Return whether a browser shows a response as a page, and does not download or embed it."""
    if 300 <= response.status < 400 or response.status == 204:
        return True
    headers = Headers()
    for name, value in response.headers.items():
        headers[name] = value.replace("\n", " ")
    if headers.get_content_disposition() == "attachment":
        return False
    kind = headers.get_content_type() if "content-type" in headers else "text/html"
    return kind.startswith(_SHOWN)


def build_fulfilment(response: WebResponse) -> dict[str, Any]:
    """Return the parameters of the protocol's command that answers a request."""
    headers: list[dict[str, str]] = []
    for name, value in response.headers.items():
        values = value.split("\n") if name.lower() == _SEVERAL else [value]
        headers += [{"name": name, "value": one} for one in values]
    return {
        "responseCode": response.status,
        "responseHeaders": headers,
        "body": base64.b64encode(response.body).decode(),
    }


async def answer(tab: BrowserPage, paused: Mapping[str, Any], world: EpisodeSite | None) -> str:
    """Answer a held request out of a world; return why it is refused, if it is."""
    url, params = paused["request"]["url"], {"requestId": paused["requestId"]}
    is_page = paused.get("resourceType") == "Document"
    if world is None or not is_within(url, world.origins):
        # An aborted navigation leaves the page where it is; a failed one shows the browser's own.
        reason = "Aborted" if is_page else "BlockedByClient"
        await _send_unless_gone(tab, "Fetch.failRequest", {**params, "errorReason": reason})
        return f"{url} is not allowed here"
    cookies = ""
    if tab.has_cookies is None:
        tab.has_cookies = False
    elif tab.has_cookies or paused.get("resourceType") in _COOKIED:
        cookies = await _find_cookies(tab, url)
        tab.has_cookies = tab.has_cookies or bool(cookies)
    response = await world.answer(build_request(paused, cookies))
    refusal = ""
    if response is None:
        response = NOT_FOUND
    elif len(response.body) > MAX_BODY_BYTES:
        size = len(response.body)
        refusal = f"an answer of {size} bytes exceeds the limit of {MAX_BODY_BYTES}"
        response = WebResponse(status=204) if is_page else TOO_LARGE
    elif is_page and not is_shown(response):
        response, refusal = WebResponse(status=204), f"{url} cannot be shown as a page"
    await _send_unless_gone(tab, "Fetch.fulfillRequest", {**params, **build_fulfilment(response)})
    return refusal


async def _find_cookies(tab: BrowserPage, url: str) -> str:
    """Return the cookies of a request, which the browser adds later than we look.

    Those of longer paths come first, as in a browser. Among equals it goes by the moment at which
    each was set, which is no order for cookies of one answer: here they go by name.
    """
    reply = await tab.cdp.send("Network.getCookies", {"urls": [url]})
    cookies: list[dict[str, Any]] = sorted(reply["cookies"], key=_rank_cookie)
    return "; ".join(f"{one['name']}={one['value']}" for one in cookies)


def _rank_cookie(cookie: Mapping[str, Any]) -> tuple[int, str]:
    return -len(cookie["path"]), cookie["name"]


async def _send_unless_gone(tab: BrowserPage, method: str, params: dict[str, Any]) -> None:
    """Send what may come too late: the page has gone on, and nobody waits for the answer."""
    from playwright.async_api import Error

    try:
        await tab.cdp.send(method, params)
    except Error:
        return

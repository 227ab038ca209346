"""Where a page may go, on the text of an address.

Mutants seen caught: credentials let through, the port left out of an origin, a backslash let
through, the host compared by its end, only `javascript:` refused by its kind.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_envs.web.actions import ACTIONS
from agentrl_envs.web.browser.policy import is_within, origin_of, resolve
from agentrl_envs.web.browser.traffic import is_shown
from agentrl_envs.web.episode_site import WebResponse

SITE = "http://pages.test"
HERE = f"{SITE}/a/b?c=d"

ALLOWED = {
    "/x": f"{SITE}/x",
    "x": f"{SITE}/a/x",
    "?q=1": f"{SITE}/a/b?q=1",
    "#top": f"{HERE}#top",
    SITE: SITE,
    "HTTP://PAGES.TEST/x": "HTTP://PAGES.TEST/x",
    "http://pages.test:80/": "http://pages.test:80/",
    "//pages.test/x": f"{SITE}/x",
    " /x ": f"{SITE}/x",
}
REFUSED = (
    *("file:///etc/passwd", "FILE:///etc/passwd", "javascript:1", "JaVaScRiPt:1", "data:,x"),
    *("about:blank", "chrome://crash", "view-source:http://pages.test/", "blob:http://pages.test/"),
    *("filesystem:http://pages.test/", "ws://pages.test/", "ftp://pages.test/", "devtools://x"),
    *("https://pages.test/", "http://pages.test:81/", "//127.0.0.1/", "http://127.0.0.1/"),
    *("http://pages.test@127.0.0.1/", "http://x:y@pages.test/", "http://@127.0.0.1/"),
    *("http:\\\\127.0.0.1/", "/\\127.0.0.1/", "http://pages.test.evil.example/", "http://"),
    *("http://evilpages.test/", "http://[pages.test/", "http://pages.test:x/", "java\nscript:1"),
    *("http://127.0.0.1#@pages.test/", "http://127.0.0.1?@pages.test/", "\x00file:///x"),
    "http://169.254.169.254/latest/meta-data/",
)


@pytest.mark.parametrize(("text", "url"), ALLOWED.items())
def test_what_is_of_the_site_is_resolved(text: str, url: str) -> None:
    assert resolve(text, base=HERE, origins=[SITE]) == (url, "")


@pytest.mark.parametrize("text", REFUSED)
def test_everything_else_is_refused_in_words(text: str) -> None:
    url, why = resolve(text, base=HERE, origins=[SITE])
    assert (url, bool(why)) == ("", True)


@pytest.mark.parametrize("text", ["file:///etc/passwd", "javascript:1", "data:,x", "about:blank"])
def test_a_kind_of_address_that_is_never_allowed_is_named(text: str) -> None:
    _, why = resolve(text, base=HERE, origins=[SITE])
    assert why == (
        f"addresses of the kind {text.partition(':')[0]}: are not allowed; the allowed addresses "
        f"are {SITE}"
    )


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({}, True),
        ({"Content-Type": "text/html; charset=utf-8"}, True),
        ({"content-type": "image/png"}, True),
        ({"content-type": "application/json"}, True),
        ({"content-type": "application/octet-stream"}, False),
        ({"content-type": "application/pdf"}, False),
        ({"content-type": "text/html", "Content-Disposition": "attachment; filename=a"}, False),
        ({"content-type": "text/html", "content-disposition": "ATTACHMENT"}, False),
        ({"content-type": "text/html", "content-disposition": "inline"}, True),
        ({"content-type": "text/html", "set-cookie": "a=1\ncontent-disposition: attachment"}, True),
    ],
)
def test_what_a_browser_would_download_is_not_shown(headers: dict[str, str], shown: bool) -> None:
    assert is_shown(WebResponse(headers=headers)) == shown


def test_a_redirect_and_an_empty_answer_are_shown_whatever_their_kind() -> None:
    headers = {"content-type": "application/octet-stream"}
    for status, shown in {204: True, 302: True, 399: True, 200: False, 400: False}.items():
        assert is_shown(WebResponse(status=status, headers=headers)) == shown


@given(st.text(max_size=60))
def test_whatever_is_written_stays_on_the_site(text: str) -> None:
    url, why = resolve(text, base=HERE, origins=[SITE])
    assert bool(url) != bool(why)
    assert not url or origin_of(url) == SITE


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://A.test:80/x", "http://a.test"),
        ("https://a.test:443", "https://a.test"),
        ("https://a.test:80", "https://a.test:80"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("file:///x", None),
        ("http:///x", None),
        ("x", None),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str | None) -> None:
    assert origin_of(url) == origin


def test_an_address_without_an_origin_is_nowhere() -> None:
    assert not is_within("file:///x", ["file:///x"])


def test_no_tool_runs_a_script() -> None:
    assert not {"evaluate", "execute", "javascript", "run", "eval"} & ACTIONS.keys()

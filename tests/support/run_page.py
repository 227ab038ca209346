"""The page of `agentrl view` in a real browser: how it is made, opened, and waited for."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from agentrl.view.document import page
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS = 60_000
"""Deadline of a page on a machine whose processors others keep."""


def write_page(file: Path, *folders: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Write the page of a run, or of two, and return its file."""
    with ExitStack() as opened:
        sources = [opened.enter_context(RunReader(one, environ=environ or {})) for one in folders]
        parts = page(sources, steps=StepRange(), limit=20_000)
        file.write_text("".join(parts), encoding="utf-8")
    return file


@contextmanager
def open_file(
    browser: "Browser", file: Path, *, place: str = "", width: int = 1280, theme: str = "dark"
) -> Generator["Page"]:
    """Open a page; what it asks for and complains of fails the test when it is over."""
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light",
        viewport={"width": width, "height": 800},
    )
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    asked: list[str] = []
    wrong: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(f"{file.as_uri()}{place}")
    opened.wait_for_selector("main")
    yield opened
    context.close()
    assert {url.split("#")[0] for url in asked if not url.startswith("data:")} == {file.as_uri()}
    assert wrong == []


def goto(view: "Page", place: str, selector: str) -> None:
    """Go to a place of the page, and wait for what is seen there."""
    view.evaluate("place => { location.hash = place; }", f"#/{place}")
    view.wait_for_selector(selector)
    settle(view)


def settle(view: "Page") -> None:
    """Wait until what was drawn last has its place: that comes a frame later."""
    view.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)))")


def until(view: "Page", expression: str, arg: object = None) -> None:
    """Wait until an expression holds in the page.

    Playwright's own waiting evaluates text inside the page, which the page's policy forbids.
    """
    deadline = monotonic() + WAIT_MS / 1000
    while not _evaluate(view, expression, arg):
        assert monotonic() < deadline, f"never came true: {expression}"
        view.wait_for_timeout(20)


def _evaluate(view: "Page", expression: str, arg: object) -> object:
    """Return the value of an expression; None where the page is loaded again meanwhile."""
    from playwright.sync_api import Error

    try:
        return view.evaluate(expression, arg)
    except Error as error:
        if "context was destroyed" not in error.message:
            raise
        return None


def text(view: "Page", selector: str) -> str:
    """Return what a reader sees of an element."""
    return view.inner_text(selector)


def found(view: "Page", words: str) -> None:
    """Wait until the table says how many it has found."""
    until(view, "want => document.querySelector('.found')?.innerText === want", arg=words)

"""A browser for the tests of the run page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    from agentrl_envs.web.browser.chromium import find

    with sync_playwright() as playwright:
        # Our own files in it, and nothing else.
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        yield browser
        browser.close()

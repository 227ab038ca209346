"""What the address of the run page holds: filters, order, a turn, a token."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.made_run import SAID, MadeRun
from tests.support.run_page import found, goto, open_file, text, until, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = MadeRun(folder=folder / "made", groups=10, size=4, said=SAID * 40).make()
    return write_page(folder / "made.html", run)


@pytest.fixture
def view(browser: "Browser", file: Path) -> "Iterator[Page]":
    with open_file(browser, file, place="#/trajectories?outcome=failed&sort=-id") as opened:
        yield opened


@pytest.mark.chromium
def test_filters_are_read_from_the_address_and_written_to_it(view: "Page") -> None:
    found(view, "2 of 40 trajectories")
    assert view.input_value("[aria-label='Outcome']") == "failed"
    view.select_option("[aria-label='Outcome']", "")
    for place, words in (
        ("reward=1..", "18 of 40 trajectories"),
        ("reward=1..1", "18 of 40 trajectories"),  # both ends are in it
        ("reward=0..0.5", "20 of 40 trajectories"),  # those that failed have none
        ("tool=multiply&step=2..2", "16 of 40 trajectories"),
        ("tool=divide", "0 of 40 trajectories"),
        ("entropy=0.1..", "38 of 40 trajectories"),
        ("entropy=..0.1", "0 of 40 trajectories"),
        ("q=What+is+9", "4 of 40 trajectories"),
        ("q=before+I+answer&everything=1", "40 trajectories"),
    ):
        goto(view, f"trajectories?{place}", ".list-row, .empty:not([hidden])")
        found(view, words)
        assert view.evaluate("location.hash") == f"#/trajectories?{place}"
    view.fill("[aria-label='Reward at most']", "0.5")
    found(view, "20 of 40 trajectories")
    want = "#/trajectories?q=before+I+answer&reward=..0.5&everything=1"
    assert view.evaluate("location.hash") == want
    view.click("button:has-text('Step')")
    assert view.evaluate("location.hash") == f"{want}&sort=-step"
    view.click(".list-row >> nth=0")
    until(view, "location.hash.startsWith('#/trajectory/')")
    view.click("nav >> text=Trajectories")
    found(view, "20 of 40 trajectories")
    assert view.evaluate("location.hash") == f"{want}&sort=-step"


IN_SIGHT = """
selector => {
  const { top, bottom } = document.querySelector(selector).getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}
"""


@pytest.mark.chromium
def test_an_address_leads_to_a_token(browser: "Browser", file: Path) -> None:
    with open_file(browser, file, place="#/trajectory/33?token=2230") as view:
        view.wait_for_selector(".token.here")
        until(view, IN_SIGHT, ".token.here")
        facts = text(view, ".token-facts")
        # After `What is 8 * 7?` and what was sampled, the tool's answer begins a turn.
        before = len("What is 8 * 7?") + len(SAID * 40) + len("multiply(8, 7) #1")
        assert view.evaluate("document.querySelector('.token.tool').dataset.place") == str(before)
        assert "2230" in facts
        view.click(f"[data-place='{before}']")
        assert view.evaluate("location.hash") == f"#/trajectory/33?token={before}"
        assert text(view, ".token-text") == "["
        view.keyboard.press("ArrowRight")
        assert view.evaluate("location.hash") == f"#/trajectory/33?token={before + 1}"
        link = view.get_attribute(".token-facts a", "href")
        assert link == f"#/trajectory/33?token={before + 1}"
        goto(view, "trajectory/33?token=99999", "aside p.bad")
        assert "There is no token 99999 here" in text(view, "aside")


@pytest.mark.chromium
def test_an_address_leads_to_a_turn(browser: "Browser", file: Path) -> None:
    with open_file(browser, file, place="#/trajectory/33?turn=1") as view:
        view.wait_for_selector(".message.here")
        until(view, IN_SIGHT, ".message.here .role")
        assert view.locator(".message.here").all_inner_texts()[0].startswith("multiply")
        assert view.get_attribute(".message a", "href") == "#/trajectory/33?turn=0"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kinds of failure and three tools, so that one filter is not the other."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = MadeRun(
        folder=folder / "mixed",
        groups=15,
        size=4,
        failures=("tool", "sandbox"),
        tools=("multiply", "add", "multiply_all"),
    )
    return write_page(folder / "mixed.html", kinds.make())


@pytest.mark.chromium
def test_a_filter_takes_its_own_kind_alone(browser: "Browser", mixed: Path) -> None:
    """Groups 4, 9 and 14 have a failure; no. 3 of each calls `multiply` again, as it begins anew.

    The branch, no. 3, has the turns of no. 0.
    """
    with open_file(browser, mixed, place="#/trajectories?outcome=failed_sandbox") as view:
        for place, words in (
            ("outcome=failed_sandbox", "1 of 60 trajectories"),
            ("outcome=failed_tool", "2 of 60 trajectories"),
            ("outcome=failed", "3 of 60 trajectories"),
            ("outcome=finished", "57 of 60 trajectories"),
            ("outcome=failed_", "0 of 60 trajectories"),
            ("tool=add", "15 of 60 trajectories"),
            ("tool=multiply_all", "15 of 60 trajectories"),
            ("tool=multiply", "30 of 60 trajectories"),
            ("tool=add&outcome=failed", "0 of 60 trajectories"),
            ("tool=multiply&outcome=failed&step=3..", "2 of 60 trajectories"),
            ("reward=1..0", "0 of 60 trajectories"),
            ("reward=x..0", "30 of 60 trajectories"),
        ):
            goto(view, f"trajectories?{place}", ".list-row, .empty:not([hidden])")
            found(view, words)
        goto(view, "groups?outcome=failed_sandbox", ".list-row")
        found(view, "1 of 15 groups")
        assert text(view, ".list-row").split()[:2] == ["3", "9"]
        options = view.locator("[aria-label='Outcome'] option").all_inner_texts()
        assert options == [
            "Any outcome",
            "any failure",
            "failed sandbox",
            "failed tool",
            "finished",
        ]


@pytest.mark.chromium
def test_an_address_that_names_nothing_is_told(browser: "Browser", file: Path) -> None:
    with open_file(browser, file) as view:
        assert view.locator(".notice").count() == 0
        for place in ("group/abc", "group/2:1", "trajectory/", "compare/1", "constructor", "tasks"):
            goto(view, place, ".overview .notice")
            words = f"Nothing on this page has the address #/{place}; this is the overview."
            assert text(view, ".notice") == words
        goto(view, "group/99", "main:has-text('There is no group 99')")
        goto(view, "compare/1/1:1", "main:has-text('There is no trajectory 1')")
        for place in ("overview", ""):
            goto(view, place, ".headlines")
            assert view.locator(".notice").count() == 0

"""The page in a real browser, from disk: every view, filter, search, keys, and no request at all.

Seen caught: a form that Enter did not submit, so that nothing said was ever searched.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentrl.view.shell import join_modules
from benchmarks.made_run import MadeRun
from benchmarks.viewer import MainThread
from tests.support.run_page import WAIT_MS, found, goto, open_file, settle, text, until, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SECRET = "correct-horse-battery"


def write(folder: Path, file: Path) -> Path:
    return write_page(file, folder, environ={"MY_API_KEY": SECRET})


def test_the_modules_share_one_scope() -> None:
    """Two functions of one name would be no error there: the later one would be both."""
    names = re.findall(
        r"^(?:async )?(?:function\*?|const|let|class) (\w+)", join_modules(), re.MULTILINE
    )
    names += re.findall(r"^let \[(.*)\]", join_modules(), re.MULTILINE)
    assert len(names) > 100
    assert {name for name in names if names.count(name) > 1} == set()


def test_every_module_is_on_the_page_and_imports_what_it_uses(root: Path) -> None:
    """The joined script finds a name without its import; who reads the module does not."""
    folder = root / "agentrl" / "view" / "page"
    modules = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.js")}
    exported = {
        name: module
        for module, code in modules.items()
        for name in re.findall(
            r"^export (?:async )?(?:function\*?|const) (\w+)", code, re.MULTILINE
        )
    }
    for module, code in modules.items():
        assert code.split("\n", 1)[0] in join_modules(), module
        lines = re.findall(r'^import \{(.*)\} from "\./(.*)";', code, re.MULTILINE)
        imported = {name.strip(): source for names, source in lines for name in names.split(",")}
        assert {name: exported.get(name) for name in imported} == imported, module
        body = re.sub(
            r"^import .*$|/\*\*[\s\S]*?\*/|//.*$|(?<!\.)\.\w+", "", code, flags=re.MULTILINE
        )
        for name, source in exported.items():
            used = re.search(rf"\b{name}\b", body) is not None
            if source != module and name in imported:
                assert used, (module, name)
            elif source != module and re.search(rf"(?<![\w\"]){name}\(", body):
                pytest.fail(f"{module} uses {name} and does not import it")


def test_the_page_names_no_other_place_and_runs_no_other_script(file: Path) -> None:
    html = file.read_text(encoding="utf-8")
    links = {*re.findall(r"https?://[^\"'`\s)]+", html)}
    assert links == {"http://www.w3.org/2000/svg"}
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>([\s\S]*?)</script>", html)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert rules["script-src"] == " ".join(f"'sha256-{one}'" for one in hashes)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = MadeRun(folder=folder / "made", groups=14, secret=SECRET).make()
    return write(run, folder / "made.html")


@pytest.fixture
def view(browser: "Browser", file: Path) -> "Iterator[Page]":
    with open_file(browser, file) as opened:
        yield opened


def rows(view: "Page") -> list[str]:
    return view.locator(".list-row").all_inner_texts()


@pytest.mark.chromium
def test_the_page_of_an_evaluation_shows_its_scores_by_family(
    browser: "Browser", tmp_path: Path
) -> None:
    """In the place of an empty chart and of steps."""
    folder = MadeRun(folder=tmp_path / "made", groups=1).make()
    estimate = {"mean": 0.5, "low": 0.21, "high": 0.79, "tasks": 6}
    scores = {"pass@1": estimate, "reward": {**estimate, "mean": 0.62}}
    report = {"confidence": 0.9, **scores, "tags": {"sums": scores, "odd": {"pass@1": None}}}
    (folder / "report.json").write_text(json.dumps(report))
    view = browser.new_page()
    view.set_default_timeout(WAIT_MS)
    view.goto(write(folder, tmp_path / "made.html").as_uri())
    table = view.locator(".scores tr")
    table.first.wait_for()
    assert [row.split("\t") for row in table.all_inner_texts()] == [
        ["Held-out tasks", "pass@1", "90 % interval", "Mean reward", "Tasks"],
        ["all tasks", "0.500", "0.210 to 0.790", "0.620", "6"],
        ["sums", "0.500", "0.210 to 0.790", "0.620", "6"],
        ["odd", "unknown", "every trajectory failed", "unknown", "0"],
    ]
    assert view.locator(".headlines").count() == 0
    assert "Steps" not in text(view, ".facts")
    view.close()


@pytest.mark.chromium
def test_the_overview_says_what_the_run_is(view: "Page") -> None:
    facts = text(view, ".facts")
    assert re.search(r"Groups\s+14\b", facts)
    assert re.search(r"Trajectories\s+112\b", facts)
    assert re.search(r"2 tool\b", facts)
    assert view.locator(".headlines svg .band").count() == 1
    assert view.locator(".headlines figure").count() == 6
    view.fill("[aria-label='Filter figures']", "tokens_per")
    view.wait_for_selector("details[open] figure")
    assert "tokens_per_s" in text(view, "details[open]")


@pytest.mark.chromium
def test_groups_are_filtered_and_sorted(view: "Page") -> None:
    goto(view, "groups", ".list-row")
    found(view, "14 groups")
    view.select_option("[aria-label='Outcome']", "failed_tool")
    found(view, "2 of 14 groups")
    assert [row.split()[1] for row in rows(view)] == ["4", "9"]
    view.click(".filters .quiet")
    found(view, "14 groups")
    view.fill("[aria-label='Step at least']", "3")
    view.fill("[aria-label='Step at most']", "3")
    found(view, "4 of 14 groups")
    view.click(".list-head >> text=Group")
    view.wait_for_selector("[aria-sort=descending]")
    assert [row.split()[1] for row in rows(view)] == ["11", "10", "9", "8"]


@pytest.mark.chromium
def test_trajectories_are_filtered_by_reward_tool_length_and_words(view: "Page") -> None:
    goto(view, "trajectories", ".list-row")
    found(view, "112 trajectories")
    view.fill("[aria-label='Reward at least']", "0.2")
    view.fill("[aria-label='Reward at most']", "0.3")
    found(view, "2 of 112 trajectories")
    assert all("truncated tokens" in row for row in rows(view))
    view.click(".filters .quiet")
    view.select_option("[aria-label='Tool']", "multiply")
    found(view, "112 trajectories")
    view.fill("[aria-label='Tokens at least']", "1000")
    found(view, "0 of 112 trajectories")
    assert "Nothing here passes" in text(view, ".empty")
    view.click(".filters .quiet")
    view.fill("#search", "What is 13 *")
    found(view, "8 of 112 trajectories")


@pytest.mark.chromium
def test_enter_searches_all_that_was_said(view: "Page") -> None:
    goto(view, "trajectories", ".list-row")
    view.fill("#search", "read WHAT it says before")
    found(view, "0 of 112 trajectories")
    view.press("#search", "Enter")
    found(view, "112 trajectories")
    view.fill("#search", "91")
    view.press("#search", "Enter")
    found(view, "8 of 112 trajectories")
    assert view.locator(".list-row").count() == 8


@pytest.mark.chromium
def test_the_search_reads_calls_as_they_are_shown(browser: "Browser", tmp_path: Path) -> None:
    """Mutant seen caught: calls searched as JSON, where a backslash stands before a quote."""
    run = MadeRun(folder=tmp_path / "made", groups=1, tools=('print("a")',)).make()
    with open_file(browser, write(run, tmp_path / "made.html")) as view:
        goto(view, "trajectories", ".list-row")
        view.fill("#search", 'PRINT("a")')
        found(view, "0 of 8 trajectories")
        view.press("#search", "Enter")
        found(view, "8 trajectories")


@pytest.mark.chromium
def test_a_group_is_a_tree_that_says_why_it_branched(view: "Page") -> None:
    goto(view, "group/4", ".tree .leaf")
    assert view.locator(".tree .leaf").count() == 8
    leaves: list[list[str]] = view.evaluate(
        "[...document.querySelectorAll('.tree .leaf')]"
        ".map(leaf => [...leaf.querySelectorAll('text')].map(x => x.textContent))"
    )
    assert leaves[0] == ["0", "0", "\u22120.429", "finished"]
    assert leaves[1] == ["7", "1", "+0.571", "finished"]  # it branches off the first
    assert ["3", "\u2013", "\u2013", "failed tool"] in leaves
    view.focus(".decision.branched")
    said = text(view, ".decision-note")
    assert "branched into 0/t1.0" in said
    assert re.search(r"draw\s+0.100", said)
    view.focus(".decision:not(.branched)")
    assert "the random draw was not below the probability" in text(view, ".decision-note")


@pytest.mark.chromium
def test_a_trajectory_shows_what_was_said_and_its_picture(view: "Page") -> None:
    goto(view, "trajectory/0", ".messages")
    assert view.evaluate("document.querySelector('.pictures img').naturalWidth") == 96
    said = text(view, ".messages")
    assert "I call the tool" in said
    assert "multiply" in said
    goto(view, "trajectory/35", ".messages .assistant")
    until(view, "document.querySelector('.main').innerText.includes('ZeroDivision')")
    assert "failed tool" in text(view, "aside")


@pytest.mark.chromium
def test_tokens_are_coloured_and_say_their_numbers(view: "Page") -> None:
    goto(view, "trajectory/33", ".messages")
    view.keyboard.press("t")
    view.wait_for_selector(".tokens.by-source")
    text_of = "[...document.querySelectorAll('.token')].map(x => x.textContent).join('')"
    said = view.evaluate(text_of)
    assert said.startswith("What is 4 * 7?I call the tool")
    place = said.index("I call")
    for key, colour in zip("earv", ("entropy", "advantage", "ratio", "age"), strict=True):
        view.keyboard.press(key)
        view.wait_for_selector(f".tokens.by-{colour}")
        own = f"getComputedStyle(document.querySelector('[data-place=\"{place}\"]'))"
        assert view.evaluate(f"{own}.backgroundColor") != "rgba(0, 0, 0, 0)"
        prompt = "getComputedStyle(document.querySelector('[data-place=\"0\"]'))"
        assert view.evaluate(f"{prompt}.backgroundColor") == "rgba(0, 0, 0, 0)"
    view.hover(f"[data-place='{place + 1}']")
    facts = dict(
        line.split("\n", 1) for line in view.locator(".token-facts dl div").all_inner_texts()
    )
    assert facts["place"] == str(place + 1)
    assert facts["source"] == "sampled"
    assert facts["ratio"] == "1.088"  # exp(sin(1) / 10)
    assert facts["entropy"] == "0.54053"  # cos(1) in two bytes
    assert facts["advantage"] == "0.57143"
    assert facts["age"] == "1"
    view.focus(".tokens")
    view.keyboard.press("ArrowLeft")
    until(
        view, "want => document.querySelector('.token-facts dd').innerText === want", arg=str(place)
    )


@pytest.mark.chromium
def test_two_trajectories_are_compared(view: "Page") -> None:
    goto(view, "trajectory/32", ".messages")
    view.keyboard.press("m")
    view.wait_for_selector("text=Compare 1 of 2")
    view.keyboard.press("j")
    until(view, "location.hash === '#/trajectory/33'")
    settle(view)
    view.keyboard.press("m")
    view.wait_for_selector("text=Compare 2 of 2")
    view.keyboard.press("c")
    view.wait_for_selector(".sides")
    settle(view)
    assert view.evaluate("location.hash") == "#/compare/32/33"
    said = (
        f"What is 4 * 7?{'I call the tool and read what it says before I answer. '}multiply(4, 7) #"
    )
    assert f"{len(said)} tokens and 3 messages in common" in text(view, ".parting-bar")
    assert view.locator(".message.same").count() == 6
    view.keyboard.press("t")
    view.wait_for_selector(".token.same")
    assert view.locator(".token.same").count() == 2 * len(said)


@pytest.mark.chromium
def test_everything_can_be_reached_by_keys(view: "Page") -> None:
    view.keyboard.press("?")
    view.wait_for_selector("dialog[open]")
    assert "colour tokens by source" in text(view, "dialog")
    view.keyboard.press("Escape")
    view.wait_for_selector("dialog[open]", state="hidden")
    settle(view)
    view.keyboard.press("2")
    view.wait_for_selector(".list-row")
    settle(view)
    view.keyboard.press("j")
    view.keyboard.press("j")
    view.wait_for_selector("[aria-selected=true] >> text=What is 1 ")
    view.keyboard.press("Enter")
    until(view, "location.hash === '#/group/1'")
    view.wait_for_selector(".leaf")
    settle(view)
    view.keyboard.press("j")
    view.wait_for_selector(".lane.current")
    view.keyboard.press("Enter")
    until(view, "location.hash === '#/trajectory/8'")
    settle(view)
    assert view.evaluate("document.activeElement.tagName") == "MAIN"
    view.keyboard.press("u")
    until(view, "location.hash === '#/group/1'")
    settle(view)
    view.keyboard.press("Escape")
    until(view, "location.hash === '#/groups'")
    settle(view)
    view.keyboard.press("/")
    until(view, "document.activeElement.id === 'search'")


@pytest.mark.chromium
def test_the_theme_is_the_system_s_until_it_is_chosen(view: "Page") -> None:
    theme = "document.documentElement.dataset.theme"
    assert view.evaluate(theme) == "dark"
    paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
    view.keyboard.press("d")
    until(view, f"{theme} === 'light'")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") != paper


@pytest.mark.chromium
def test_paper_is_light_and_has_no_controls(view: "Page") -> None:
    theme = "document.documentElement.dataset.theme"
    goto(view, "trajectory/0", ".messages")
    view.emulate_media(media="print")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.evaluate(theme) == "light"
    for selector in (".bar", ".switch", ".crumbs button"):
        assert not view.is_visible(selector), selector
    assert view.is_visible(".message")
    view.evaluate("dispatchEvent(new Event('afterprint'))")
    assert view.evaluate(theme) == "dark"


@pytest.mark.chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(view: "Page", theme: str) -> None:
    """WCAG AA: 4.5 for text, in every colour that text has here."""
    view.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    names = ["ink", "soft", "accent", "bad"]
    colours: dict[str, str] = view.evaluate(
        "names => Object.fromEntries(names.map(n => [n,"
        " getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()]))",
        [*names, "paper", "sunk", "raised"],
    )
    for name in names:
        for ground in ("paper", "sunk", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours such as `#0a6a70`, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        if len(digits) == 3:
            digits = "".join(2 * digit for digit in digits)
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.chromium
def test_no_secret_is_shown(view: "Page") -> None:
    goto(view, "trajectory/8", ".messages")
    assert "[redacted]" in text(view, ".messages")
    view.keyboard.press("t")
    view.wait_for_selector(".tokens")
    assert "█" * len(SECRET) in view.evaluate("document.querySelector('.tokens').textContent")
    assert SECRET not in view.content()


@pytest.mark.chromium
def test_invalid_values_in_files_are_listed_and_the_rest_is_shown(
    browser: "Browser", tmp_path: Path
) -> None:
    run = MadeRun(folder=tmp_path / "made", groups=4, size=2).make()
    (run / "metrics.jsonl").write_text(
        '{"step": 1, "time": 1.0, "entropy": [2]}\n{"step": 2, "time": "x", "entropy": 0.5}\n'
    )
    (run / "report.json").write_text('{"pass@1": {"mean": 0.5}, "tags": {"<b>": 3}}')
    with open_file(browser, write(run, tmp_path / "made.html")) as view:
        lines = view.locator(".faults li").all_inner_texts()
        assert len(lines) == 7
        assert lines[0].startswith("metrics.jsonl:1: entropy is a list, expected a finite number")
        assert lines[-1].startswith("report.json: pass@1.tasks is missing")
        assert "report.json: tags.<b> is 3, expected scores" in lines[3]
        goto(view, "groups", ".list-row")
        assert view.locator(".list-row").count() == 4


@pytest.mark.chromium
def test_what_is_controlled_has_a_name(view: "Page") -> None:
    for place, selector in (
        ("overview", ".facts"),
        ("groups", ".list-row"),
        ("group/0", ".leaf"),
        ("trajectory/0", ".messages"),
    ):
        goto(view, place, selector)
        nameless = view.evaluate(
            "[...document.querySelectorAll('button, input, select, a, [tabindex=\"0\"]')]"
            ".filter(x => !(x.innerText || x.textContent || x.getAttribute('aria-label')))"
            ".map(x => x.outerHTML)"
        )
        assert nameless == []


@pytest.mark.chromium
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_large_run_opens_and_filters_with_little_work(browser: "Browser", tmp_path: Path) -> None:
    """Generous bounds of processor time: benchmarks/viewer.py measures."""
    run = MadeRun(folder=tmp_path / "large", groups=150, size=8, per_step=25).make()
    file = write(run, tmp_path / "large.html")
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    thread = MainThread(opened)
    opened.goto(f"{file.as_uri()}#/trajectories", wait_until="commit")
    opened.wait_for_selector(".list-row")
    opening_s = thread.used_s()
    assert 0 < opening_s < 60
    assert opened.locator(".list-row").count() < 120
    opened.fill("#search", "What is 149 *")
    found(opened, "8 of 1,200 trajectories")
    assert 0 < thread.used_s() - opening_s < 30
    context.close()

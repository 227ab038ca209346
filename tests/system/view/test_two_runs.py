"""Two runs on one page: their curves, the trees of one task side by side, where they part."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.errors import ConfigError
from agentrl.view.document import name_runs
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader
from agentrl.view.serve import LiveRun, build_app
from benchmarks.made_run import MadeRun, make_tokenizer
from tests.support.run_page import found, goto, open_file, text, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ONE, OTHER = "I call the tool and read. ", "I call the tool and think. "


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    one = MadeRun(folder=folder / "one", name="one", said=ONE, groups=8, size=4)
    other = MadeRun(folder=folder / "two", name="two", said=OTHER, groups=10, size=4, per_step=5)
    return [one.make(), other.make()]


@pytest.fixture
def view(browser: "Browser", runs: list[Path]) -> "Iterator[Page]":
    file = write_page(runs[0].with_name("both.html"), *runs)
    with open_file(browser, file, width=1400) as opened:
        yield opened


@pytest.mark.chromium
def test_two_runs_lie_over_each_other(view: "Page") -> None:
    assert view.title() == "one and two - agentrl"
    chart = view.locator(".headlines figure").first
    assert chart.locator("polyline.run-0, polyline.run-1").count() == 2
    assert text(view, "[aria-label='Differences'] tbody").split() == ["run.name", '"one"', '"two"']
    goto(view, "groups?run=1", ".list-row")
    found(view, "10 groups")
    view.click("nav [aria-label=Run] >> text=one")
    found(view, "8 groups")


@pytest.mark.chromium
def test_a_task_is_found_in_both_with_where_they_part(view: "Page") -> None:
    goto(view, "tasks?q=is+5", ".list-row")
    found(view, "1 of 8 groups of the same task; 0 only in the first run, 2 only in the second")
    view.click(".list-row")
    view.wait_for_selector(".partings")
    assert view.evaluate("location.hash") == "#/task/5/1:5"
    assert view.locator(".tree").count() == 2
    # Of the four lanes of each tree; a branch parts where the trunk does.
    assert view.locator(".tree path.parting").count() == 8
    same = len(f"What is 5 * 7?{ONE}") - len("read. ")
    rows = [row.split() for row in view.locator(".partings tbody tr").all_inner_texts()]
    assert rows[1] == ["1", "1", "1", str(same), "0", "Compare"]
    view.click(".partings tr:has-text('Compare') >> nth=1 >> text=Compare")
    view.wait_for_selector(".sides")
    assert f"{same} tokens and 1 message in common. They part at token {same}, in turn 0" in text(
        view, ".parting-bar"
    )
    view.keyboard.press("t")
    parting = view.locator(".token.parting")
    assert parting.all_inner_texts() == ["r", "t"]
    view.keyboard.press("n")
    assert [one.get_attribute("data-place") for one in view.locator(".token.here").all()] == [
        str(same),
        str(same),
    ]
    view.keyboard.press("u")
    view.wait_for_selector("text=only in the second")


def test_a_run_is_asked_for_by_its_number(runs: list[Path]) -> None:
    from starlette.testclient import TestClient

    with RunReader(runs[0]) as one, RunReader(runs[1]) as other:
        app = build_app([LiveRun(run, steps=StepRange()) for run in (one, other)], token="t")
        with TestClient(app) as client:
            names = [
                client.get(f"/index?token=t&run={number}").json()["run"]["name"]
                for number in ("0", "1")
            ]
            assert names == ["one", "two"]
            assert client.get("/story/9?token=t&run=1").json()["task"] == "task-9"
            assert client.get("/story/9?token=t&run=0").status_code == 404
            for wrong in ("2", "-1", "x", "\u0661"):
                assert client.get("/index", params={"token": "t", "run": wrong}).status_code == 404


def test_the_command_takes_one_run_or_two(runs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "both.html"
    options = ["--no-open", "--out", str(output)]
    result = CliRunner().invoke(app, ["view", *map(str, runs), *options])
    assert result.exit_code == 0, result.output
    assert output.read_text().count('id="agentrl-1-chunk-') == 1
    result = CliRunner().invoke(app, ["view", *map(str, [*runs, runs[0]]), *options])
    assert isinstance(result.exception, ConfigError)
    assert "3 run folders are given" in str(result.exception)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "a" / "other"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("run: {name: same}\n")
    with RunReader(folders[0]) as one, RunReader(folders[1]) as two, RunReader(folders[2]) as three:
        assert name_runs([one, two]) == ["same (a/run)", "same (b/run)"]
        assert name_runs([one, three]) == ["same (run)", "same (other)"]
        assert name_runs([one]) == ["same"]
        assert name_runs([one, one]) == ["same", "same"]


@pytest.mark.chromium
def test_tasks_are_matched_whatever_the_numbers_of_their_groups(
    browser: "Browser", runs: list[Path], tmp_path: Path
) -> None:
    """Task 5 is group 5 of the first run and group 2 of the second; no. 3 of both is another id."""
    later = MadeRun(folder=tmp_path / "later", groups=7, size=6, tasks_from=3, name="later").make()
    with open_file(browser, write_page(tmp_path / "both.html", runs[0], later)) as view:
        goto(view, "tasks?q=5+*+7&sort=-gain", ".list-row")
        assert text(view, ".found") == (
            "1 of 5 groups of the same task; 3 only in the first run, 2 only in the second"
        )
        view.click(".list-row")
        view.wait_for_selector(".partings tbody tr")
        assert view.evaluate("location.hash") == "#/task/5/1:2"
        assert view.locator(".notice").count() == 0
        # Of 4 and 6 trajectories, the four numbers that are in both.
        assert view.locator(".partings tbody th").all_inner_texts() == ["0", "1", "2", "3"]
        links = [
            one.get_attribute("href") for one in view.locator(".partings a:text('Compare')").all()
        ]
        assert links == [
            "#/compare/20/1:12",
            "#/compare/21/1:13",
            "#/compare/22/1:14",
            "#/compare/23/1:15",
        ]
        goto(view, "compare/20/1:15", ".sides")
        assert "They part at token" in text(view, ".parting-bar")
        goto(view, "task/5/1:3", ".notice")
        assert text(view, ".notice") == "These are different tasks: task-5 and task-6."
    # No task in common.
    other = MadeRun(folder=tmp_path / "other", groups=3, size=2, tasks_from=50, name="other").make()
    with open_file(browser, write_page(tmp_path / "none.html", later, other)) as view:
        goto(view, "tasks", ".empty:not([hidden])")
        assert text(view, ".found") == (
            "0 groups of the same task; 7 only in the first run, 3 only in the second"
        )
        assert view.locator(".list-row").count() == 0


@pytest.mark.chromium
def test_groups_of_one_task_are_matched_in_order(browser: "Browser", tmp_path: Path) -> None:
    runs = [
        MadeRun(folder=tmp_path / name, groups=groups, size=size, tasks=3, name=name).make()
        for name, groups, size in (("six", 6, 2), ("five", 5, 3))
    ]
    with open_file(browser, write_page(tmp_path / "both.html", *runs)) as view:
        goto(view, "tasks", ".list-row")
        assert text(view, ".found") == (
            "5 groups of the same task; 1 only in the first run, 0 only in the second"
        )
        # One of two trajectories has a reward in the first run, one of three in the second.
        assert text(view, ".list-row").split()[-3:] == ["0.500", "0.333", "\u22120.167"]
        for row, address in ((0, "#/task/0/1:0"), (3, "#/task/3/1:3")):
            goto(view, "tasks", ".list-row")
            view.click(f".list-row >> nth={row}")
            view.wait_for_selector(".partings tbody tr")
            assert view.evaluate("location.hash") == address


@pytest.mark.chromium
@pytest.mark.parametrize("is_same", ["text", "id"])
def test_tokens_are_the_same_when_number_and_text_are(
    browser: "Browser", tmp_path: Path, is_same: str
) -> None:
    """The second run counts its letters backwards: as it samples, or only as it is read."""
    parts = json.loads(make_tokenizer().to_str())
    vocabulary = parts["model"]["vocab"]
    parts["model"]["vocab"] = {letter: 255 - id for letter, id in vocabulary.items()}
    backwards = Tokenizer.from_str(json.dumps(parts))
    sampler = backwards if is_same == "text" else make_tokenizer()
    made = MadeRun(folder=tmp_path / "one", groups=1, size=2).make()
    other = MadeRun(folder=tmp_path / "two", groups=1, size=2, tokenizer=sampler).make()
    backwards.save(str(other / "policy" / "tokenizer.json"))
    with open_file(browser, write_page(tmp_path / "both.html", made, other)) as view:
        goto(view, "compare/0/1:0", ".parting-bar")
        assert "0 tokens and 4 messages in common" in text(view, ".parting-bar")

"""A run of very many steps, and a conversation of very many messages.

Mutants seen caught: `Math.min` of all values at once; a line with every point; a line of the means
alone; all messages drawn; the window at the beginning whatever the address asks for.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentrl.env import Action, Observation
from agentrl.events.kinds import EnvExchange
from agentrl.message import Message
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from benchmarks.made_run import CONFIG
from tests.support.run_page import goto, open_file, text, until, write_page
from tests.support.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEPS, TURNS, ANSWERS = 130_000, 5, 200
POINTS = "document.querySelector('polyline').getAttribute('points').split(' ')"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "long"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG.format(name="long", steps=STEPS, redact="[]"))
    peaks = {1000: 9.0, 1001: -3.0}
    lines = (json.dumps({"step": at, "entropy": peaks.get(at, 1)}) for at in range(1, STEPS + 1))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    task = Task(prompt="Go on.", id="long")
    tree = Tree(task)
    with ScriptedStore.open(folder / "store") as store:
        group = store.open_group(task, order=0, seed=0, size=1, step=0)
        id = store.begin(group, sample=0, seed=0)
        end = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        store.turn(id, tree, end, EnvExchange.resetting(Observation(task.messages)))
        for turn in range(TURNS):
            sampled = Node(
                parent=end,
                source="sampled",
                token_ids=(2,),
                turn=turn,
                logprobs=(-1.0,),
                versions=(0,),
            )
            end = tree.add(sampled)
            answers = [Message("user", f"answer {turn}.{at}") for at in range(ANSWERS)]
            answered = (Observation(tuple(answers)), 0.0, turn == TURNS - 1, False, {})
            store.turn(id, tree, end, EnvExchange.stepping(Action(f"ask {turn}"), answered))
        leaf = Leaf(node=end, outcome=Finished(1.0), sample=0)
        tree.end(leaf)
        store.finish(id, tree, leaf)
    return write_page(folder.with_suffix(".html"), folder)


@pytest.mark.chromium
def test_a_line_of_many_steps_keeps_its_peaks_in_few_points(browser: "Browser", file: Path) -> None:
    with open_file(browser, file) as view:
        view.wait_for_selector(".headlines polyline")
        heights = [float(one.split(",")[1]) for one in view.evaluate(POINTS)]
        assert len(heights) < 4 * 1280
        assert len(set(heights)) == 3
        assert heights.index(min(heights)) < heights.index(max(heights)) < 100
        assert "1step 130000" in " ".join(text(view, ".headlines figcaption").split())


@pytest.mark.chromium
def test_a_long_conversation_is_drawn_around_what_is_asked_for(
    browser: "Browser", file: Path
) -> None:
    with open_file(browser, file, place="#/trajectory/0?turn=4") as view:
        view.wait_for_selector(".message.here")
        until(view, "document.querySelector('.message.here').getBoundingClientRect().top < 800")
        # Of 1 + 5 * 201 messages, the first of turn 4 is number 605.
        assert text(view, ".message.here >> nth=0").split() == [
            "user",
            "turn",
            "4",
            "answer",
            "3.0",
        ]
        assert view.locator(".message").count() == 400
        view.click("button:has-text('400 earlier messages of 405')")
        assert view.locator(".message").count() == 800
        goto(view, "trajectory/0", ".messages")
        assert view.locator(".message").count() == 400
        view.click("button:has-text('400 later messages of 606')")
        view.click("button:has-text('206 later messages of 206')")
        assert view.locator(".message").count() == 1006
        assert view.locator("button:has-text('later messages')").count() == 0
        goto(view, "trajectory/0?turn=7", ".notice")
        assert text(view, ".notice") == "There is no turn 7 here."

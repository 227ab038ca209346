"""What a policy, a tool and a task's author can write stays text on the page, and can be read."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentrl.env import Action, Observation
from agentrl.events.kinds import EnvExchange
from agentrl.message import Message, ToolCall
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Node, Tree
from agentrl.view.document import dump
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader
from agentrl.view.serve import LiveRun
from benchmarks.made_run import CONFIG
from tests.support.run_page import goto, open_file, text, write_page
from tests.support.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MARKUP = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
HOSTILE = f"{MARKUP}\ud800 \u202egnihton\u202c \x1b[31mred\x00 <!--agentrl:data-->"
SHOWN = f"{MARKUP}\ufffd <U+202E>gnihton<U+202C> ␛[31mred␀ <!--agentrl:data-->"
MANY = 9_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everybody writes what is hostile, everywhere."""
    folder = tmp_path_factory.mktemp("runs") / "hostile"
    (folder / "policy").mkdir(parents=True)
    name = json.dumps(f"{MARKUP}<!--agentrl:script-->")
    (folder / "config.yaml").write_text(CONFIG.format(name=name, steps=1, redact="[]"))
    vocabulary = {
        "model": {"type": "WordLevel", "vocab": {MARKUP: 0, "y" * 2**20: 1, "\u202ez": 2}}
    }
    (folder / "policy" / "tokenizer.json").write_text(json.dumps(vocabulary))
    task = Task(prompt=HOSTILE, id=HOSTILE, answer=HOSTILE, tags=(HOSTILE,))
    tree = Tree(task)
    with ScriptedStore.open(folder / "store") as store:
        group = store.open_group(task, order=0, seed=0, size=1, step=0)
        id = store.begin(group, sample=0, seed=0)
        root = tree.add(Node(parent=None, source="prompt", token_ids=(0, 1, 2), turn=0))
        store.turn(id, tree, root, EnvExchange.resetting(Observation(task.messages)))
        ids = (2,) * MANY
        said = Node(
            parent=root,
            source="sampled",
            token_ids=ids,
            turn=0,
            logprobs=(-1.0,) * MANY,
            versions=(0,) * MANY,
        )
        end = tree.add(said)
        action = Action(
            HOSTILE * 300,
            (ToolCall("c", HOSTILE, {HOSTILE: HOSTILE}),),
            malformed=(HOSTILE,),
        )
        seen = Observation((Message("tool", HOSTILE, tool_call_id="c", name=HOSTILE),))
        store.turn(id, tree, end, EnvExchange.stepping(action, (seen, 0.0, True, False, {})))
        leaf = Leaf(node=end, outcome=Failed("tool", HOSTILE), sample=0)
        tree.end(leaf)
        store.finish(id, tree, leaf)
    return folder


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return write_page(folder.with_suffix(".html"), folder)


def test_half_a_surrogate_pair_is_a_letter_that_is_not_known() -> None:
    assert dump({"a": "x\ud800y\U0001f600"}) == '{"a":"x\ufffdy\U0001f600"}'
    assert dump("\ude00\ud83d") == '"\ufffd\ufffd"'


def test_what_is_served_of_a_hostile_run_is_utf_8(folder: Path) -> None:
    with RunReader(folder, environ={}) as source:
        live = LiveRun(source, steps=StepRange())
        for told in (live.index(), live.story(0), live.live()):
            assert told is not None
            assert json.loads(told.encode())


@pytest.mark.chromium
def test_nothing_hostile_runs_and_all_of_it_is_read(browser: "Browser", file: Path) -> None:
    with open_file(browser, file) as view:
        assert text(view, "h1") == f"{MARKUP}<!--agentrl:script-->"
        goto(view, "groups", ".list-row")
        assert SHOWN[:100] in text(view, ".list-row")
        goto(view, "trajectories", ".list-row")
        assert SHOWN[-60:] in text(view, ".list-row")
        goto(view, "group/0", ".leaf")
        assert SHOWN in text(view, ".task")
        goto(view, "trajectory/0", ".messages")
        said = text(view, "main")
        assert said.count(SHOWN) >= 8
        assert "more characters are left out" in said
        assert view.evaluate("[window.owned, document.querySelectorAll('main img').length]") == [
            None,
            0,
        ]


@pytest.mark.chromium
def test_markup_of_text_is_refused_by_the_policy_itself(browser: "Browser", file: Path) -> None:
    view = browser.new_page()
    view.goto(file.as_uri())
    view.wait_for_selector("main")
    caught = view.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'ran'; }"
        " catch (error) { return error.name; } }"
    )
    assert caught == "TypeError"
    view.close()


@pytest.mark.chromium
def test_many_tokens_and_long_ones_come_when_they_are_asked_for(
    browser: "Browser", file: Path
) -> None:
    with open_file(browser, file, place="#/trajectory/0?token=8000") as view:
        view.wait_for_selector(".token.here")
        assert view.get_attribute(".token.here", "data-place") == "8000"
        assert view.locator(".token").count() == MANY + 3 - 6000
        assert text(view, ".token.here") == "<U+202E>z"
        view.click("button:has-text('earlier tokens of 6000')")
        view.click("button:has-text('earlier tokens of 2000')")
        assert view.locator(".token").count() == MANY + 3
        assert text(view, "[data-place='0']") == MARKUP
        assert text(view, "[data-place='1']").startswith("y" * 400 + "⏎[1,048,176 more characters")

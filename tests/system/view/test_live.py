"""How a served run stands: what is told of it, and the page that shows it, in a real browser.

Seen caught: stuck after more than a minute alone; a list without an end; the oldest reward;
infinite JSON; a look per reader; one look for ever; told without the token.
"""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentrl.env import Observation
from agentrl.evaluation.interval import IntervalEstimate
from agentrl.events.kinds import EnvExchange
from agentrl.task import Task
from agentrl.trajectory import Node, Tree
from agentrl.view.group_choice import StepRange
from agentrl.view.live import SHOWN_FLYING, build_live_state
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import LiveRollout, RunStatus, TimeShares
from agentrl.view.serve import LiveRun
from benchmarks.made_run import MadeRun
from tests.support.run_page import WAIT_MS, found, until
from tests.support.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def flying(number: int, quiet_s: float | None) -> LiveRollout:
    return LiveRollout(
        group=7, sample=number, task=f"t{number}", turns=2, used_s=9.0, quiet_s=quiet_s
    )


def standing(**changes: object) -> RunStatus:
    one = IntervalEstimate(mean=0.5, low=0.25, high=0.75, tasks=4)
    settings: dict[str, object] = {
        "name": "run",
        "phase": "running",
        "step": 3,
        "steps": 10,
        "figures": {"tokens_per_s": 120.0, "age/mean": 0.5, "age/max": 2.0},
        "step_s": 4.0,
        "rewards": [(2, one), (3, one)],
        "learning": 0.25,
        "shares": TimeShares(policy=0.5, world=0.3, other=0.2),
        "failures": {"tool": 2},
        "ended": 40,
        "groups": {"trained": 3, "open": 1},
        "flying": [flying(0, 60.0), flying(1, 59.9), flying(2, None)],
    }
    return RunStatus(**(settings | changes))  # pyright: ignore[reportArgumentType]


def test_a_standing_is_told() -> None:
    told = build_live_state(standing())
    assert told == {
        "phase": "running",
        "step": 3,
        "steps": 10,
        "leftS": 28.0,
        "stepS": 4.0,
        "tokensPerS": 120.0,
        "reward": {"step": 3, "mean": 0.5, "groups": 4, "low": 0.25, "high": 0.75},
        "learning": 0.25,
        "shares": {"policy": 0.5, "world": 0.3, "other": 0.2},
        "age": {"mean": 0.5, "max": 2.0},
        "failures": {"tool": 2},
        "ended": 40,
        "groups": {"open": 1, "trained": 3},
        "flying": 3,
        "stuck": 1,
        "slowest": [
            {
                "group": 7,
                "sample": number,
                "task": f"t{number}",
                "turns": 2,
                "usedS": 9.0,
                "quietS": quiet_s,
                "isStuck": quiet_s == 60.0,
            }
            for number, quiet_s in enumerate((60.0, 59.9, None))
        ],
        "faults": [],
    }


def test_what_is_not_known_is_null() -> None:
    alone = IntervalEstimate(mean=0.5, low=-math.inf, high=math.inf, tasks=1)
    told = build_live_state(standing(figures={}, shares=None, rewards=[(1, alone)], step_s=None))
    assert (told["tokensPerS"], told["age"], told["shares"], told["leftS"]) == (None,) * 4
    assert told["reward"] == {"step": 1, "mean": 0.5, "groups": 1, "low": None, "high": None}
    assert build_live_state(standing(rewards=[]))["reward"] is None
    json.dumps(told, allow_nan=False)


def test_the_list_of_the_slowest_is_bounded() -> None:
    told = build_live_state(standing(flying=[flying(n, 61.0) for n in range(50)]))
    assert (told["flying"], told["stuck"], len(told["slowest"])) == (50, 50, SHOWN_FLYING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "made"
    return MadeRun(folder=place, groups=10, open_groups=1, size=4).make()


def test_many_readers_share_one_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is known from the second look on, which comes a second later."""
    now_s = [100.0]
    monkeypatch.setattr("agentrl.view.serve.time.monotonic", lambda: now_s[0])
    with RunReader(folder) as source:
        live = LiveRun(source, steps=StepRange())
        first = live.live()
        now_s[0] += 0.5
        assert live.live() is first
        now_s[0] += 70.0
        told = json.loads(live.live())
    assert [one["quietS"] for one in json.loads(first)["slowest"]] == [None] * 4
    assert [one["quietS"] for one in told["slowest"]] == [70.5] * 4
    assert (told["stuck"], told["failures"]) == (4, {"tool": 2})


@contextmanager
def serve(*folders: Path) -> Generator[str]:
    """Serve runs in a process of their own; give the address."""
    command = [sys.executable, "-m", "agentrl.cli", "view", *map(str, folders)]
    command += ["--serve", "--port", "0", "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=60)


@contextmanager
def open_address(address: str, browser: "Browser") -> Generator["Page"]:
    """Open a served page; what it complains of fails the test when it is over."""
    opened = browser.new_page(color_scheme="dark", viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(address)
    yield opened
    opened.close()
    # Chromium itself tells of every answer that is an error.
    assert [one for one in wrong if "status of 503" not in one] == []


@pytest.fixture
def served(folder: Path, browser: "Browser") -> Iterator["Page"]:
    with serve(folder) as address, open_address(address, browser) as opened:
        yield opened


@pytest.mark.chromium
def test_the_served_page_shows_how_the_run_stands(served: "Page") -> None:
    served.wait_for_selector(".standing")
    said = served.inner_text(".standing")
    for words in (
        "ended, step 3 of 3",
        "2 of 40 2 tool",
        "trains 25 %",
        "waits for groups 75 %",
        "policy 54 %",
        "environment 6 %",
        "1 version at most 1",
        "4 trajectories left open",
    ):
        assert words in " ".join(said.split()), words
    served.click(".standing summary")
    served.click(".slowest a >> nth=0")
    served.wait_for_selector("main:has-text('Group')")
    assert "#/group/" in served.url


def play(folder: Path) -> None:
    """Open one more group, whose trajectory has made its reset and then its first turn."""
    task = Task(prompt="one more", id="more")
    with ScriptedStore.open(folder / "store", resume=True) as store:
        store.restore(position=store.position, step=4)
        group = store.open_group(task, order=11, seed=0, size=1, step=4)
        tree = Tree(task)
        root = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))
        id = store.begin(group, sample=0, seed=0)
        store.turn(id, tree, root, EnvExchange.resetting(Observation(task.messages)))


@pytest.mark.chromium
def test_what_is_new_comes_without_a_reload(served: "Page", folder: Path) -> None:
    served.evaluate("() => { window.isSame = true; location.hash = '#/groups?q=one+more'; }")
    found(served, "0 of 11 groups")
    play(folder)
    found(served, "1 of 12 groups")
    assert "one more" in served.inner_text(".list-row")
    assert served.evaluate("[window.isSame, document.querySelector('#search').value]") == [
        True,
        "one more",
    ]
    assert served.inner_text(".live") == "live"


@pytest.mark.chromium
def test_a_folder_that_goes_or_is_replaced_is_told(served: "Page", folder: Path) -> None:
    served.evaluate("() => { window.isSame = true; location.hash = '#/trajectories?sort=-id'; }")
    served.wait_for_selector(".list-row")
    shutil.rmtree(folder)
    until(served, "document.querySelector('.live').innerText.includes('is not a run folder')")
    assert served.locator(".list-row").count() > 0
    MadeRun(folder=folder, groups=3, size=2).make()
    until(served, "!window.isSame && document.querySelector('.list-row')")
    found(served, "6 trajectories")
    assert served.evaluate("location.hash") == "#/trajectories?sort=-id"


@pytest.mark.chromium
def test_a_run_goes_on_beside_one_whose_folder_is_gone(browser: "Browser", tmp_path: Path) -> None:
    """Mutant seen caught: an answer of one run thrown away with the error of the other."""
    one = MadeRun(folder=tmp_path / "one", groups=10, open_groups=1, size=4).make()
    other = MadeRun(folder=tmp_path / "other", groups=2, size=2).make()
    with serve(one, other) as address, open_address(f"{address}#/groups", browser) as view:
        found(view, "11 groups")
        shutil.rmtree(other)
        until(view, "document.querySelector('.live').innerText.includes('is not a run folder')")
        play(one)
        found(view, "12 groups")

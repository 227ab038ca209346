"""MiniWoB++: its 130 pages as tasks, each of which begins, goes on and ends; who can play, wins.

Most pages are opened and played by `make test-nightly` alone.

Mutants seen caught: any reward above 0 pays in full; a page that is not done pays; files from
outside the pages are served; a script that ends early is put into a page.
"""

import re
from collections.abc import AsyncGenerator
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import GoldPlayer, call, say
from agentrl.errors import ConfigError, EnvError
from agentrl.task import SPLITS, Task
from agentrl.testing import check_env
from agentrl_envs.families import MINIWOB
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.episode_site import WebRequest
from agentrl_envs.web.miniwob import MiniWobPack, pages, task_of
from agentrl_envs.web.miniwob.pack import SEED_RANGES
from agentrl_envs.web.miniwob.players import PLAYERS
from agentrl_envs.web.miniwob.world import MiniWobSite, compute_reward
from agentrl_envs.web.observation import read
from tests.support.examples import spread_cases

BROWSER = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]
PROMISING = ("click-collapsible", "drag-box", "form-sequence-3", "moving-items")
"""Of which all promises are proven here: things that unfold, are dragged, are chosen, and move by
themselves. `benchmarks/browsing/promises.py` proves them of all."""
GOLD_SEEDS = (7, 1000)
HARD = (
    task_of("click-pie", 225967953),
    task_of("click-pie-nodelay", 1),
    task_of("drag-sort-numbers", 1125117757),
    task_of("social-media", 1990573710),
)
"""A menu that unfolds for a second, and one whose first item was wanted, which takes no click; a
number that is there twice; a name with a user in it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60))
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(pool: BrowserPool) -> AsyncGenerator[WebEnv]:
    others = [family for family in MINIWOB if family not in PLAYERS]
    pack = MiniWobPack(families=[*PLAYERS], heldout_families=others)
    made = WebEnv(pack=pack, browser=pool, screen=(400, 300))
    yield made
    await made.close()


def test_the_families_are_those_of_the_package() -> None:
    package = find_spec("miniwob")
    assert package is not None
    assert package.submodule_search_locations
    there = Path(package.submodule_search_locations[0]) / "html" / "miniwob"
    assert sorted(file.stem for file in there.glob("*.html")) == sorted(MINIWOB)
    assert len(MINIWOB) == 130


def test_the_splits_share_no_problem_and_take_families_in_turn() -> None:
    pack = MiniWobPack(families=["click-test", "enter-text"], heldout_families="click-tab")
    train = list(islice(pack.tasks("train", 3), 40))
    heldout = list(islice(pack.tasks("heldout", 3), 40))
    assert [task.tags for task in train[:4]] == [("click-test",), ("enter-text",)] * 2
    assert {task.tags[0] for task in heldout} == {"click-test", "enter-text", "click-tab"}
    assert len({task.id for task in train + heldout}) == 80
    for split, tasks in zip(SPLITS, (train, heldout), strict=True):
        assert all(task.data["seed"] in SEED_RANGES[split] for task in tasks)
        assert all(task.split == split for task in tasks)
    assert SEED_RANGES["train"].stop <= SEED_RANGES["heldout"].start
    assert list(islice(pack.tasks("train", 3), 40)) == train
    assert list(islice(pack.tasks("train", 4), 40)) != train
    assert len(list(MiniWobPack(families="click-test", size=3).tasks("train", 0))) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"families": "click-tset"}, "Did you mean 'click-test'"),
        ({"families": []}, "families is empty"),
        ({"families": "click-test", "heldout_families": ["click-test"]}, "leaves none"),
        ({"families": "click-test", "heldout_families": ["x"]}, "no family 'x'"),
        ({"families": "click-test", "size": 0}, "size must be at least 1"),
    ],
)
def test_families_that_are_not_there_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MiniWobPack(**options)


@pytest.mark.parametrize(
    ("raw", "whole", "part"),
    [(1.0, 1, 1), (0.99, 0, 0.99), (0.0, 0, 0), (-1.0, 0, 0), (-0.5, 0, 0), (1.5, 1, 1)],
)
def test_only_the_full_reward_counts_unless_parts_are_asked_for(
    raw: float, whole: float, part: float
) -> None:
    assert compute_reward(raw, partial_credit=False) == whole
    assert compute_reward(raw, partial_credit=True) == part


def test_what_a_page_can_pay_is_its_full_reward() -> None:
    assert compute_reward(0.9, full=0.9, partial_credit=False) == 1
    assert compute_reward(0.9, full=0.9, partial_credit=True) == 1
    assert compute_reward(0.89, full=0.9, partial_credit=False) == 0
    assert compute_reward(0.89, full=0.9, partial_credit=True) == 0.89


class Said:
    """A page that returns what it is told to."""

    url = "http://miniwob.test/miniwob/click-test.html"

    def __init__(self, value: Any) -> None:
        self.value = value

    async def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("state", "said", "reward", "done"),
    [
        ({"done": False, "raw": 1.0, "reason": None}, None, 0, False),
        ({"done": False, "raw": 1.0, "reason": None}, "done", 0, True),
        ({"done": True, "raw": 1.0, "reason": None}, None, 1, True),
        ({"done": True, "raw": -1.0, "reason": "no"}, None, 0, True),
        (None, None, 0, True),
        (None, "done", 0, True),
    ],
)
async def test_the_page_decides_and_words_are_worth_nothing(
    state: Any, said: str | None, reward: float, done: bool
) -> None:
    verdict = await MiniWobSite("click-test", 1).judge(Said(state), said)
    assert (verdict.reward, verdict.done) == (reward, done)


async def test_a_page_without_an_instruction_is_an_infrastructure_failure() -> None:
    with pytest.raises(EnvError, match=r"click-test.html with seed 1 gave no instruction"):
        await MiniWobSite("click-test", 1).begin(Said(None))


@pytest.mark.parametrize(
    "url",
    [
        "http://miniwob.test/../__init__.py",
        "http://miniwob.test/%2e%2e/__init__.py",
        "http://miniwob.test//etc/passwd",
        "http://miniwob.test/miniwob/none.html",
        "http://miniwob.test/miniwob",
        "http://miniwob.test/a%00b",
        "http://elsewhere.test/miniwob/click-test.html",
        "https://miniwob.test/miniwob/click-test.html",
    ],
)
def test_nothing_but_the_pages_is_served(url: str) -> None:
    assert pages.answer(WebRequest(method="GET", url=url, headers={})) is None


def test_pages_are_served_with_their_kind_and_their_pictures() -> None:
    page = pages.answer(WebRequest(method="GET", url=pages.url_of("email-inbox"), headers={}))
    assert page is not None
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b'url("data:image/png;base64,' in page.body
    assert b"url(../common" not in page.body
    post = WebRequest(method="POST", url=pages.url_of("email-inbox"), headers={})
    assert pages.answer(post) is None


class References(HTMLParser):
    """The addresses that a page loads scripts and rules from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {"script": "src", "link": "href"}.get(tag)
        self.found += [value or "" for name, value in attrs if name == given]


def test_a_page_is_one_request() -> None:
    """With its scripts and its rules in it."""
    for family in MINIWOB:
        page = pages.answer(WebRequest(method="GET", url=pages.url_of(family), headers={}))
        assert page is not None
        parser = References()
        parser.feed(page.body.decode())
        assert parser.found == [], family


def test_what_cannot_stand_inside_a_page_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "miniwob").mkdir()
    (tmp_path / "miniwob" / "a.html").write_text(
        "<html><head>"
        + "".join(f'<script src="{name}.js"></script>' for name in ("fine", "ends", "odd", "none"))
        + "".join(f'<link rel="stylesheet" href="{name}.css">' for name in ("fine", "ends", "far"))
        + '<script src="../../out.js"></script></head></html>'
    )
    (tmp_path.parent / "out.js").write_text("outside()")
    for name, text in {
        "fine.js": "fine()",
        "ends.js": "'</SCRIPT>'",
        "odd.js": "'<!--<script>'",
        "fine.css": "a { b: url(data:x) }",
        "ends.css": "/* </style> */",
        "far.css": "a { b: url('far.woff') }",
    }.items():
        (tmp_path / "miniwob" / name).write_text(text)
    monkeypatch.setattr(pages, "root", lambda: tmp_path)
    url = f"{pages.ORIGIN}/miniwob/a.html"
    pages._read_file.cache_clear()  # pyright: ignore[reportPrivateUsage]
    page = pages.answer(WebRequest(method="GET", url=url, headers={}))
    assert page is not None
    body = page.body.decode()
    assert re.search(r"<script nonce=[\w-]+>fine\(\)</script>", body)
    assert re.search(r"<style nonce=[\w-]+>a { b: url\(data:x\) }</style>", body)
    for stays in ("ends.js", "odd.js", "none.js", "ends.css", "far.css", "../../out.js"):
        assert f'"{stays}"' in body
    assert "outside()" not in body
    pages._read_file.cache_clear()  # pyright: ignore[reportPrivateUsage]


class TestPages:
    """All 130 in a real browser."""

    pytestmark = BROWSER

    @pytest.mark.parametrize("family", spread_cases(MINIWOB, 16))
    async def test_a_page_begins_again_as_it_began(self, env: WebEnv, family: str) -> None:
        """Whatever was done in between, whether the page was loaded again or not."""
        task = task_of(family, 5)
        opening, _ = await env.reset(seed=0, options={"task": task})
        text = opening.messages[0].text
        page = read(text)
        assert page.goal
        assert page.nodes
        for node in [node for node in page.nodes if node.id is not None][:3]:
            step = await env.step(call("click", id=node.id))
            assert step[0].messages
            assert step[1] in (0, 1)
            if step[2]:
                break
        else:
            assert (await env.step(say("done")))[1:4] == (0, True, False)
        again, _ = await env.reset(seed=0, options={"task": task})
        assert again.messages[0].text == text

    @pytest.mark.parametrize("family", PROMISING)
    @pytest.mark.nightly
    async def test_promises_are_kept(self, pool: BrowserPool, family: str) -> None:
        env = WebEnv(pack=MiniWobPack(families=family), browser=pool, screen=(400, 300))
        tried = [call("wait", milliseconds=300), call("click", id=1), call("wait", milliseconds=9)]
        promises = await check_env(
            env, episodes=1, tasks=4, max_turns=40, timeout_s=120, grace_s=60, actions=tried
        )
        assert {"reset is deterministic", "forks do not interfere"} <= {*promises}
        assert ("gold scores" in promises) == (family in PLAYERS)

    @pytest.mark.parametrize("family", spread_cases(sorted(PLAYERS), 16))
    async def test_who_can_play_wins(self, env: WebEnv, family: str) -> None:
        for seed in GOLD_SEEDS:
            assert (await play_gold(env, task_of(family, seed), max_turns=40)).reward == 1

    async def test_the_centre_of_a_circle_is_paid_and_what_is_beside_it_is_not(
        self, env: WebEnv
    ) -> None:
        for seed in range(3):
            for off, wanted in ((0, 1), (4, 0)):
                opening, _ = await env.reset(
                    seed=0, options={"task": task_of("circle-center", seed)}
                )
                page = read(opening.messages[0].text)
                (circle,) = page.all("circle")
                x, y = (int(part) for part in circle.value("at").split(","))
                await env.step(call("click_at", x=x + off, y=y))
                step = await env.step(call("click", id=page.id("button", "Submit")))
                assert step[1:3] == (wanted, True), step[4]

    async def test_the_clock_of_an_episode_does_not_run_out(self, env: WebEnv) -> None:
        await env.reset(seed=0, options={"task": task_of("click-test", 1)})
        running = env._running()  # pyright: ignore[reportPrivateUsage]
        left = await running.visit.tab.evaluate("() => core.EPISODE_MAX_TIME")
        assert left > 10**9

    async def test_a_wrong_click_ends_it_without_a_reward(self, env: WebEnv) -> None:
        opening, _ = await env.reset(seed=0, options={"task": task_of("click-test-2", 1)})
        page = read(opening.messages[0].text)
        _, reward, terminated, _, info = await env.step(call("click", id=page.id("button", "TWO")))
        assert (reward, terminated, info["raw_reward"]) == (0, True, -1)

    async def test_a_button_under_another_one_is_there_if_a_strip_of_it_is(
        self, env: WebEnv
    ) -> None:
        """Four pixels of it are seen, and it is they that are clicked on."""
        task = task_of("click-test-2", 821678674)
        opening, _ = await env.reset(seed=0, options={"task": task})
        assert read(opening.messages[0].text).all("button", "ONE")
        assert (await play_gold(env, task)).reward == 1

    @pytest.mark.parametrize("task", HARD, ids=lambda task: task.id)
    async def test_what_players_lost_once_they_win(self, env: WebEnv, task: Task) -> None:
        assert (await play_gold(env, task, max_turns=40)).reward == 1

    async def test_seeds_make_different_problems(self, env: WebEnv) -> None:
        texts = set[str]()
        for seed in range(4):
            opening, _ = await env.reset(seed=0, options={"task": task_of("click-button", seed)})
            texts.add(opening.messages[0].text)
        assert len(texts) == 4


@pytest.mark.parametrize(
    ("families", "heldout", "plays"),
    [
        ("click-test", (), True),
        ("bisect-angle", (), False),
        (["click-test", "bisect-angle"], (), False),
        (["click-test", "bisect-angle"], "bisect-angle", True),
    ],
)
def test_an_environment_is_a_player_where_all_that_trains_can_be_played(
    families: str | list[str], heldout: str | tuple[str, ...], plays: bool
) -> None:
    env = WebEnv(pack=MiniWobPack(families=families, heldout_families=heldout))
    assert isinstance(env, GoldPlayer) == plays


def test_a_family_without_a_player_says_so() -> None:
    with pytest.raises(KeyError, match="simon-says"):
        MiniWobPack(families="all").gold(task_of("simon-says", 1), ())


def test_at_least_forty_families_are_played() -> None:
    assert len(PLAYERS) >= 40
    assert set(PLAYERS) <= set(MINIWOB)

"""The desktop as an environment: promises, actions, what is shown, and the gold of every task."""

from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

import agentrl
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Step, call, say
from agentrl.message import ToolCall
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.scheduler import RolloutScheduler
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.task import Task
from agentrl.testing import check_env
from agentrl.trajectory import Finished, Leaf
from agentrl_envs.accessibility.reading import read
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.pack import TEMPLATES
from tests.support.gui_play import gold_earns_one_and_doing_nothing_earns_nothing

pytestmark = [pytest.mark.gui, pytest.mark.asyncio(loop_scope="module")]

NAMES = [template.name for template in TEMPLATES if template.program == "form"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(DesktopSettings(desktops=3, warm=1, call_s=120, start_s=120, settle_s=20))
    yield made
    await made.close()


def first_task(**choices: Any) -> Task:
    (task,) = islice(template_pack(**choices).tasks("heldout", 1), 1)
    return task


def env_of(pool: DesktopPool, *templates: str, **settings: Any) -> GuiEnv:
    return GuiEnv(pack=template_pack(templates=templates), desktop=pool, **settings)


def shown(step: Step) -> str:
    return step[0].messages[-1].text


async def does(env: GuiEnv, action: str, **arguments: Any) -> Step:
    return await env.step(call("computer", action=action, **arguments))


@pytest.mark.parametrize("name", NAMES)
async def test_gold_earns_one(pool: DesktopPool, name: str) -> None:
    task = first_task(templates=[name])
    episode = await gold_earns_one_and_doing_nothing_earns_nothing(pool, task)
    assert 2 <= len(episode.actions) <= 15


@pytest.mark.slow
@pytest.mark.nightly
async def test_the_environment_keeps_its_promises() -> None:
    """Opened anew with every scope, as in a run."""
    settings = DesktopSettings(
        desktops=5,
        warm=0,
        idle_s=1,
        recycle_after=1000,
        still_s=0.15,
        call_s=120,
        start_s=120,
        settle_s=20,
    )
    env = GuiEnv(pack=template_pack(templates=["press"]), desktop=settings, max_turns=8)
    promises = await check_env(env, episodes=1, tasks=8, max_turns=8, timeout_s=120, grace_s=30)
    assert {"gold scores", "forks do not interfere", "reset is deterministic"} <= {*promises}
    assert "nothing is left after close" in promises


async def test_it_is_registered() -> None:
    env = agentrl.make("gui/Form-v0", levels=[1])
    (task,) = islice(env.tasks("train", seed=0), 1)
    assert task.data["template"] in NAMES
    await env.close()


# -- one episode -----------------------------------------------------------------------------------


async def test_what_cannot_be_done_is_answered_with_why(pool: DesktopPool) -> None:
    env = env_of(pool, "press")
    opening, _ = await env.reset(seed=0)
    page = read(opening.messages[-1].text)
    button = page.all("button")[0].id
    for arguments, why in (
        ({"action": "click"}, "either coordinate or element"),
        ({"action": "click", "coordinate": [1, 2], "element": button}, "but not both"),
        ({"action": "click", "coordinate": [5000, 5]}, "is not on the screen"),
        ({"action": "click", "coordinate": [-1, 5]}, "is not on the screen"),
        ({"action": "click", "coordinate": [1]}, "a coordinate must be [x, y]"),
        ({"action": "click", "element": 999}, "there is no element [999]"),
        ({"action": "drag", "coordinate": [1, 2]}, "to_coordinate or to_element"),
        ({"action": "type"}, "type needs text"),
        ({"action": "type", "text": "x" * 2001}, "too many"),
        ({"action": "type", "text": "\x07"}, "cannot be typed"),
        ({"action": "key"}, "key needs keys"),
        ({"action": "key", "keys": "nokey"}, "there is no key 'nokey'"),
        ({"action": "key", "keys": "ctrl+"}, "names no keys"),
        ({"action": "scroll", "amount": 0}, "amount must be"),
        ({"action": "wait", "seconds": 600}, "seconds must be"),
        ({"action": "fly"}, "action"),
        ({}, "action"),
    ):
        step = await env.step(call("computer", **arguments))
        assert why in shown(step), arguments
        assert step[1:4] == (0.0, False, False)
        assert [result.status for result in step[4]["tool_results"]] == ["error"]
        assert 'window "Panel" [1] active' in shown(step), "what is there is shown all the same"
    step = await env.step(call("fly", higher=True))
    assert "There is no tool 'fly'" in shown(step)
    await env.close()


async def test_several_calls_are_done_in_order_and_shown_once(pool: DesktopPool) -> None:
    env, task = env_of(pool, "press_in_order"), first_task(templates=["press_in_order"])
    opening, _ = await env.reset(options={"task": task})
    page = read(opening.messages[-1].text)
    ids = [page.id("button", label) for label in task.data["wanted"]["state"]]
    calls = [
        *({"action": "click", "element": id} for id in ids),
        {"action": "done"},
        {"action": "click", "element": ids[0]},
    ]
    action = Action(
        "", tuple(ToolCall(f"c{i}", "computer", given) for i, given in enumerate(calls))
    )
    step = await env.step(action)
    assert step[1:4] == (1.0, True, False)
    assert [message.text for message in step[0].messages] == [
        *["ok"] * 4,
        "The episode was over before this.",
    ]
    with pytest.raises(RuntimeError, match="is over"):
        await env.step(say(""))
    await env.close()


async def test_points_are_named_as_the_configuration_says(pool: DesktopPool) -> None:
    """The same button, by pixels of a smaller picture and in thousandths of the screen."""
    task = first_task(templates=["press"])
    (label,) = task.data["wanted"]["state"]
    for coordinates, scale in (("pixels", 0.5), ("normalised", 1.0)):
        env = env_of(
            pool,
            "press",
            coordinates=coordinates,
            observation=["axtree", "screenshot"],
            observation_kwargs={"boxes": True, "scale": scale},
        )
        opening, _ = await env.reset(options={"task": task})
        node = read(opening.messages[-1].text).find("button", label)
        (left, top), (wide, high) = node.at, node.size
        x, y = left + wide / 2, top + high / 2
        per = (scale, scale) if coordinates == "pixels" else (1000 / 1024, 1000 / 768)
        step = await does(env, "click", coordinate=[x * per[0], y * per[1]])
        assert read(shown(step)).find("button", label).has("focused")
        assert (await does(env, "done"))[1] == 1.0
        await env.close()


async def test_a_picture_shows_what_is_on_the_screen(pool: DesktopPool) -> None:
    import io

    from PIL import Image

    env = env_of(pool, "press", observation=["screenshot", "marks"],
                 observation_kwargs={"scale": 0.25})  # fmt: skip
    opening, _ = await env.reset(seed=0)
    plain, marked = (Image.open(io.BytesIO(i.data)) for i in opening.messages[-1].images)
    assert plain.size == marked.size == (256, 192)
    assert plain.getpixel((250, 185)) == (59, 110, 165), "the desktop's own colour"
    assert plain.tobytes() != marked.convert("RGB").tobytes()
    assert "window" not in opening.messages[-1].text, "no tree was asked for"
    await env.close()


async def test_a_desktop_that_is_used_again_looks_as_a_fresh_one() -> None:
    """Where windows come up and where the mouse is, too."""
    small = DesktopPool(DesktopSettings(desktops=1, warm=0, call_s=120, start_s=120, settle_s=20))
    env = env_of(small, "press", observation=["axtree", "screenshot"])
    first, info = await env.reset(seed=0)
    assert not info["reused_desktop"]
    button = read(first.messages[-1].text).all("button")[-1].id
    await does(env, "click", element=button)
    await does(env, "move", coordinate=[1, 1])
    again, info = await env.reset(seed=0)
    assert info["reused_desktop"]
    assert again == first
    await env.close()
    await small.close()


async def test_keys_that_an_episode_locked_are_released_for_the_next() -> None:
    small = DesktopPool(DesktopSettings(desktops=1, warm=0, call_s=120, start_s=120, settle_s=20))
    env = env_of(small, "add_row")
    for keys in (("Caps_Lock", "Num_Lock"), ("Caps_Lock",), ()):
        opening, _ = await env.reset(seed=0)
        await does(env, "click", element=read(opening.messages[-1].text).id("textbox", "New row"))
        step = await does(env, "type", text="aB1")
        assert read(shown(step)).find("textbox", "New row").value() == "aB1"
        for key in keys:
            await does(env, "key", keys=key)
    assert small.figures()["started"] == 1
    await env.close()
    await small.close()


async def test_in_a_run_every_episode_but_the_first_finds_its_desktop_set() -> None:
    """Where the policy thinks for as long as that takes."""
    small = DesktopPool(DesktopSettings(desktops=2, warm=0, call_s=120, start_s=120, settle_s=20))
    pack = template_pack(templates=["press", "enter_code"])
    stream, staged = iter(pack.tasks("train", 0)), list[bool]()

    async def play(seat: RolloutSlot) -> Leaf:
        env: Any = seat.watch_env(GuiEnv(pack=pack, desktop=small))
        _, info = await env.reset(seed=seat.seed, options={"task": seat.tree.task})
        staged.append(info["staged_desktop"])
        await small.wait_until_ready()
        reward = (await does(env, "done"))[1]
        await env.close()
        await small.wait_until_ready()
        return Leaf(node=None, outcome=Finished(reward), sample=seat.attempt.sample)

    gate = RolloutScheduler(
        policy=SchedulerPolicy(groups_per_step=2, group_size=2, concurrency=1),
        engine=ScriptedEngine(lambda request: []),
        play=play,
        tasks=lambda count: list(islice(stream, count)),
        seed=lambda number, task, sample: number,
    )
    async with gate:
        await gate.next_batch()
    assert staged == [False, True, True, True]
    await small.close()


async def test_an_episode_ends_after_its_turns_and_is_judged(pool: DesktopPool) -> None:
    env, task = env_of(pool, "press", max_turns=2), first_task(templates=["press"])
    (label,) = task.data["wanted"]["state"]
    opening, _ = await env.reset(options={"task": task})
    await does(env, "screenshot")
    button = read(opening.messages[-1].text).id("button", label)
    step = await does(env, "click", element=button)
    assert step[1:4] == (1.0, False, True)
    await env.reset(options={"task": task})
    assert (await does(env, "fail"))[1:4] == (0.0, True, False)
    await env.close()


async def test_text_beyond_ascii_is_typed_copied_and_pasted(pool: DesktopPool) -> None:
    """Every text of a field that was empty comes out of another one, through the clipboard."""
    text = 'Ünïcødé — "Ελλάδα" 日本 ☃ €5 #{}~^\\ Привет'
    env = env_of(pool, "add_row")
    opening, _ = await env.reset(seed=0)
    page = read(opening.messages[-1].text)
    entry = page.id("textbox", "New row")
    await does(env, "click", element=entry)
    page = read(shown(await does(env, "type", text=text)))
    assert page.find("textbox", "New row").value() == text
    await does(env, "key", keys="ctrl+a")
    await does(env, "key", keys="ctrl+c")
    await does(env, "key", keys="End")
    page = read(shown(await does(env, "key", keys="ctrl+v")))
    assert page.find("textbox", "New row").value() == text * 2
    await env.close()


async def test_more_different_characters_than_keys(pool: DesktopPool) -> None:
    """Keys are borrowed anew in the middle of a text, and between two."""
    env = env_of(pool, "add_row")
    opening, _ = await env.reset(seed=0)
    await does(env, "click", element=read(opening.messages[-1].text).id("textbox", "New row"))
    for start, count in ((0x4E00, 300), (0x4E40, 40), (0x4F00, 40)):
        text = "".join(map(chr, range(start, start + count)))
        await does(env, "key", keys="ctrl+a")
        page = read(shown(await does(env, "type", text=text)))
        assert page.find("textbox", "New row").value() == text
    await env.close()


async def test_forks_go_their_own_ways(pool: DesktopPool) -> None:
    env, task = env_of(pool, "add_row"), first_task(templates=["add_row"])
    opening, _ = await env.reset(options={"task": task})
    entry = read(opening.messages[-1].text).id("textbox", "New row")
    await does(env, "click", element=entry)
    before = await does(env, "type", text="one")
    fork = await env.fork()
    try:
        there = await does(fork, "type", text=" more")
        assert there[4]["fork"]["how"] == "replay"
        here = await does(env, "screenshot")
        assert shown(here) == shown(before)
        assert read(shown(there)).find("textbox", "New row").value() == "one more"
    finally:
        await fork.close()
        await env.close()

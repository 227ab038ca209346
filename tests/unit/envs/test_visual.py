"""Screens to look at: what is asked for can be seen, only seen, and is paid where it is clicked.

Mutants seen caught: a button twice as wide as it is drawn, a part's corner for its middle, width
and height exchanged in reading and in writing parts, pixels for parts, and words on the wrong side.
"""

import io
import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pictures

from agentrl.env import say
from agentrl.errors import ConfigError
from agentrl.registry import make
from agentrl.task import Task
from agentrl.testing.env import check_env
from agentrl_envs.visual import SeeButtonEnv
from agentrl_envs.visual.screen import BACKGROUND, COLOURS, ButtonScreen, side_of


def some(env: SeeButtonEnv, count: int = 40, split: Any = "train", seed: int = 0) -> list[Task]:
    return list(islice(env.tasks(split, seed=seed), count))


async def paid(env: SeeButtonEnv, task: Task, said: Sequence[str]) -> tuple[float, int]:
    """Return the reward of some answers, and after how many the episode ended."""
    await env.reset(options={"task": task})
    total = 0.0
    for number, text in enumerate(said, start=1):
        _, reward, terminated, truncated, _ = await env.step(say(text))
        total += reward
        if terminated or truncated:
            return total, number
    return total, 0


async def test_it_keeps_an_environments_promises() -> None:
    for shows in ("image", "text", "both"):
        await check_env(SeeButtonEnv(shows=shows, clicks=2))


async def test_only_the_button_that_is_named_is_paid() -> None:
    env = SeeButtonEnv(buttons=4)
    for task in some(env):
        screen = ButtonScreen.from_plain(task.data["screen"])
        for number, button in enumerate(screen.buttons):
            wanted = float(number == task.data["wanted"])
            assert await paid(env, task, [f"{button.x} {button.y}"]) == (wanted, 1)
        wanted_one = screen.buttons[task.data["wanted"]]
        edge = wanted_one.x + wanted_one.width // 2
        assert (await paid(env, task, [f"{edge}, {wanted_one.y}"]))[0] == 1
        assert (await paid(env, task, [f"{edge + 1} {wanted_one.y}"]))[0] == 0
        thought = f"<think>\n1 1?\n</think>\n\n{wanted_one.x} {wanted_one.y}"
        assert await paid(env, task, [thought]) == (1, 1)
        for nothing in ("", "here", "1", f"{wanted_one.x} {wanted_one.y} 3"):
            assert await paid(env, task, [nothing]) == (0, 1)


async def test_what_is_named_tells_the_buttons_apart_and_can_be_seen() -> None:
    for tells in ("colour", "shape"):
        env = SeeButtonEnv(templates=(tells,), width=160, height=120)
        for task in some(env):
            screen = ButtonScreen.from_plain(task.data["screen"])
            other = "shape" if tells == "colour" else "colour"
            assert len({getattr(button, tells) for button in screen.buttons}) == 3
            assert len({getattr(button, other) for button in screen.buttons}) == 1
            opening, _ = await env.reset(options={"task": task})
            (message,) = opening.messages
            assert message.text == task.data["asked"]
            assert getattr(screen.buttons[task.data["wanted"]], tells) in message.text
            with Pictures.open(io.BytesIO(message.images[0].data)) as drawn:
                assert drawn.size == (160, 120)
                assert drawn.getpixel((0, 0)) == BACKGROUND
                for button in screen.buttons:
                    assert drawn.getpixel((button.x, button.y)) == COLOURS[button.colour]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**40),
    width=st.integers(48, 300),
    height=st.integers(48, 300),
    buttons=st.integers(2, 4),
)
def test_buttons_lie_apart_and_on_the_screen(
    seed: int, width: int, height: int, buttons: int
) -> None:
    import random

    rng = random.Random(seed)
    screen = ButtonScreen.random(rng, width=width, height=height, buttons=buttons, tells="colour")
    for button in screen.buttons:
        half = button.width // 2
        assert half <= button.x < width - half + 1
        assert half <= button.y < height - half + 1
    pairs = [(a, b) for a in screen.buttons for b in screen.buttons if a is not b]
    assert not any(a.holds(b.x, b.y) for a, b in pairs)
    assert all(max(abs(a.x - b.x), abs(a.y - b.y)) >= a.width for a, b in pairs)
    assert ButtonScreen.from_plain(screen.to_plain()) == screen


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**20),
    width=st.integers(48, 300),
    height=st.integers(48, 300),
    more=st.data(),
)
async def test_a_place_in_parts_is_the_button_it_is_told_of(
    seed: int, width: int, height: int, more: st.DataObject
) -> None:
    least = math.ceil(max(width, height) / (2 * (side_of(width, height) // 2 - 1)))
    parts = more.draw(st.integers(least, 2000))
    env = SeeButtonEnv(width=width, height=height, parts=parts)
    (task,) = some(env, 1, seed=seed)
    told = [int(number) for number in str(task.answer).split()]
    assert all(0 <= number < parts for number in told)
    assert await paid(env, task, [str(task.answer)]) == (1, 1)
    with pytest.raises(ConfigError, match=f"parts must be at least {least}"):
        SeeButtonEnv(width=width, height=height, parts=least - 1)


async def test_with_ten_parts_a_digit_is_a_third_of_a_column() -> None:
    env = SeeButtonEnv(width=84, height=84, parts=10)
    thirds = {number for task in some(env, 60) for number in map(int, str(task.answer).split())}
    assert thirds == {1, 4, 5, 8}
    (task,) = some(env, 1)
    wanted = ButtonScreen.from_plain(task.data["screen"]).buttons[task.data["wanted"]]
    assert await paid(env, task, [f"{wanted.x} {wanted.y}"]) == (0, 1), "pixels are no parts"


async def test_the_words_come_where_they_are_wanted() -> None:
    for asks, at in (("before", 0), ("after", 1)):
        env = SeeButtonEnv(asks=asks, clicks=2)  # pyright: ignore[reportArgumentType]
        (task,) = some(env, 1)
        opening, _ = await env.reset(options={"task": task})
        again, *_ = await env.step(say("nowhere"))
        for shown in (opening, again):
            content = shown.messages[0].content
            assert not isinstance(content, str)
            assert [isinstance(part, str) for part in content].index(True) == at


def test_the_splits_share_no_screen_and_tasks_come_again() -> None:
    env = SeeButtonEnv()
    train, heldout = some(env, 300), some(env, 300, "heldout")
    assert not {t.fingerprint for t in train} & {t.fingerprint for t in heldout}
    assert {tag for t in heldout for tag in t.tags} == {"colour", "shape"}
    assert some(env, 20) == some(SeeButtonEnv(), 20) != some(env, 20, seed=1)


async def test_a_click_that_misses_is_shown() -> None:
    env = SeeButtonEnv(clicks=3)
    (task,) = some(env, 1)
    opening, _ = await env.reset(options={"task": task})
    again, reward, terminated, _, _ = await env.step(say("1 1"))
    assert (reward, terminated) == (0, False)
    assert again.messages[0].images != opening.messages[0].images
    words, _, _, _, _ = await env.step(say("where?"))
    assert words.messages[0].images == again.messages[0].images
    assert "two numbers" in words.messages[0].text
    assert await paid(env, task, ["1 1", "2 2", str(task.answer)]) == (1, 3)
    assert await paid(env, task, ["1 1", "2 2", "3 3", str(task.answer)]) == (0, 3)


def test_what_cannot_be_is_refused() -> None:
    for wrong in (
        {"templates": ("size",)},
        {"templates": ()},
        {"buttons": 5},
        {"width": 20},
        {"clicks": 0},
        {"shows": "sound"},
        {"asks": "never"},
        {"parts": 0},
    ):
        with pytest.raises(ConfigError):
            make("visual/SeeButton-v0", **wrong)

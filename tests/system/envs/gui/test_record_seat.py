"""A person at a desktop over VNC: what is seen, what is recorded, and that it happens again.

The viewer is one of our own, since its answers have to be watched; that others get along was seen
with vncdotool 1.4.2.
"""

import asyncio
from collections.abc import AsyncGenerator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy import ndarray

from agentrl.authoring.gold import GoldEpisode, play
from agentrl.authoring.human_player import PlayerLeft, TaskSkipped
from agentrl.env import Action, Observation
from agentrl.errors import ConfigError
from agentrl.learn.recording import append_recording, read_recordings, recording_of
from agentrl.task import Task
from agentrl_envs.accessibility.reading import read
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.vnc import VncPlayer
from agentrl_envs.gui.vnc.board import BUTTONS, HEIGHT, LINE_PIXELS
from agentrl_envs.recorded.experts import ExpertTrajectory
from tests.support.viewer import RETURN, Viewer, connect

pytestmark = [pytest.mark.gui, pytest.mark.asyncio(loop_scope="module")]

WIDE, HIGH = 800, 600
LIMIT_S = 240.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    settings = DesktopSettings(
        width=WIDE, height=HIGH, desktops=2, warm=0, call_s=120, start_s=120, settle_s=20
    )
    made = DesktopPool(settings)
    yield made
    await made.close()


def first_task(template: str) -> Task:
    (task,) = islice(template_pack(templates=[template]).tasks("train", 0), 1)
    return task


class Person:
    """Plays a task through a viewer, and looks at nothing but what the recorder asks next."""

    def __init__(self, env: GuiEnv, seat: VncPlayer, viewer: Viewer) -> None:
        self.env = env
        self.seat = seat
        self.viewer = viewer
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    async def act(self, new: Observation, seen: tuple[Any, ...]) -> Action:
        """Be the player, and let the hands know what is shown."""
        self.asked.put_nowait(new.messages[-1].text)
        return await self.seat.act(new, seen)

    async def middle(self, role: str, name: str, shown: str) -> tuple[int, int]:
        """Return the middle of what is shown by this role and name."""
        left, top, wide, high = (await self.env.places())[read(shown).id(role, name)]
        return int(left + wide / 2), int(top + high / 2)

    def press(self, button: Any) -> None:
        """Press a button of the board."""
        self.viewer.click(30 + 124 * BUTTONS.index(button), HIGH + HEIGHT - LINE_PIXELS // 2)

    async def fills(self, task: Task) -> None:
        """Do the whole of a task: click, type, click, say that it is done."""
        for label, value in task.data["wanted"]["new"].items():
            shown = await self.asked.get()
            self.viewer.click(*await self.middle("textbox", label, shown))
            await self.asked.get()
            self.viewer.type(value)
        shown = await self.asked.get()
        self.viewer.click(*await self.middle("button", "Save", shown))
        await self.asked.get()
        self.press("done")
        self.viewer.key(RETURN)


async def played(env: GuiEnv, task: Task, *, at: str = "") -> GoldEpisode:
    async with (
        asyncio.timeout(LIMIT_S),
        env.seat(at=at) as seat,
        connect(seat.address, seat.password) as viewer,
        asyncio.TaskGroup() as group,
    ):
        person = Person(env, seat, viewer)
        hands = group.create_task(person.fills(task))
        episode = await play(env, task, person.act, wants_places=True)
        await hands
    return episode


async def test_what_a_person_does_over_vnc_is_recorded_and_happens_again(
    pool: DesktopPool, tmp_path: Path
) -> None:
    task, file = first_task("fill"), tmp_path / "mine" / "forms.jsonl"
    env = GuiEnv(
        pack=template_pack(templates=["fill"]), desktop=pool, observation=["axtree", "screenshot"]
    )
    episode = await played(env, task, at=f"unix:{tmp_path / 'vnc'}")
    assert episode.reward == 1
    assert not (tmp_path / "vnc").exists()
    append_recording(file, recording_of(episode, player="human"))
    (recording,) = read_recordings(file)
    assert (recording.player, recording.task, recording.reward) == ("human", task.id, 1.0)
    expert = ExpertTrajectory.from_recording(recording)
    wanted = [*task.data["wanted"]["new"].values()]
    done = [turn.action.tool_calls[0].arguments for turn in expert.turns]
    assert [d["action"] for d in done] == [*["click", "type"] * len(wanted), "click", "done"]
    assert [d["text"] for d in done if d["action"] == "type"] == wanted
    for turn, arguments in zip(expert.turns, done, strict=True):
        assert "element" not in arguments or arguments["element"] in turn.places
    assert len(expert.opening[0].images) == 1
    await env.close()
    again = GuiEnv(pack=template_pack(templates=["fill"]), desktop=pool)
    await again.reset(options={"task": task})
    rewards = [(await again.step(turn.action))[1] for turn in expert.turns]
    await again.close()
    assert sum(rewards) == 1


async def test_points_that_mean_no_element_and_what_the_board_does(pool: DesktopPool) -> None:
    env, task = GuiEnv(pack=template_pack(templates=["press"]), desktop=pool), first_task("press")
    opening, _ = await env.reset(options={"task": task})
    (label,) = task.data["wanted"]["state"]
    async with (
        asyncio.timeout(LIMIT_S),
        env.seat() as seat,
        connect(seat.address, seat.password) as viewer,
    ):
        person = Person(env, seat, viewer)

        async def does() -> dict[str, Any]:
            action = await seat.act(opening, opening.messages)
            return dict(action.tool_calls[0].arguments)

        x, y = await person.middle("button", label, opening.messages[-1].text)
        viewer.click(x + 5, y - 3)
        number = read(opening.messages[-1].text).id("button", label)
        assert await does() == {"action": "click", "element": number}
        viewer.click(WIDE - 5, HIGH - 5, 2)
        assert await does() == {"action": "right_click", "coordinate": [WIDE - 5, HIGH - 5]}
        viewer.point(x, y, 1)
        viewer.point(x + 50, HIGH + 40, 1)
        viewer.point(x + 50, HIGH + 40)
        dragged = {"coordinate": [x, y], "to_coordinate": [x + 50, HIGH - 1]}
        assert await does() == {"action": "drag", **dragged}
        viewer.type("ab")
        person.press("done")
        viewer.type("4x")
        viewer.key(0xFF08)
        viewer.type("2")
        viewer.key(RETURN)
        assert await does() == {"action": "type", "text": "ab"}
        assert await does() == {"action": "done", "text": "42"}
        person.press("cannot be done")
        assert await does() == {"action": "fail"}
        for button, why in (("skip", TaskSkipped), ("leave", PlayerLeft)):
            person.press(button)
            with pytest.raises(why):
                await does()
    await env.close()


async def test_a_viewer_sees_the_screen_and_the_board(pool: DesktopPool) -> None:
    env, task = GuiEnv(pack=template_pack(templates=["press"]), desktop=pool), first_task("press")
    opening, _ = await env.reset(options={"task": task})

    def has_window(frame: ndarray) -> bool:
        return bool((frame[:HIGH, :, :3] > 200).all(axis=2).any())

    async with asyncio.timeout(LIMIT_S), env.seat() as seat:
        acting = asyncio.ensure_future(seat.act(opening, opening.messages))
        async with connect(seat.address, seat.password) as viewer:
            assert viewer.frame.shape == (HIGH + HEIGHT, WIDE, 4)
            await viewer.see_until(has_window)
            before = viewer.frame.copy()
            viewer.type("q")
            await viewer.see(changes=True)
            changed = np.flatnonzero((before != viewer.frame).any(axis=(1, 2)))
            assert changed.min() >= HIGH, "what is typed is shown on the board until it is done"
            assert (await acting).tool_calls[0].arguments == {"action": "type", "text": "q"}
        async with connect(seat.address, seat.password, version="003.003") as viewer:
            await viewer.see_until(has_window)
        with pytest.raises(PermissionError, match="password"):
            async with connect(seat.address, "nonsense"):
                pass
    with pytest.raises(OSError, match=r".*"):
        async with connect(seat.address, seat.password):
            pass
    await env.close()


async def test_a_desktop_is_not_shown_to_others() -> None:
    env = GuiEnv(pack=template_pack(templates=["press"]))
    for at in ("0.0.0.0:5900", "192.0.2.1:5900", "127.0.0.1", "unix:/nowhere/at/all"):
        with pytest.raises(ConfigError, match="shown"):
            async with env.seat(at=at):
                pass
    with pytest.raises(ConfigError, match="element or coordinate"):
        env.seat(points_by="name")

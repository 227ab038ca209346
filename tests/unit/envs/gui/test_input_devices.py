"""Clicks of two actions are no double click; those of one are. Locked keys are struck once more.

Mutants seen caught: two actions follow each other at once; a drag, or what follows it, does not
wait; the clicks of one action are kept apart, too; every lock key is struck, or none.
"""

import time
from types import SimpleNamespace

import pytest

from agentrl_envs.gui.inside.input_devices import InputDevices

KEY_PRESS, KEY_RELEASE = 2, 3
PRESS, RELEASE = 4, 5
CAPS_LOCK, NUM_LOCK = 66, 77
DOUBLE_CLICK_S = 0.15
"""Of the programs and the window manager; see `config`."""


class ServerTimes:
    """An X server that keeps the times of what the buttons do."""

    def __init__(self) -> None:
        self.presses: list[float] = []
        self.releases: list[float] = []

    def xtest_fake_input(self, kind: int, number: int = 0, *, x: int = 0, y: int = 0) -> None:
        times = {PRESS: self.presses, RELEASE: self.releases}.get(kind, [])
        times.append(time.monotonic())

    def sync(self) -> None:
        """Do nothing."""


def click(devices: InputDevices) -> None:
    devices.click(1, 1, "left", 1, [])


def drag(devices: InputDevices) -> None:
    devices.drag(1, 1, 9, 9)


@pytest.mark.parametrize(("first", "second"), [(click, click), (click, drag), (drag, click)])
def test_clicks_of_two_actions_are_apart(first: object, second: object) -> None:
    server = ServerTimes()
    devices = InputDevices(server, None, lambda: None)  # pyright: ignore[reportArgumentType]
    for action in (first, second):
        assert callable(action)
        action(devices)
    assert server.presses[1] - server.releases[0] > DOUBLE_CLICK_S


def test_a_double_click_is_one_action() -> None:
    server = ServerTimes()
    devices = InputDevices(server, None, lambda: None)  # pyright: ignore[reportArgumentType]
    devices.click(1, 1, "left", 2, [])
    assert server.presses[1] - server.releases[0] < DOUBLE_CLICK_S


class LockedServer:
    """An X server whose lock keys toggle their bit of the state when they are pressed."""

    def __init__(self, state: int) -> None:
        self.state = state
        self.pressed: set[int] = set()

    def screen(self) -> SimpleNamespace:
        state = SimpleNamespace(mask=self.state)
        return SimpleNamespace(root=SimpleNamespace(query_pointer=lambda: state))

    def xtest_fake_input(self, kind: int, code: int) -> None:
        if kind == KEY_PRESS:
            self.state ^= {CAPS_LOCK: 2, NUM_LOCK: 16}[code]
            self.pressed.add(code)
        elif kind == KEY_RELEASE:
            self.pressed.remove(code)

    def sync(self) -> None:
        """Do nothing."""

    def key(self, name: str) -> tuple[int, bool]:
        return {"Caps_Lock": CAPS_LOCK, "Num_Lock": NUM_LOCK}[name], False


@pytest.mark.parametrize("locked", [0, 2, 16, 18])
def test_what_is_locked_is_unlocked_and_nothing_stays_pressed(locked: int) -> None:
    server = LockedServer(locked)
    InputDevices(server, server, lambda: None).unlock()  # pyright: ignore[reportArgumentType]
    assert (server.state, server.pressed) == (0, set())

"""Clicks of two actions are no double click; those of one are.

Mutants seen caught: two actions follow each other at once; a drag, or what follows it, does not
wait; the clicks of one action are kept apart, too.
"""

import time

import pytest

from agentrl_envs.gui.inside.input_devices import InputDevices

PRESS, RELEASE = 4, 5
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

"""The mouse and the keyboard, by the X server's own test extension."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from agentrl_envs.gui.inside.keyboard import KeyboardMap

_X_KEY = (2, 3)
_X_BUTTON = (4, 5)
_X_MOTION = 6
_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
_KEY_S, _TEXT_S = 0.02, 1.0
"""Between two keys, and of a whole text at most: some programs miss keys that come at once."""
_OF_WINDOWS = {"alt", "alt_l", "option", "super", "super_l", "cmd", "command", "meta", "win"}
"""Modifiers of chords that may be the window manager's."""
_LOCKS = {2: "Caps_Lock", 16: "Num_Lock"}
"""Keys that stay locked, by their bit in the state of the pointer."""
_APART_S = 0.17
"""Between the clicks of two actions: more than a double click takes."""
_DRAG_STEPS = 8
_DRAG_STEP_S = 0.02


class InputDevices:
    """Mouse and keyboard of the agent."""

    def __init__(self, display: Any, keyboard: KeyboardMap, settle: Callable[[], object]) -> None:
        """`settle` waits until the programs have read what was typed."""
        self._display = display
        self._keyboard = keyboard
        self._settle = settle
        self._button_end_s = 0.0

    def move(self, x: int, y: int) -> None:
        """Put the pointer there."""
        self._display.xtest_fake_input(_X_MOTION, x=x, y=y)
        self._display.sync()

    def click(self, x: int, y: int, button: str, times: int, keys: list[str]) -> None:
        """Press and release a button, with keys held down."""
        self._keep_apart()
        number = _BUTTONS[button]
        key_codes = [self._keyboard.key(key)[0] for key in keys]
        self.move(x, y)
        self._send(_X_KEY[0], key_codes)
        for one in range(times):
            if one:
                self._display.sync()
                time.sleep(_KEY_S)
            self._display.xtest_fake_input(_X_BUTTON[0], number)
            self._display.xtest_fake_input(_X_BUTTON[1], number)
        self._send(_X_KEY[1], reversed(key_codes))
        self._display.sync()
        self._button_end_s = time.monotonic()

    def drag(self, x1: int, y1: int, x2: int, y2: int) -> None:
        """Move with the left button pressed, in steps, as programs expect it of a hand."""
        self._keep_apart()
        self.move(x1, y1)
        self._display.xtest_fake_input(_X_BUTTON[0], 1)
        for step in range(1, _DRAG_STEPS + 1):
            part = step / _DRAG_STEPS
            self.move(round(x1 + (x2 - x1) * part), round(y1 + (y2 - y1) * part))
            time.sleep(_DRAG_STEP_S)
        self._display.xtest_fake_input(_X_BUTTON[1], 1)
        self._display.sync()
        self._button_end_s = time.monotonic()

    def scroll(self, x: int, y: int, direction: str, amount: int) -> None:
        """Turn the wheel."""
        self.move(x, y)
        for _ in range(amount):
            for kind in _X_BUTTON:
                self._display.xtest_fake_input(kind, _WHEEL[direction])
        self._display.sync()

    def type(self, text: str) -> None:
        """Type a text."""
        pause_s = min(_KEY_S, _TEXT_S / len(text))
        for number, part in enumerate(self._keyboard.parts(text)):
            if number:
                self._settle()
            self._keyboard.prepare(part)
            for character in part:
                self._strike(self._keyboard.character(character))
                time.sleep(pause_s)

    def press(self, keys: list[str]) -> None:
        """Press keys together, released in the opposite order.

        Who switches windows takes the keyboard when it sees the chord, and waits for the modifier
        to come up: that must come after, so the chord is read first.
        """
        codes = [self._keyboard.key(key) for key in keys]
        # Shift alone decides between the two symbols of a key; in a chord it is named.
        shifted = len(codes) == 1 and codes[0][1]
        down = [*([self._keyboard.shift] if shifted else []), *(code for code, _ in codes)]
        self._send(_X_KEY[0], down)
        last, *modifiers = reversed(down)
        self._display.xtest_fake_input(_X_KEY[1], last)
        self._display.sync()
        if {key.lower() for key in keys[:-1]} & _OF_WINDOWS:
            self._settle()
        self._send(_X_KEY[1], modifiers)
        self._display.sync()

    def unlock(self) -> None:
        """Release the keys that are locked."""
        state = self._display.screen().root.query_pointer().mask
        for bit, key in _LOCKS.items():
            if state & bit:
                self.press([key])

    def _keep_apart(self) -> None:
        """Wait until a click would no longer be the second half of a double click."""
        time.sleep(max(0.0, self._button_end_s + _APART_S - time.monotonic()))

    def _strike(self, key: tuple[int, bool]) -> None:
        code, shifted = key
        down = [self._keyboard.shift, code] if shifted else [code]
        self._send(_X_KEY[0], down)
        self._send(_X_KEY[1], reversed(down))
        self._display.sync()

    def _send(self, kind: int, codes: Iterable[int]) -> None:
        for code in codes:
            self._display.xtest_fake_input(kind, code)

"""Gestures of a person: raw events of mouse and keyboard in, whole actions out. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from agentrl_envs.gui.vnc.keys import MODIFIERS, NAMES, character_of
from agentrl_tools.computer.computer import SCROLL_MAX, TYPED_MAX, Direction, Verb

Point = tuple[int, int]
PressedButton = Literal["left", "middle", "right"]
_BUTTONS: dict[int, PressedButton] = {0: "left", 1: "middle", 2: "right"}
"""By their bit in a pointer event."""
_WHEEL: dict[int, Direction] = {3: "up", 4: "down", 5: "left", 6: "right"}
_CLICKS: dict[tuple[str, int], Verb] = {
    ("left", 1): "click",
    ("left", 2): "double_click",
    ("left", 3): "triple_click",
    ("middle", 1): "middle_click",
    ("right", 1): "right_click",
}
DOUBLE_S = 0.4
"""Clicks that follow within it are one."""
TYPING_S = 1.0
"""Characters that follow within it are one text."""
WHEEL_S = 0.5
"""Notches of the wheel that follow within it are one scroll."""
NEAR_PIXELS = 6
"""A hand that moves no further between press and release clicks, and does not drag."""
_CHORD = ("ctrl", "alt", "super", "shift")


@dataclass(frozen=True, slots=True)
class PointerEvent:
    """Position of the mouse, and the pressed buttons, a bit each: left, middle, right, wheel."""

    at_s: float
    point: Point
    buttons: int


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key that went down or up, by its keysym."""

    at_s: float
    symbol: int
    down: bool


Event = PointerEvent | KeyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGesture:
    """One action, its points in pixels."""

    verb: Verb
    point: Point | None = None
    to: Point | None = None
    """End of a drag."""
    text: str = ""
    keys: str = ""
    direction: Direction = "down"
    amount: int = 0


Recognized = tuple["GestureRecognizer", tuple[InputGesture, ...]]
"""The hands as they are then, and the gestures that are over."""


@dataclass(frozen=True, slots=True)
class _Clicks:
    button: PressedButton
    point: Point
    keys: str
    count: int
    last_s: float


@dataclass(frozen=True, slots=True)
class _Scroll:
    direction: Direction
    point: Point
    amount: int
    last_s: float


@dataclass(frozen=True, slots=True)
class _Press:
    button: PressedButton
    point: Point
    keys: str


@dataclass(frozen=True, slots=True)
class GestureRecognizer:
    """State of the gestures in progress. `handle` and `expire` return the next one."""

    buttons: int = 0
    held: frozenset[str] = frozenset()
    """Modifiers that are down."""
    press: _Press | None = None
    clicks: _Clicks | None = None
    scroll: _Scroll | None = None
    text: str = ""
    typed_s: float = 0.0

    @property
    def due_s(self) -> float | None:
        """Time when what is begun is done if nothing follows; None where nothing is begun."""
        if self.clicks is not None and self.press is None:
            return self.clicks.last_s + DOUBLE_S
        if self.scroll is not None:
            return self.scroll.last_s + WHEEL_S
        return self.typed_s + TYPING_S if self.text else None

    def handle(self, event: Event) -> Recognized:
        """Return the hands after an event, and the gestures that it brought to an end."""
        hands, over = self.expire(event.at_s)
        if isinstance(event, KeyEvent):
            hands, more = hands._handle_key(event)
        else:
            hands, more = hands._handle_pointer(event)
        return hands, (*over, *more)

    def expire(self, now_s: float) -> Recognized:
        """Return the hands when nothing has followed until now, and the gestures that are over."""
        due_s = self.due_s
        return self.finish() if due_s is not None and now_s >= due_s else (self, ())

    def finish(self) -> Recognized:
        """Return the hands with nothing begun, and what was begun as a gesture."""
        over: list[InputGesture] = []
        if self.clicks is not None:
            verb = _CLICKS[self.clicks.button, self.clicks.count]
            at, keys = self.clicks.point, self.clicks.keys
            over.append(InputGesture(verb=verb, point=at, keys=keys))
        if self.scroll is not None:
            at, way, amount = self.scroll.point, self.scroll.direction, self.scroll.amount
            over.append(InputGesture(verb="scroll", point=at, direction=way, amount=amount))
        if self.text:
            over.append(InputGesture(verb="type", text=self.text))
        return replace(self, clicks=None, scroll=None, text=""), tuple(over)

    def _chord(self, *, shift: bool = True) -> list[str]:
        return [name for name in _CHORD if name in self.held and (shift or name != "shift")]

    def _handle_key(self, event: KeyEvent) -> Recognized:
        if modifier := MODIFIERS.get(event.symbol):
            modifiers = self.held | {modifier} if event.down else self.held - {modifier}
            return replace(self, held=modifiers), ()
        if not event.down:
            return self, ()
        hands, over = (self, ()) if self.text else self.finish()
        character, commanded = character_of(event.symbol), hands._chord(shift=False)
        if character is not None and not commanded:
            hands = replace(hands, text=hands.text + character, typed_s=event.at_s)
            hands, more = hands.finish() if len(hands.text) == TYPED_MAX else (hands, ())
            return hands, (*over, *more)
        name = NAMES.get(event.symbol) if character is None else character.lower()
        if name is None:
            return hands, over
        if name == "BackSpace" and hands.text and not hands._chord():
            return replace(hands, text=hands.text[:-1], typed_s=event.at_s), over
        # The sign on a key is made with Shift already; a letter is not.
        shifted = character is None or character.isalpha()
        chord = "+".join([*hands._chord(shift=shifted), name])
        hands, typed = hands.finish()
        return hands, (*over, *typed, InputGesture(verb="key", keys=chord))

    def _handle_pointer(self, event: PointerEvent) -> Recognized:
        hands, over = replace(self, buttons=event.buttons), tuple[InputGesture, ...]()
        went_down, went_up = event.buttons & ~self.buttons, self.buttons & ~event.buttons
        for bit, direction in _WHEEL.items():
            if went_down >> bit & 1:
                hands, more = hands._turn_wheel(direction, event)
                over = (*over, *more)
        for bit, button in _BUTTONS.items():
            if went_up >> bit & 1 and hands.press is not None and hands.press.button == button:
                hands, more = hands._release_button(hands.press, event)
                over = (*over, *more)
            elif went_down >> bit & 1 and hands.press is None:
                hands, more = hands._press_button(button, event)
                over = (*over, *more)
        return hands, over

    def _turn_wheel(self, direction: Direction, event: PointerEvent) -> Recognized:
        hands, over, amount = self, tuple[InputGesture, ...](), 1
        begun = self.scroll
        if begun is not None and begun.direction == direction and begun.amount < SCROLL_MAX:
            amount = begun.amount + 1
        else:
            hands, over = self.finish()
        point = event.point if amount == 1 or begun is None else begun.point
        return replace(hands, scroll=_Scroll(direction, point, amount, event.at_s)), over

    def _press_button(self, button: PressedButton, event: PointerEvent) -> Recognized:
        keys = "+".join(self._chord())
        begun = self.clicks
        goes_on = (
            begun is not None
            and (begun.button, begun.keys) == (button, keys)
            and self._is_near(begun.point, event.point)
        )
        hands, over = (self, ()) if goes_on else self.finish()
        return replace(hands, press=_Press(button, event.point, keys)), over

    def _release_button(self, press: _Press, event: PointerEvent) -> Recognized:
        hands = replace(self, press=None)
        if press.button == "left" and not self._is_near(press.point, event.point):
            hands, over = hands.finish()
            return hands, (*over, InputGesture(verb="drag", point=press.point, to=event.point))
        count = 1 if hands.clicks is None else hands.clicks.count + 1
        point = press.point if hands.clicks is None else hands.clicks.point
        clicks = _Clicks(press.button, point, press.keys, count, event.at_s)
        hands = replace(hands, clicks=clicks)
        more_can_follow = (press.button, count + 1) in _CLICKS
        return (hands, ()) if more_can_follow else hands.finish()

    def _is_near(self, one: Point, other: Point) -> bool:
        return math.dist(one, other) <= NEAR_PIXELS

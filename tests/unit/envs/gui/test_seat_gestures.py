"""What hands do becomes gestures: golden sequences, and properties of any sequence.

Mutants seen caught: clicks joined wherever they are, or whatever keys are held; Shift told of
signs, too; a backspace that takes nothing back.
"""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_envs.gui.vnc.gestures import (
    Event,
    GestureRecognizer,
    InputGesture,
    KeyEvent,
    PointerEvent,
)
from agentrl_envs.gui.vnc.keys import NAMES, character_of
from agentrl_tools.computer.computer import SCROLL_MAX, TYPED_MAX

SHIFT, CTRL, ALT = 0xFFE1, 0xFFE3, 0xFFE9
RETURN, TAB, BACKSPACE, LEFT = 0xFF0D, 0xFF09, 0xFF08, 0xFF51


def press(
    at_s: float, x: int, y: int, bit: int = 0, *, to: tuple[int, int] | None = None
) -> list[Event]:
    """Return a button that goes down at a point and comes up there, or at another one."""
    return [PointerEvent(at_s, (x, y), 1 << bit), PointerEvent(at_s + 0.05, to or (x, y), 0)]


def strike(at_s: float, *symbols: int) -> list[Event]:
    """Return keys that go down together and come up in the opposite order."""
    downs = [KeyEvent(at_s, symbol, True) for symbol in symbols]
    return [*downs, *(KeyEvent(at_s + 0.02, symbol, False) for symbol in reversed(symbols))]


def typed(at_s: float, text: str, *, apart_s: float = 0.1) -> list[Event]:
    return [e for i, c in enumerate(text) for e in strike(at_s + i * apart_s, symbol_of(c))]


def symbol_of(character: str) -> int:
    number = ord(character)
    return number if number < 0x100 else 0x01000000 + number


def recognize(events: list[Event]) -> list[InputGesture]:
    """Return all that was done in these events, in order."""
    hands, done = GestureRecognizer(), list[InputGesture]()
    for event in events:
        hands, over = hands.handle(event)
        done += over
    return [*done, *hands.finish()[1]]


CLICK = InputGesture(verb="click", point=(10, 20))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (press(0, 10, 20), [CLICK]),
        ([*press(0, 10, 20), *press(0.2, 12, 21)], [replace(CLICK, verb="double_click")]),
        (
            [*press(0, 10, 20), *press(0.2, 10, 20), *press(0.4, 10, 20)],
            [replace(CLICK, verb="triple_click")],
        ),
        (
            [*press(0, 10, 20), *press(0.1, 10, 20), *press(0.2, 10, 20), *press(0.3, 10, 20)],
            [replace(CLICK, verb="triple_click"), CLICK],
        ),
        ([*press(0, 10, 20), *press(0.9, 10, 20)], [CLICK, CLICK]),
        ([*press(0, 10, 20), *press(0.2, 40, 20)], [CLICK, replace(CLICK, point=(40, 20))]),
        (
            [*press(0, 10, 20, 2), *press(0.1, 10, 20, 2)],
            [replace(CLICK, verb="right_click")] * 2,
        ),
        (press(0, 10, 20, 1), [replace(CLICK, verb="middle_click")]),
        ([*press(0, 10, 20), *press(0.1, 10, 20, 2)], [CLICK, replace(CLICK, verb="right_click")]),
        (press(0, 10, 20, to=(80, 90)), [InputGesture(verb="drag", point=(10, 20), to=(80, 90))]),
        (press(0, 10, 20, to=(13, 23)), [CLICK]),
        (
            [*press(0, 10, 20), *press(0.1, 10, 20, to=(80, 90))],
            [CLICK, InputGesture(verb="drag", point=(10, 20), to=(80, 90))],
        ),
        (
            [KeyEvent(0, CTRL, True), *press(0.1, 10, 20), KeyEvent(0.3, CTRL, False)],
            [replace(CLICK, keys="ctrl")],
        ),
        (
            [*press(0, 10, 20), KeyEvent(0.1, CTRL, True), *press(0.2, 10, 20)],
            [CLICK, replace(CLICK, keys="ctrl")],
        ),
        (
            [*press(0, 5, 6, 4), *press(0.1, 7, 8, 4), *press(0.2, 7, 8, 4)],
            [InputGesture(verb="scroll", point=(5, 6), direction="down", amount=3)],
        ),
        (
            [*press(0, 5, 6, 3), *press(0.1, 5, 6, 6), *press(0.2, 5, 6, 5)],
            [
                InputGesture(verb="scroll", point=(5, 6), direction=direction, amount=1)
                for direction in ("up", "right", "left")
            ],
        ),
        (
            [*press(0, 5, 6, 4), *press(0.9, 5, 6, 4)],
            [InputGesture(verb="scroll", point=(5, 6), direction="down", amount=1)] * 2,
        ),
        (typed(0, "Grün 1/2 ≈ €"), [InputGesture(verb="type", text="Grün 1/2 ≈ €")]),
        (
            [*typed(0, "ab"), *typed(2, "c")],
            [InputGesture(verb="type", text="ab"), InputGesture(verb="type", text="c")],
        ),
        (
            [*typed(0, "abx"), *strike(0.4, BACKSPACE), *typed(0.5, "c")],
            [InputGesture(verb="type", text="abc")],
        ),
        (
            [*typed(0, "a"), *strike(0.2, BACKSPACE), *strike(0.3, BACKSPACE)],
            [InputGesture(verb="key", keys="BackSpace")],
        ),
        (
            [*typed(0, "ab"), *strike(0.3, RETURN)],
            [InputGesture(verb="type", text="ab"), InputGesture(verb="key", keys="Return")],
        ),
        ([*press(0, 10, 20), *typed(0.2, "a")], [CLICK, InputGesture(verb="type", text="a")]),
        ([*typed(0, "a"), *press(0.2, 10, 20)], [InputGesture(verb="type", text="a"), CLICK]),
        (
            [*press(0, 10, 20), *typed(0.1, "a"), *press(0.2, 10, 20)],
            [CLICK, InputGesture(verb="type", text="a"), CLICK],
        ),
        (strike(0, CTRL, ord("s")), [InputGesture(verb="key", keys="ctrl+s")]),
        (strike(0, CTRL, SHIFT, ord("S")), [InputGesture(verb="key", keys="ctrl+shift+s")]),
        (strike(0, CTRL, SHIFT, ord("+")), [InputGesture(verb="key", keys="ctrl++")]),
        (strike(0, SHIFT, TAB), [InputGesture(verb="key", keys="shift+Tab")]),
        (strike(0, SHIFT, 0xFE20), [InputGesture(verb="key", keys="shift+Tab")]),
        (strike(0, ALT, 0xFFC1), [InputGesture(verb="key", keys="alt+F4")]),
        (strike(0, SHIFT, ord("A")), [InputGesture(verb="type", text="A")]),
        (strike(0, 0xFE03, ord("@")), [InputGesture(verb="type", text="@")]),
        (strike(0, 0xFFB7), [InputGesture(verb="type", text="7")]),
        (strike(0, 0x1008FF11), []),
        ([PointerEvent(0, (1, 1), 0), PointerEvent(1, (50, 50), 0)], []),
        (
            [*strike(0, LEFT), *strike(0.1, LEFT)],
            [InputGesture(verb="key", keys="Left")] * 2,
        ),
    ],
)
def test_what_hands_do(events: list[Event], expected: list[InputGesture]) -> None:
    assert recognize(events) == expected


def test_what_is_begun_is_over_when_nothing_follows() -> None:
    hands, over = GestureRecognizer(), tuple[InputGesture, ...]()
    assert hands.due_s is None
    for event in press(1.0, 10, 20):
        hands, over = hands.handle(event)
        assert not over
    assert hands.due_s == pytest.approx(1.45)
    assert hands.expire(1.44) == (hands, ())
    hands, over = hands.expire(1.4501)
    assert over == (CLICK,)
    assert hands.due_s is None
    hands, _ = hands.handle(typed(2.0, "a")[0])
    assert hands.due_s == pytest.approx(3.0)
    hands, _ = hands.handle(PointerEvent(2.1, (3, 4), 1))
    assert hands.due_s is None, "a button that is down waits for its release"


def test_what_is_too_much_at_once_is_parted() -> None:
    notches = [e for i in range(SCROLL_MAX + 1) for e in press(i * 0.1, 1, 1, 4)]
    assert [g.amount for g in recognize(notches)] == [SCROLL_MAX, 1]
    text = "x" * (TYPED_MAX + 3)
    assert [len(g.text) for g in recognize(typed(0, text, apart_s=0.01))] == [TYPED_MAX, 3]


POINTS = st.tuples(st.integers(0, 99), st.integers(0, 99))
SYMBOLS = st.sampled_from([*map(ord, "aZ1 ~é"), 0x010020AC, RETURN, TAB, SHIFT, CTRL, 0xDEAD])
EVENTS = st.lists(
    st.one_of(
        st.builds(PointerEvent, st.floats(0, 2), POINTS, st.integers(0, 127)),
        st.builds(KeyEvent, st.floats(0, 2), SYMBOLS, st.booleans()),
    ),
    max_size=30,
)


@given(EVENTS)
def test_any_hands_make_whole_gestures(raw: list[Event]) -> None:
    """And it makes no difference whether somebody looks in between."""
    times = accumulate(event.at_s for event in raw)
    events = [replace(event, at_s=at_s) for event, at_s in zip(raw, times, strict=True)]
    hands, looked = GestureRecognizer(), list[InputGesture]()
    for event in events:
        hands, over = hands.expire(event.at_s)
        looked += over
        hands, over = hands.handle(event)
        looked += over
    looked += hands.finish()[1]
    done = recognize(events)
    assert done == looked
    for gesture in done:
        assert (gesture.point is not None) == (gesture.verb not in ("type", "key"))
        assert (gesture.to is not None) == (gesture.verb == "drag")
        assert bool(gesture.text) == (gesture.verb == "type")
        assert gesture.verb != "key" or gesture.keys
        assert (gesture.amount > 0) == (gesture.verb == "scroll")
    letters = "".join(
        c for e in events if isinstance(e, KeyEvent) and e.down and (c := character_of(e.symbol))
    )
    assert len("".join(g.text for g in done)) <= len(letters)


def test_a_key_types_or_has_a_name() -> None:
    assert not any(character_of(symbol) and NAMES.get(symbol) for symbol in range(0x10000))
    assert character_of(0x01000439) == "й"

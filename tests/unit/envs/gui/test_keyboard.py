"""Characters that have no key: which keys they borrow, and when one may be borrowed anew.

Mutants seen caught, here and in the other tests of the desktop: parts of a text that count no key
borrowed before, or are never cut; a pointer or a window manager that stays as the last episode left
it; files that stay; worn desktops that stay; only the X server looked at; a hang and a crash paid
with 0; a broken desktop judged; a screen of another size taken; covers ignored; normalised points
read as pixels; a truncated episode not judged; calls done after the end; other files in the folder
not counted; line breaks not counted; a workbook unpacked without a bound.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_envs.gui.inside.keyboard import KeyboardMap, UnknownKey

NAMED = {"Shift_L": 0xFFE1, "Return": 0xFF0D, "Tab": 0xFF09}
MEDIA = 0x1008FF11
ROOM = 4


class Display:
    """Five keys, one of them for a player, and three that are nobody's."""

    def __init__(self) -> None:
        self.display = SimpleNamespace(info=SimpleNamespace(min_keycode=8, max_keycode=16))
        self.keys: dict[int, list[int]] = {
            8: [NAMED["Shift_L"], 0],
            9: [NAMED["Return"], 0],
            10: [ord("a"), ord("A")],
            11: [MEDIA, MEDIA],
            12: [ord("b"), ord("B")],
            13: [0, 0],
            14: [0, 0],
            15: [0, 0],
            16: [NAMED["Tab"], 0],
        }
        self.borrowed: list[int] = []

    def get_keyboard_mapping(self, first: int, count: int) -> list[list[int]]:
        return [self.keys[code] for code in range(first, first + count)]

    def change_keyboard_mapping(self, code: int, symbols: list[list[int]]) -> None:
        assert code not in (8, 9, 10, 12, 16), "a key of somebody's"
        self.keys[code] = symbols[0]
        self.borrowed.append(code)

    def sync(self) -> None: ...


def keyboard() -> tuple[KeyboardMap, Display]:
    display = Display()
    return KeyboardMap(display, NAMED.get), display


def test_a_key_of_its_own_is_used_with_shift_where_it_needs_it() -> None:
    made, display = keyboard()
    assert made.character("a") == (10, False)
    assert made.character("B") == (12, True)
    assert made.character("\n") == made.key("enter") == made.key("Return") == (9, False)
    assert made.key("ctrl" if "Control_L" in NAMED else "shift") == (8, False)
    assert display.borrowed == []


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\u200b", "\ud800"])
def test_what_nobody_can_type_is_refused(character: str) -> None:
    with pytest.raises(UnknownKey, match="cannot be typed"):
        keyboard()[0].parts(f"a{character}")


def test_a_name_of_no_key_is_refused() -> None:
    with pytest.raises(UnknownKey, match="no key 'Blah'"):
        keyboard()[0].key("Blah")


@given(st.lists(st.text("abAB\nçdéfgh☃漢", max_size=30), max_size=4))
def test_no_key_means_two_characters_within_a_part(texts: list[str]) -> None:
    """Programs may read the presses of a part late: what a key means must hold until its end."""
    made, display = keyboard()
    for text in texts:
        parts = made.parts(text)
        assert "".join(parts) == text
        for part in parts:
            made.prepare(part)
            before = len(display.borrowed)
            codes = {character: made.character(character) for character in part}
            assert len(display.borrowed) == before, "everything was there after prepare"
            fresh = display.borrowed[before:]
            assert len(set(fresh)) == len(fresh)
            for character, (code, shifted) in codes.items():
                if character == "\n":
                    continue
                number = ord(character)
                symbol = number if number < 0x100 else 0x01000000 + number
                assert display.keys[code][shifted] == symbol


def test_a_text_is_cut_where_its_keys_run_out() -> None:
    made, display = keyboard()
    assert made.parts("çdéf") == ["çdéf"]
    assert made.parts("çdéfaaaçg") == ["çdéfaaaç", "g"]
    for part in made.parts("çdéf"):
        made.prepare(part)
    assert len(display.borrowed) == ROOM
    assert made.parts("çdéfg") == ["çdéf", "g"], "those borrowed before count too"

"""Keys by their names and characters by their key codes, those of no key included."""

from typing import Any

_NO_SYMBOL = 0
_UNICODE = 0x01000000
_MEDIA = range(0x1008FE00, 0x10090000)
"""Symbols of keys that start a player or a browser: no program here has a use for them."""
_WHITE = {"\n": "Return", "\t": "Tab"}
_ALIASES = {
    "alt": "Alt_L", "altgr": "ISO_Level3_Shift", "backspace": "BackSpace", "cmd": "Super_L",
    "command": "Super_L", "control": "Control_L", "ctrl": "Control_L", "del": "Delete",
    "delete": "Delete", "down": "Down", "arrowdown": "Down", "end": "End", "enter": "Return",
    "esc": "Escape", "escape": "Escape", "home": "Home", "insert": "Insert", "left": "Left",
    "arrowleft": "Left", "menu": "Menu", "meta": "Super_L", "minus": "minus", "option": "Alt_L",
    "pagedown": "Next", "page_down": "Next", "pageup": "Prior", "page_up": "Prior",
    "plus": "plus", "return": "Return", "right": "Right", "arrowright": "Right",
    "shift": "Shift_L", "space": "space", "super": "Super_L", "tab": "Tab", "up": "Up",
    "arrowup": "Up", "win": "Super_L",
}  # fmt: skip


class UnknownKey(Exception):
    """There is no key of this name, or no way to type this character."""


class KeyboardMap:
    """The keyboard of an X display. Characters without a key borrow one that nobody uses."""

    def __init__(self, display: Any, symbol_of: Any) -> None:
        self._display = display
        self._symbol_of = symbol_of
        self._codes: dict[int, tuple[int, bool]] = {}
        self._spare: list[int] = []
        self._borrowed: list[int] = []
        """Symbols on borrowed keys, the one that was wanted longest ago first."""
        first, last = display.display.info.min_keycode, display.display.info.max_keycode
        for code, symbols in enumerate(
            display.get_keyboard_mapping(first, last - first + 1), first
        ):
            if all(symbol == _NO_SYMBOL or symbol in _MEDIA for symbol in symbols):
                self._spare.append(code)
                continue
            for shifted, symbol in enumerate(symbols[:2]):
                if symbol != _NO_SYMBOL:
                    self._codes.setdefault(symbol, (code, bool(shifted)))
        self.shift = self._codes[symbol_of("Shift_L")][0]
        self._room = len(self._spare)

    def key(self, name: str) -> tuple[int, bool]:
        """Return the code of a key by its name, and whether Shift goes with it."""
        if len(name) == 1:
            return self.character(name)
        plain = _ALIASES.get(name.lower(), name)
        symbol = self._symbol_of(plain) or self._symbol_of(plain.capitalize())
        if not symbol:
            raise UnknownKey(
                f"there is no key {name!r}; examples of keys are Return, Tab, F2, a, ctrl"
            )
        return self._code(symbol)

    def character(self, character: str) -> tuple[int, bool]:
        """Return the code that types a character, and whether Shift goes with it."""
        return self._code(self._symbol(character))

    def parts(self, text: str) -> list[str]:
        """Return a text in parts that can each be typed with the keys there are.

        Programs learn of a borrowed key with its first press, so none is borrowed anew before they
        have read all presses of a part.
        """
        parts, borrowed = [""], set[int]()
        for character in text:
            symbol = self._symbol(character)
            if symbol not in self._codes or symbol in self._borrowed:
                borrowed.add(symbol)
            if len(borrowed) > self._room:
                parts.append("")
                borrowed = {symbol}
            parts[-1] += character
        return parts

    def prepare(self, part: str) -> None:
        """Have a key for every character of a part."""
        symbols = list(dict.fromkeys(self._symbol(character) for character in part))
        for symbol in symbols:
            if symbol in self._borrowed:
                self._borrowed.remove(symbol)
                self._borrowed.append(symbol)
        for symbol in symbols:
            self._code(symbol)

    def _symbol(self, character: str) -> int:
        if character in _WHITE:
            return self._symbol_of(_WHITE[character])
        number = ord(character)
        if not character.isprintable() and character != " ":
            raise UnknownKey(f"the character U+{number:04X} cannot be typed")
        latin = 0x20 <= number < 0x7F or 0xA0 <= number < 0x100
        return number if latin else _UNICODE + number

    def _code(self, symbol: int) -> tuple[int, bool]:
        if symbol not in self._codes:
            if self._spare:
                code = self._spare.pop()
            else:
                code, _ = self._codes.pop(self._borrowed.pop(0))
            self._display.change_keyboard_mapping(code, [[symbol, symbol]])
            self._display.sync()
            self._codes[symbol] = (code, False)
            self._borrowed.append(symbol)
        return self._codes[symbol]

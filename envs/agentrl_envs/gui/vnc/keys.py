"""The keys of a viewer: X's keysyms as characters, or as names that `computer` takes."""

_UNICODE = range(0x01000100, 0x01110000)
_EURO = 0x20AC
"""The one symbol of its legacy block that keyboards still have."""
MODIFIERS = {
    0xFFE1: "shift", 0xFFE2: "shift", 0xFFE3: "ctrl", 0xFFE4: "ctrl", 0xFFE9: "alt", 0xFFEA: "alt",
    0xFFE7: "alt", 0xFFE8: "alt", 0xFFEB: "super", 0xFFEC: "super", 0xFE03: "altgr",
}  # fmt: skip
"""`altgr` is no part of a chord: what it makes of a key is another character."""
NAMES = {
    0xFF08: "BackSpace", 0xFF09: "Tab", 0xFE20: "Tab", 0xFF0D: "Return", 0xFF8D: "Return",
    0xFF13: "Pause", 0xFF1B: "Escape", 0xFFFF: "Delete", 0xFF50: "Home", 0xFF51: "Left",
    0xFF52: "Up", 0xFF53: "Right", 0xFF54: "Down", 0xFF55: "Prior", 0xFF56: "Next", 0xFF57: "End",
    0xFF63: "Insert", 0xFF67: "Menu", 0xFF95: "Home", 0xFF96: "Left", 0xFF97: "Up", 0xFF98: "Right",
    0xFF99: "Down", 0xFF9A: "Prior", 0xFF9B: "Next", 0xFF9C: "End", 0xFF9E: "Insert",
    0xFF9F: "Delete", **{0xFFBE + number: f"F{number + 1}" for number in range(12)},
}  # fmt: skip
"""Of keys that type nothing. Those of the number pad are what they are without its lock."""
_PAD = {0xFFAA: "*", 0xFFAB: "+", 0xFFAC: ",", 0xFFAD: "-", 0xFFAE: ".", 0xFFAF: "/", 0xFFBD: "="}
_PAD_DIGITS = range(0xFFB0, 0xFFBA)


def character_of(symbol: int) -> str | None:
    """Return the character that a key types, if it types one."""
    if 0x20 <= symbol < 0x7F or 0xA0 <= symbol < 0x100 or symbol == _EURO:
        return chr(symbol)
    if symbol in _UNICODE:
        return chr(symbol - 0x01000000)
    if symbol in _PAD_DIGITS:
        return str(symbol - _PAD_DIGITS.start)
    return _PAD.get(symbol)

"""One exact replacement in a text: it happens at the only place it can, or not at all.

The work is linear in the text and the piece, whatever they are.
"""

from agentrl.errors import ToolError

_PLACES_MAX = 1000
_PLACES_SHOWN = 10
_SEARCHED_CHARACTERS = 2**24
"""Of a piece that is searched for again and again: each search reads all of it."""
_HINT_CHARACTERS_MAX = 2**20
_BLOCK_CHARACTERS = 2**12


def replace_once(text: str, old: str, new: str, *, path: str) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the line where it was.

    Raises `ToolError` unless `old` is in the text exactly once, overlaps counted, and differs from
    `new`.
    """
    if not old:
        raise ToolError("old_text is empty; give the text to replace")
    if old == new:
        raise ToolError("old_text and new_text are identical; there is nothing to edit")
    offsets = find_places(text, old)
    if not offsets:
        raise ToolError(f"old_text is not in {path!r}. {_explain_absence(text, old)}")
    if len(offsets) > 1:
        lines = ", ".join(f"{_count_line(text, at)}" for at in offsets[:_PLACES_SHOWN])
        more = ", ..." if len(offsets) > _PLACES_SHOWN else ""
        count = f"{len(offsets)} times" if len(offsets) < _places_max(old) else "very often"
        raise ToolError(
            f"old_text occurs in {path!r} {count}, starting on lines {lines}{more}; include the "
            "lines around the one you mean"
        )
    (at,) = offsets
    return text[:at] + new + text[at + len(old) :], _count_line(text, at)


def find_places(text: str, part: str) -> list[int]:
    """Return the offsets of `part` in `text`, overlaps included.

    Not more than 1000, and fewer of a long part, but always two where there are two.
    """
    offsets: list[int] = []
    at = text.find(part)
    while at >= 0 and len(offsets) < _places_max(part):
        offsets.append(at)
        at = text.find(part, at + 1)
    return offsets


def _places_max(part: str) -> int:
    return max(2, min(_PLACES_MAX, _SEARCHED_CHARACTERS // len(part)))


def _count_line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _explain_absence(text: str, old: str) -> str:
    if "\r\n" in text and "\r\n" not in old and old in text.replace("\r\n", "\n"):
        return "The lines of the file end in \\r\\n, but those of old_text end in \\n."
    piece = _strip_spaces(old) if len(text) <= _HINT_CHARACTERS_MAX else ""
    if piece and (line := _find_stripped(text, piece)):
        return f"It occurs with different white space, starting on line {line}; copy it exactly."
    first = next((line for line in old.split("\n") if line.strip()), "")
    if first and (at := text.find(first)) >= 0:
        return f"Its first line is line {_count_line(text, at)}, but the lines after it differ."
    return "Read the file again and copy the text exactly, without line numbers."


def _strip_spaces(text: str) -> str:
    return "".join(text.split())


def _find_stripped(text: str, piece: str) -> int | None:
    """Return the line where `piece` begins when no white space of the text is counted."""
    offset = _strip_spaces(text).find(piece)
    if offset < 0:
        return None
    start = 0
    while offset >= (count := len(_strip_spaces(text[start : start + _BLOCK_CHARACTERS]))):
        offset -= count
        start += _BLOCK_CHARACTERS
    visible = (at for at in range(start, len(text)) if not text[at].isspace())
    return _count_line(text, next(at for at in visible if (offset := offset - 1) < 0))

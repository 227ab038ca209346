"""One exact replacement in a text: it happens at the only place it can, or not at all."""

from agentrl.errors import ToolError

_PLACES_MAX = 1000
_PLACES_SHOWN = 10
_HINT_CHARACTERS_MAX = 2**20


def edited(text: str, old: str, new: str, *, path: str) -> tuple[str, int]:
    """Return the text with `old` replaced by `new`, and the line where it was.

    Raises `ToolError` unless `old` is in the text exactly once, overlaps counted, and differs from
    `new`.
    """
    if not old:
        raise ToolError("old_text is empty; give the piece to replace")
    if old == new:
        raise ToolError("old_text and new_text are the same; nothing to edit")
    found = places(text, old)
    if not found:
        raise ToolError(f"old_text is not in {path!r}. {_hint(text, old)}")
    if len(found) > 1:
        shown = ", ".join(str(_line(text, at)) for at in found[:_PLACES_SHOWN])
        more = ", ..." if len(found) > _PLACES_SHOWN else ""
        count = f"{len(found)} times" if len(found) < _PLACES_MAX else "very often"
        raise ToolError(
            f"old_text is in {path!r} {count}, beginning on lines {shown}{more}; add the lines "
            "around the one you mean"
        )
    (at,) = found
    return text[:at] + new + text[at + len(old) :], _line(text, at)


def places(text: str, part: str) -> list[int]:
    """Return where `part` begins in `text`, overlaps included; not more than 1000 places."""
    found: list[int] = []
    at = text.find(part)
    while at >= 0 and len(found) < _PLACES_MAX:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _hint(text: str, old: str) -> str:
    if "\r\n" in text and "\r\n" not in old and old in text.replace("\r\n", "\n"):
        return "The lines of the file end in \\r\\n, and those of old_text in \\n."
    words = old.split() if len(text) <= _HINT_CHARACTERS_MAX else []
    if words and (line := _line_without_spaces(text, words)):
        return f"With other white space it is, beginning on line {line}; copy it exactly."
    first = next((line for line in old.split("\n") if line.strip()), "")
    if first and (found := places(text, first)):
        return f"Its first line is, on line {_line(text, found[0])}, and what follows differs."
    return "Read the file again and copy the text exactly, without line numbers."


def _line_without_spaces(text: str, words: list[str]) -> int | None:
    """Return the line where `words` follow each other with any white space between and within."""
    wanted = "".join(words)
    kept = [at for at, character in enumerate(text) if not character.isspace()]
    at = "".join(text[place] for place in kept).find(wanted)
    return None if at < 0 else _line(text, kept[at])

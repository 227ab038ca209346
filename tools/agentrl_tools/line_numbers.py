"""Text as a model reads and points at it: by lines, counted from 1."""

from collections.abc import Sequence

LINE_CHARACTERS_MAX = 2000


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends; only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def numbered(text: str, first: int, last: int | None, *, characters_max: int) -> str:
    """Return lines `first` to `last` with their numbers, and a note of what was left out.

    At least one line is shown, however long `characters_max` is; a line over
    `LINE_CHARACTERS_MAX` is cut.
    """
    lines = lines_of(text)
    chosen = [
        f"{number:>6}\t{_cut(line)}"
        for number, line in enumerate(lines[first - 1 : last], start=first)
    ]
    shown = chosen[: max(1, _fitting(chosen, characters_max))]
    if len(shown) < len(chosen):
        next_line = first + len(shown)
        shown.append(f"(cut at line {next_line - 1} of {len(lines)}; go on with {next_line})")
    return "\n".join(shown)


def _cut(line: str) -> str:
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    return f"{line[:LINE_CHARACTERS_MAX]}... ({len(line) - LINE_CHARACTERS_MAX} more characters)"


def _fitting(lines: Sequence[str], characters_max: int) -> int:
    """Return how many of the lines have at most `characters_max` characters together."""
    room = characters_max
    count = 0
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        count += 1
    return count

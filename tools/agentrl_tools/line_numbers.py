"""Text as a model reads and points at it: by lines, counted from 1.

The work is linear in the text with a small constant, and what is built is bounded by what is shown:
a text of nothing but line feeds has as many lines as characters.
"""

LINE_CHARACTERS_MAX = 2000
_BLOCK_CHARACTERS = 2**16


def count_lines(text: str) -> int:
    """Return the number of lines; only a line feed ends a line, and the last may lack its end."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def number_lines(text: str, first: int, last: int | None, *, characters_max: int) -> str:
    """Return lines `first` to `last` with their numbers, and a note of what was left out.

    At least one line is shown, however small `characters_max` is; a line over
    `LINE_CHARACTERS_MAX` is cut.
    """
    line_count = count_lines(text)
    last = line_count if last is None else min(last, line_count)
    start, room = _start_of_line(text, first), characters_max
    lines: list[str] = []
    for number in range(first, last + 1):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = f"{number:>6}\t{_cut_line(text, start, end)}"
        room -= len(line) + 1
        if room < 0 and lines:
            lines.append(f"(cut at line {number - 1} of {line_count}; continue from {number})")
            break
        lines.append(line)
        start = end + 1
    return "\n".join(lines)


def _start_of_line(text: str, number: int) -> int:
    """Find the beginning of a line: whole blocks are counted, one is searched."""
    remaining_lines, start = number - 1, 0
    while remaining_lines > (count := text.count("\n", start, start + _BLOCK_CHARACTERS)):
        remaining_lines -= count
        start += _BLOCK_CHARACTERS
    for _ in range(remaining_lines):
        start = text.index("\n", start) + 1
    return start


def _cut_line(text: str, start: int, end: int) -> str:
    if (left_out := end - start - LINE_CHARACTERS_MAX) <= 0:
        return text[start:end]
    return f"{text[start : start + LINE_CHARACTERS_MAX]}... ({left_out} more characters)"

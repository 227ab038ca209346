"""Words of a Dockerfile: quotes, escapes and variables, as its instructions read them."""

import re
from collections.abc import Iterator, Mapping

_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([A-Za-z_]\w*)(:?[-+])?")
_SPECIAL = frozenset("0123456789@*#?!-$")


def expand_word(text: str, variables: Mapping[str, str]) -> str:
    """Return a text without its quotes and escapes, with the values of its variables.

    `$NAME`, `${NAME}`, and with `:-`, `-`, `:+` and `+` a word for one that is empty or not set, or
    is. Nothing is replaced between single quotes. Raises `ValueError` for what has no end, and for
    other replacements.
    """
    parts: list[str] = []
    at, in_quotes = 0, False
    while at < len(text):
        character = text[at]
        if character == "'" and not in_quotes:
            end = text.find("'", at + 1)
            if end < 0:
                raise ValueError(f"{text!r} has a quote without an end")
            parts.append(text[at + 1 : end])
            at = end + 1
        elif character == '"':
            in_quotes = not in_quotes
            at += 1
        elif character == "\\" and at + 1 < len(text):
            escaped = text[at + 1]
            parts.append(f"\\{escaped}" if in_quotes and escaped not in '"$\\' else escaped)
            at += 2
        elif character == "$":
            value, at = _expand_variable(text, at, variables)
            parts.append(value)
        else:
            parts.append(character)
            at += 1
    if in_quotes:
        raise ValueError(f"{text!r} has a quote without an end")
    return "".join(parts)


def parse_pairs(
    text: str, variables: Mapping[str, str], *, needs_value: bool
) -> dict[str, str | None]:
    """Return the variables of `NAME=value ...`, expanded; None for a name without a value.

    Each value sees the variables of before, not those of this text. With `needs_value` the old form
    `NAME value` is read, too. Raises `ValueError` for what is neither.
    """
    name, _, rest = text.partition(" ")
    if needs_value and "=" not in name:
        if not rest.strip() or _NAME.fullmatch(name) is None:
            raise ValueError(f"{text!r} is not NAME=value")
        return {name: expand_word(rest.strip(), variables)}
    pairs: dict[str, str | None] = {}
    for word in _split_words(text):
        name, equals, value = word.partition("=")
        name = expand_word(name, variables)
        if not name or (needs_value and not equals):
            raise ValueError(f"{word!r} is not NAME=value")
        pairs[name] = expand_word(value, variables) if equals else None
    return pairs


def _split_words(text: str) -> Iterator[str]:
    """Yield the words between white space that is neither quoted nor escaped."""
    word, quote, is_escaped = "", "", False
    for character in text:
        if not quote and not is_escaped and character.isspace():
            if word:
                yield word
            word = ""
            continue
        word += character
        if is_escaped:
            is_escaped = False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif character in "'\"" and quote in ("", character):
            quote = "" if quote else character
    if word:
        yield word


def _expand_variable(text: str, at: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """Return the value of the variable at a `$`, and the place behind it."""
    if (match := _NAME.match(text, at + 1)) is not None:
        return variables.get(match[0], ""), match.end()
    following = text[at + 1 : at + 2]
    if following in _SPECIAL and following:
        raise ValueError(f"{text!r} asks for ${following}, which only a shell has")
    if following != "{":
        return "$", at + 1
    end = _find_brace(text, at + 2)
    match = _BRACED.match(text, at + 2, end)
    if match is None or (match.end() < end and not match[2]):
        raise ValueError(f"{text[at : end + 1]!r} is not ${{NAME}}, with :-, -, :+ or + at most")
    name, operator = match.groups()
    value, word = variables.get(name), text[match.end() : end]
    is_set = value if operator and operator.startswith(":") else value is not None
    if operator and operator.endswith("-") and not is_set:
        return expand_word(word, variables), end + 1
    if operator and operator.endswith("+"):
        return expand_word(word, variables) if is_set else "", end + 1
    return value or "", end + 1


def _find_brace(text: str, at: int) -> int:
    """Return the place of the brace that closes the one before."""
    depth = 1
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"{text!r} has a brace without an end")

"""Dockerfiles that need no engine: the instructions that are played, the others refused by line."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from agentrl.errors import ConfigError

Keyword = Literal["FROM", "RUN", "COPY", "ADD", "WORKDIR", "ENV", "USER", "ARG"]
IGNORED = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"})
"""Instructions that change nothing in a container whose command is the provider's."""
_PLAYED = frozenset({"FROM", "RUN", "COPY", "ADD", "WORKDIR", "ENV", "USER", "ARG"})
_FLAGS: Mapping[str, frozenset[str]] = {
    "COPY": frozenset({"chown", "chmod"}),
    "ADD": frozenset({"chown", "chmod"}),
}
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
_VARIABLE = re.compile(r"\\(.)|\$(\w+)|\$\{(\w+)(?:(:[-+])([^}]*))?\}|(\$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerInstruction:
    """One instruction of a Dockerfile."""

    keyword: Keyword
    text: str
    """Text behind the keyword and its flags, without continuations and comments."""
    flags: Mapping[str, str]
    line: int

    @property
    def words(self) -> tuple[str, ...]:
        """Return the arguments: a JSON list's, or words as a shell splits them."""
        if (words := parse_exec_form(self.text)) is not None:
            return words
        return tuple(shlex.split(self.text))


def parse_dockerfile(text: str, file: str) -> tuple[DockerInstruction, ...]:
    """Return the instructions of a Dockerfile that change an image.

    Raises `ConfigError` with file and line for one that needs an engine.
    """
    instructions: list[DockerInstruction] = []
    for line, joined in _join_lines(text, file):
        keyword, _, rest = joined.partition(" ")
        keyword, place = keyword.upper(), f"{file}:{line}"
        if keyword in IGNORED:
            continue
        if keyword not in _PLAYED:
            raise ConfigError(
                f"{place}: {keyword} is not played without an engine; the instructions are "
                f"{', '.join(sorted(_PLAYED))}: leave it out, or use provider: docker"
            )
        flags, rest = _split_flags(rest.strip())
        known = _FLAGS.get(keyword, frozenset())
        if unknown := sorted(flags.keys() - known):
            raise ConfigError(
                f"{place}: {keyword} --{unknown[0]} is not played without an engine; leave it out, "
                "or use provider: docker"
            )
        if not rest or "<<" in rest.split(" ", 1)[0]:
            raise ConfigError(f"{place}: {keyword} needs an argument that is no here-document")
        if keyword in ("RUN", "COPY", "ADD") and re.search(r"<<-?['\"]?[A-Za-z_]\w*", rest):
            raise ConfigError(
                f"{place}: a here-document is not played without an engine; write a script and "
                "COPY it, or use provider: docker"
            )
        instruction = DockerInstruction(
            keyword=cast("Keyword", keyword), text=rest, flags=flags, line=line
        )
        _check_order(instruction, instructions, place)
        instructions.append(instruction)
    if not any(instruction.keyword == "FROM" for instruction in instructions):
        raise ConfigError(f"{file}: there is no FROM; name the image that it starts from")
    return tuple(instructions)


def parse_exec_form(text: str) -> tuple[str, ...] | None:
    """Return the words of a JSON list of texts; None for what is none."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    if not isinstance(words, list):
        return None
    listed = cast("list[object]", words)
    return tuple(map(str, listed)) if all(isinstance(word, str) for word in listed) else None


def parse_pairs(text: str) -> dict[str, str]:
    """Return the variables of `NAME=value ...`, or of the old form `NAME value`.

    Raises `ValueError` where there are none.
    """
    name, _, rest = text.partition(" ")
    if "=" not in name:
        if not rest.strip():
            raise ValueError(f"{text!r} is not NAME=value")
        return {name: rest.strip()}
    pairs: dict[str, str] = {}
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=value")
        pairs[name] = value
    return pairs


def expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}` replaced."""

    def replace(match: re.Match[str]) -> str:
        escaped, plain, braced, operator, other, dollar = match.groups()
        if escaped is not None:
            return "$" if escaped == "$" else f"\\{escaped}"
        if dollar is not None:
            return dollar
        value = variables.get(plain or braced, "")
        if operator == ":-":
            return value or other
        if operator == ":+":
            return other if value else ""
        return value

    return _VARIABLE.sub(replace, text)


def _check_order(
    instruction: DockerInstruction, before: list[DockerInstruction], place: str
) -> None:
    begun = any(earlier.keyword == "FROM" for earlier in before)
    if instruction.keyword == "FROM":
        if begun:
            raise ConfigError(
                f"{place}: a second FROM (a build in stages) is not played without an engine; use "
                "provider: docker"
            )
        if len(instruction.text.split()) != 1:
            raise ConfigError(
                f"{place}: FROM must name one image, got {instruction.text!r}; leave out the rest"
            )
    elif not begun and instruction.keyword != "ARG":
        raise ConfigError(f"{place}: {instruction.keyword} stands before FROM; begin with FROM")


def _split_flags(text: str) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}
    while (match := re.match(r"--([a-z-]+)(?:=(\S*))?\s*", text)) is not None:
        flags[match[1]] = match[2] or ""
        text = text[match.end() :]
    return flags, text


def _join_lines(text: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the line it begins on."""
    began, parts, in_head = 0, list[str](), True
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if in_head and (match := _DIRECTIVE.fullmatch(stripped)) is not None:
            if match[1].lower() == "escape" and match[2].strip() != "\\":
                raise ConfigError(f"{file}:{number}: another escape than \\ is not played; use \\")
            continue
        in_head = False
        if not stripped or stripped.startswith("#"):
            continue
        began = began if parts else number
        if stripped.endswith("\\"):
            parts.append(stripped[:-1].strip())
            continue
        yield began, " ".join([*parts, stripped]).replace("\t", " ").strip()
        parts = []
    if parts:
        yield began, " ".join(parts).strip()

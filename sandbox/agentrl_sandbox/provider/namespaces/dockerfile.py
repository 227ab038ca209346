"""Dockerfiles that need no engine: the instructions that are played, the others refused by line."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from agentrl.errors import ConfigError

Keyword = Literal["FROM", "RUN", "COPY", "ADD", "WORKDIR", "ENV", "USER", "ARG"]
IGNORED = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"})
"""Instructions that change nothing in a container whose command is the provider's."""
_PLAYED = frozenset(get_args(Keyword))
_FLAGS: Mapping[str, frozenset[str]] = {
    "COPY": frozenset({"chown", "chmod"}),
    "ADD": frozenset({"chown", "chmod"}),
}
_SPACE = "[ \t\r\f\v]"
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
_FLAG = re.compile(rf"--([A-Za-z-]+)(?:=(\S*))?(?:{_SPACE}+|$)")
_HERE_DOCUMENT = re.compile(rf"(?:^|{_SPACE})\d*<<-?[^<\s]")
_CONTINUED = re.compile(r"(?:(?<=[^\\])|^)\\[ \t]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerInstruction:
    """One instruction of a Dockerfile."""

    keyword: Keyword
    text: str
    """Text behind the keyword and its flags, without continuations and comments."""
    flags: Mapping[str, str]
    line: int


def parse_dockerfile(text: str, file: str) -> tuple[DockerInstruction, ...]:
    """Return the instructions of a Dockerfile that change an image.

    Raises `ConfigError` with file and line for one that needs an engine.
    """
    instructions: list[DockerInstruction] = []
    for line, joined in _join_lines(text, file):
        keyword, *rests = re.split(f"{_SPACE}+", joined.strip(), maxsplit=1)
        keyword, place = keyword.upper(), f"{file}:{line}"
        if keyword in IGNORED:
            continue
        if keyword not in _PLAYED:
            raise ConfigError(
                f"{place}: {keyword} is not played without an engine; the instructions are "
                f"{', '.join(sorted(_PLAYED))}: leave it out, or use provider: docker"
            )
        flags, rest = _split_flags("".join(rests))
        if unknown := sorted(flags.keys() - _FLAGS.get(keyword, frozenset())):
            raise ConfigError(
                f"{place}: {keyword} --{unknown[0]} is not played without an engine; leave it out, "
                "or use provider: docker"
            )
        if not rest:
            raise ConfigError(f"{place}: {keyword} needs an argument; add it, or leave it out")
        if keyword in ("RUN", "COPY", "ADD") and _HERE_DOCUMENT.search(rest):
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
    while (match := _FLAG.match(text)) is not None:
        flags[match[1]] = match[2] or ""
        text = text[match.end() :]
    return flags, text


def _join_lines(text: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the line it begins on, joined as Docker joins them.

    Nothing stands in the place of a backslash at a line's end; comments and empty lines between the
    lines of an instruction are left out.
    """
    began, joined, in_head = 0, "", True
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.rstrip("\r")
        stripped = line.strip()
        if in_head and (match := _DIRECTIVE.fullmatch(stripped)) is not None:
            if match[1].lower() == "escape" and match[2].strip() != "\\":
                raise ConfigError(f"{file}:{number}: another escape than \\ is not played; use \\")
            continue
        in_head = False
        if not stripped or stripped.startswith("#"):
            continue
        if not began:
            began, line = number, line.lstrip()
        joined += _CONTINUED.sub("", line)
        if _CONTINUED.search(line) is None:
            yield began, joined
            began, joined = 0, ""
    if joined.strip():
        yield began, joined

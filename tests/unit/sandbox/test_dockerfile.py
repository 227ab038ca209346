"""Dockerfiles are read as Docker reads them, and what needs an engine is refused by line."""

import pytest

from agentrl.errors import ConfigError
from agentrl_sandbox.provider.dockerfile import (
    expand_variables,
    parse_dockerfile,
    parse_exec_form,
    parse_pairs,
)

TEXT = """# syntax=docker/dockerfile:1
ARG BASE=debian
FROM $BASE
# a comment
RUN echo one && \\
    # between the lines
    echo two
COPY --chown=root:root --chmod=600 "a b" /srv/
CMD ["sh"]
WORKDIR /app
"""


def test_instructions_keep_text_flags_and_line() -> None:
    rows = parse_dockerfile(TEXT, "Dockerfile")
    assert [(row.keyword, row.text, row.line) for row in rows] == [
        ("ARG", "BASE=debian", 2),
        ("FROM", "$BASE", 3),
        ("RUN", "echo one && echo two", 5),
        ("COPY", '"a b" /srv/', 8),
        ("WORKDIR", "/app", 10),
    ]
    assert rows[3].flags == {"chown": "root:root", "chmod": "600"}
    assert rows[3].words == ("a b", "/srv/")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM a\nENTRYPOINT x", r"here/Dockerfile:2: ENTRYPOINT is not played"),
        ("FROM a\nVOLUME /x", r":2: VOLUME is not played"),
        ('FROM a\nSHELL ["bash"]', r":2: SHELL is not played"),
        ("FROM a\nCOPY --from=b /x /y", r":2: COPY --from is not played"),
        ("FROM a\nRUN --mount=type=cache x", r":2: RUN --mount is not played"),
        ("FROM a\nRUN cat <<EOF >x\nhello\nEOF", r":2: a here-document is not played"),
        ("FROM a\nFROM b", r":2: a second FROM"),
        ("FROM a AS b", r":1: FROM must name one image"),
        ("FROM --platform=linux/arm64 a", r":1: FROM --platform is not played"),
        ("RUN x\nFROM a", r":1: RUN stands before FROM"),
        ("# escape=`\nFROM a", r":1: another escape"),
        ("FROM a\nRUN", r":2: RUN needs an argument"),
        ("ARG A=1", r"there is no FROM"),
    ],
)
def test_what_needs_an_engine_is_refused_by_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_dockerfile(text, "here/Dockerfile")


def test_variables_are_expanded_as_docker_does() -> None:
    variables = {"A": "1", "EMPTY": ""}
    text = r"$A ${A}x ${B:-two} ${A:-no} ${A:+set} ${EMPTY:+set} \$A $B."
    assert expand_variables(text, variables) == "1 1x two 1 set  $A ."


def test_pairs_and_lists() -> None:
    assert parse_pairs('A=1 B="two words"') == {"A": "1", "B": "two words"}
    assert parse_pairs("A two words") == {"A": "two words"}
    with pytest.raises(ValueError, match="not NAME=value"):
        parse_pairs("A=1 B")
    assert parse_exec_form('["a", "b c"]') == ("a", "b c")
    assert parse_exec_form("[ -e x ]") is None

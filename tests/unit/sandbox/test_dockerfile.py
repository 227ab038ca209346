"""Dockerfiles are read as Docker reads them, and what needs an engine is refused by line.

Mutants seen caught: lines joined by a space, an escaped backslash that continues, comments between
lines kept, a here-document anywhere in a word, unknown flags and a second FROM that pass, single
quotes expanded, ENV that sees its own names, `:-` as `-`, ARG before ENV, files outside of the
folder, any base image, WORKDIR from the root, any mode of --chmod.
"""

from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl_sandbox.provider.namespaces.dockerfile import parse_dockerfile, parse_exec_form
from agentrl_sandbox.provider.namespaces.dockerfile_words import expand_word, parse_pairs
from agentrl_sandbox.provider.namespaces.image_plan import CopyStep, RunStep, plan_image

TEXT = r"""# syntax=docker/dockerfile:1
ARG BASE=debian
FROM $BASE
# a comment
RUN echo one && \
    # between the lines

    printf 'a	\
  b\\'
COPY --chown=root:root --chmod=600 ["a b", "/srv/"]
CMD ["sh"]
	workdir	/app
RUN cat <<<x $((1<<N)); echo \\
"""


def test_instructions_keep_text_flags_and_line() -> None:
    rows = parse_dockerfile(TEXT, "Dockerfile")
    assert [(row.keyword, row.text, row.line) for row in rows] == [
        ("ARG", "BASE=debian", 2),
        ("FROM", "$BASE", 3),
        ("RUN", "echo one &&     printf 'a\t  b\\\\'", 5),
        ("COPY", '["a b", "/srv/"]', 10),
        ("WORKDIR", "/app", 12),
        ("RUN", r"cat <<<x $((1<<N)); echo \\", 13),
    ]
    assert rows[3].flags == {"chown": "root:root", "chmod": "600"}


def test_windows_line_ends_and_a_file_that_ends_within_an_instruction() -> None:
    rows = parse_dockerfile("\ufeffFROM a\r\nRUN one \\\r\n two \\", "Dockerfile")
    assert [(row.keyword, row.text) for row in rows] == [("FROM", "a"), ("RUN", "one  two")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM a\nENTRYPOINT x", r"here/Dockerfile:2: ENTRYPOINT is not played"),
        ("FROM a\nVOLUME /x", r":2: VOLUME is not played"),
        ('FROM a\nSHELL ["bash"]', r":2: SHELL is not played"),
        ("FROM a\nCOPY --from=b /x /y", r":2: COPY --from is not played"),
        ("FROM a\nRUN --mount=type=cache x", r":2: RUN --mount is not played"),
        ("FROM a\nRUN cat <<EOF >x\nhello\nEOF", r":2: a here-document is not played"),
        ("FROM a\n\nCOPY <<-'EOF' x\nEOF", r":3: a here-document is not played"),
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


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$A ${A}x $B.", "1 1x ."),
        ("${B:-two} ${A:-no} ${B-two} ${EMPTY-no} ${EMPTY:-two}", "two 1 two  two"),
        ("${A:+set} ${EMPTY:+set} ${EMPTY+set} ${B+set}", "set  set "),
        ("${B:-${A}x}${B:-$A}", "1x1"),
        (r"\$A '$A\' \"$A\"", r'$A $A\ "1"'),
        (r'"$A \$A \n \"" "two  words"', r'1 $A \n " two  words'),
        ("cost: $ 5", "cost: $ 5"),
    ],
)
def test_words_are_expanded_as_docker_does(text: str, expanded: str) -> None:
    assert expand_word(text, {"A": "1", "EMPTY": ""}) == expanded


@pytest.mark.parametrize("text", ["'x", '"x', "${A", "${A#x}", "${A/x/y}", "${A:?x}", "$1", "$@"])
def test_other_replacements_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"end|asks for|is not \$"):
        expand_word(text, {"A": "1"})


def test_pairs_and_lists() -> None:
    variables = {"A": "two words", "B": "x C=1"}
    pairs = parse_pairs("X=$A Y=\"$B\" Z='$A' W=a\\ b", variables, needs_value=True)
    assert pairs == {"X": "two words", "Y": "x C=1", "Z": "$A", "W": "a b"}
    assert parse_pairs("A  two words", {}, needs_value=True) == {"A": "two words"}
    assert parse_pairs("A B=$A", variables, needs_value=False) == {"A": None, "B": "two words"}
    for text in ("A=1 B", "A", "=1"):
        with pytest.raises(ValueError, match="not NAME=value"):
            parse_pairs(text, {}, needs_value=True)
    assert parse_exec_form('["a", "b c"]') == ("a", "b c")
    assert parse_exec_form("[ -e x ]") is None


# -- what instructions do -------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    (folder / "Dockerfile").write_text(text)
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    (folder / "sub").mkdir()
    (folder / "out").symlink_to("/etc")
    return folder


def test_a_plan_says_what_each_instruction_does(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "ARG V=1\nFROM deb:$V\nARG V\nARG N=app\nENV PLACE=/srv/$N V=2\nWORKDIR $PLACE\n"
        'WORKDIR data\nUSER clerk\nRUN echo $V\nRUN ["true", "$V"]\n'
        "COPY --chown=$N --chmod=0644 *.txt ./\nCOPY sub /sub\n",
    )
    plan = plan_image(folder, ["deb:1"])
    assert (plan.base, plan.workdir, plan.user) == ("deb:1", "/srv/app/data", "clerk")
    assert plan.env == {"PLACE": "/srv/app", "V": "2"}
    one, two, shell, listed, copy, copy_folder = plan.steps
    assert isinstance(one, RunStep)
    assert isinstance(two, RunStep)
    assert (one.argv[-1], two.argv[-1], two.user) == ("/srv/app", "/srv/app/data", "0")
    assert isinstance(shell, RunStep)
    assert (shell.argv, shell.cwd, shell.user) == (
        ("/bin/sh", "-c", "echo $V"),
        "/srv/app/data",
        "clerk",
    )
    assert shell.env == {"N": "app", "V": "2", "PLACE": "/srv/app"}
    assert isinstance(listed, RunStep)
    assert listed.argv == ("true", "$V")
    assert isinstance(copy, CopyStep)
    assert [path.name for path in copy.sources] == ["a.txt", "b.txt"]
    assert (copy.target, copy.into_folder) == ("/srv/app/data", True)
    assert (copy.owner, copy.mode) == ("app", 0o644)
    assert isinstance(copy_folder, CopyStep)
    assert (copy_folder.target, copy_folder.into_folder) == ("/sub", False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM other", r"Dockerfile:1: FROM other is none of the base images .* are deb:1;"),
        ("FROM deb:1\nCOPY c.txt /", r":2: 'c.txt' is not in "),
        ("FROM deb:1\nCOPY *.csv /", r":2: '\*.csv' is not in "),
        ("FROM deb:1\nCOPY out/passwd /", r":2: 'out/passwd' is not in "),
        ("FROM deb:1\nCOPY ../x /", r":2: '../x' is not in "),
        ("FROM deb:1\nCOPY **/x /", r":2: the pattern"),
        ("FROM deb:1\nCOPY a.txt", r":2: COPY needs a source and a target"),
        ("FROM deb:1\nCOPY --chmod=u+x a.txt /", r":2: --chmod=u\+x is no number"),
        ("FROM deb:1\nADD https://x/y /", r":2: ADD of 'https://x/y' is not played"),
        ("FROM deb:1\nADD x.tar.gz /", r":2: ADD of 'x.tar.gz' is not played"),
        ("FROM deb:1\nENV A", r":2: 'A' is not NAME=value"),
        ("FROM deb:1\nENV A=${B%x}", r":2: .* is not \$\{NAME\}"),
    ],
)
def test_what_is_not_played_is_refused_before_a_build(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_image(write(tmp_path, text), ["deb:1"])


def test_an_ignore_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "FROM deb:1")
    (tmp_path / ".dockerignore").write_text("a.txt")
    with pytest.raises(ConfigError, match=r"\.dockerignore is not read without an engine"):
        plan_image(tmp_path, ["deb:1"])

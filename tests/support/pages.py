"""The pages of the documentation, as the blocks of code they are made of.

What a page says of a block stands in comments right before it, one a line:

- `<!-- not run: WHY -->`: nothing can run it here;
- `<!-- run by: tests/test_NAME.py -->`: another test does;
- `<!-- file: NAME -->`: what follows reads it from a file of that name in the working folder;
- `<!-- given: NAME, NAME -->`: names it uses, which `tests/support/page_names.py` makes;
- `<!-- needs: PART, PART -->`: parts of the system (tests/conftest.py), for the whole page;
- `<!-- small -->`, `<!-- small: KEY=VALUE ... -->`: its runs are trained, small, with these keys;
- `<!-- output -->`: what the Python block before it prints, word for word.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("python", "sh", "yaml", "json", "text", "mermaid")
"""What a block may be written in. Nobody types what is in `text`."""
MARKS = ("not run", "run by", "file", "given", "needs", "small", "output")

_FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (?P<name>[a-z ]+?)(?:: (?P<value>.*?))? -->\n", re.DOTALL)
_DIRECTIVE = re.compile(r"\{[a-z-]+\}")
"""MyST's own blocks, such as a table of contents, are no code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of code, and what its page says of it."""

    page: str
    """Its file, from the root of the repository."""
    line: int
    """Of the fence that opens it; the first line of a file is 1."""
    language: str
    text: str
    marks: Mapping[str, str]

    @property
    def place(self) -> str:
        """Return where it is, as an editor takes it."""
        return f"{self.page}:{self.line}"


def pages(root: Path) -> tuple[Path, ...]:
    """Return every page that somebody reads, and that may show commands."""
    named = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md")
    return (*(root / name for name in named), *sorted((root / "docs").rglob("*.md")))


def blocks(page: Path, root: Path) -> tuple[Block, ...]:
    """Return the blocks of a page from top to bottom."""
    return tuple(find(page.read_text(encoding="utf-8"), str(page.relative_to(root))))


def find(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page's text. Raises `ValueError` for a mark that is none."""
    begin = 0
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        marks = dict(_marks(text[begin : fence.start()], f"{page}:{line}"))
        begin = fence.end()
        if _DIRECTIVE.fullmatch(fence["language"]):
            continue
        yield Block(
            page=page, line=line, language=fence["language"], text=fence["text"], marks=marks
        )


def _marks(above: str, place: str) -> Iterator[tuple[str, str]]:
    """Yield the marks that end `above`, the text between two blocks."""
    comments = re.search(r"(?:^<!-- [^>]*? -->\n)*\Z", above, re.MULTILINE)
    for found in _MARK.finditer(comments[0] if comments else ""):
        if found["name"] not in MARKS:
            raise ValueError(f"{place}: {found['name']!r} is no mark; the marks are {MARKS}")
        yield found["name"], " ".join((found["value"] or "").split())


def names(value: str) -> frozenset[str]:
    """Return the names a mark lists."""
    return frozenset(filter(None, (name.strip() for name in value.split(","))))


def lines_of(shell: str) -> Iterator[str]:
    """Yield the commands of a block of shell: continued lines as one, comments left out."""
    for line in shell.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*", "", line).strip()
        if command:
            yield command

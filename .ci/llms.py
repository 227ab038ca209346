"""Write `llms.txt`: the documentation as a list of links with a sentence each (llmstxt.org).

    python .ci/llms.py          write it
    python .ci/llms.py --hold   fail where it is out of date

Title, summary, sections and order are those of `docs/index.md`. The line of a page is its heading
and the first sentence of its prose. Standard library only.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "llms.txt"
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
TOCTREE = re.compile(
    r"^```\{toctree\}\n:caption: (?P<caption>[^\n]+)\n(?P<body>.*?)^```$", re.M | re.S
)
NO_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`]|agentrl )")


def page_title(text: str) -> str:
    """Return the heading of a page."""
    heading = HEADING.match(text)
    if heading is None:
        raise ValueError("it begins with no heading; its first line must be `# TITLE`")
    return heading[1]


def first_paragraph(text: str) -> str:
    """Return the first paragraph of prose below the heading: no code, list, table or heading."""
    prose = NO_PROSE.sub("", text.partition("\n")[2])
    for paragraph in re.split(r"\n\s*\n", prose):
        line = " ".join(paragraph.split())
        if line and not re.match(r"[#|>!-]|\d+\. ", line):
            return LINK.sub(r"\1", line)
    raise ValueError("it has no prose; below its heading a sentence must say what it is about")


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose, as it stands behind a link."""
    sentence = SENTENCE_END.split(first_paragraph(text))[0].rstrip(":")
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def sections(index: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the captions of the tables of contents with the pages that they name."""
    for table in TOCTREE.finditer(index):
        names = [line for line in table["body"].splitlines() if line and not line.startswith(":")]
        yield table["caption"], names


def list_pages(docs: Path, *, prefix: str = "docs/", suffix: str = ".md") -> str:
    """Return the list; a link is a page's name between prefix and suffix.

    Raises `ValueError` for a page without heading or prose, with its name.
    """
    index = (docs / "index.md").read_text(encoding="utf-8")
    lines = [f"# {page_title(index)}", "", f"> {first_paragraph(index)}"]
    for caption, names in sections(index):
        lines += ["", f"## {caption}", ""]
        for name in names:
            text = (docs / f"{name}.md").read_text(encoding="utf-8")
            try:
                line = f"- [{page_title(text)}]({prefix}{name}{suffix}): {first_sentence(text)}"
            except ValueError as error:
                raise ValueError(f"docs/{name}.md: {error}") from None
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the list, or compare it with the one that is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hold", action="store_true", help="fail where it is out of date")
    text = list_pages(ROOT / "docs")
    if not parser.parse_args().hold:
        OUTPUT.write_text(text, encoding="utf-8")
    elif not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != text:
        sys.exit("llms.txt is out of date; python .ci/llms.py writes it")


if __name__ == "__main__":
    main()

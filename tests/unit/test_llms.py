"""`llms.txt`: it is what the script makes of the pages, and the script makes what they say.

Mutants seen caught: a page left out, the order of pages turned round, a table taken for prose.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def llms(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("llms", root / ".ci/llms.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_up_to_date(llms: ModuleType, root: Path) -> None:
    """When this fails: run `python .ci/llms.py`."""
    text = (root / "llms.txt").read_text(encoding="utf-8")
    assert text == llms.list_pages(root / "docs")
    for page in (root / "docs").rglob("*.md"):
        link = f"({page.relative_to(root)})"
        assert text.count(link) == (page.name != "index.md"), link


def test_a_list_of_two_pages(llms: ModuleType, tmp_path: Path) -> None:
    pages = {
        "index": "# Shop\n\nIt sells [tea](t.md).\nDaily.\n\nMore.\n\n"
        "```{toctree}\n:caption: Buy\n:hidden:\n\nz\nsub/a\n```\n",
        "z": "# Tea\n\n```sh\nbuy tea\n```\n\n<!-- a note\n-->\n| a | b |\n\n- list\n\n"
        "Black, at\n0.5 `g`: [green](g.md#x). Or none.\n",
        "sub/a": "# Cups\n\nOf clay. agentrl breaks them",
    }
    (tmp_path / "sub").mkdir()
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    assert llms.list_pages(tmp_path, prefix="", suffix=".html") == (
        "# Shop\n\n> It sells tea. Daily.\n\n## Buy\n\n"
        "- [Tea](z.html): Black, at 0.5 `g`: green.\n- [Cups](sub/a.html): Of clay.\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"), [("Tea\n", "no heading"), ("# Tea\n\n- a list\n", "no prose")]
)
def test_a_page_that_says_nothing_is_named(
    llms: ModuleType, tmp_path: Path, text: str, reason: str
) -> None:
    index = "# Shop\n\nIt sells.\n\n```{toctree}\n:caption: Buy\n\ntea\n```\n"
    (tmp_path / "index.md").write_text(index)
    (tmp_path / "tea.md").write_text(text)
    with pytest.raises(ValueError, match=rf"docs/tea\.md: it .*{reason}"):
        llms.list_pages(tmp_path)

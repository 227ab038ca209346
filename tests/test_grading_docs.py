"""The Python in docs/grading.md runs, from top to bottom, in real sessions."""

import re
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.bubblewrap
def test_the_page_runs(root: Path) -> None:
    page = root / "docs/grading.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "docs_grading"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)

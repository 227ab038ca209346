"""The Python in the pages about environments runs, from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl_envs import register_envs

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"environments": 6, "retrieval": 3, "web-sites": 1}
"""How many blocks each has, at least."""


@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs(name: str) -> None:
    register_envs()
    page = DOCS / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= PAGES[name]
    # A name of its own, because classes defined here are looked up by their module.
    names: dict[str, Any] = {"__name__": f"docs_{name.replace('-', '_')}"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)

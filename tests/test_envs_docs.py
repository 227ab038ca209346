"""The Python in docs/environments.md runs, from top to bottom."""

import re
from pathlib import Path
from typing import Any

from agentrl_envs import register_envs

PAGE = Path(__file__).parent.parent / "docs" / "environments.md"


def test_the_page_runs() -> None:
    register_envs()
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    # A name of its own, because classes defined here are looked up by their module.
    names: dict[str, Any] = {"__name__": "docs_environments"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)

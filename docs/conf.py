"""How the site is built from these pages: `make docs`. Every warning is an error."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Autodoc imports agentrl from the checkout the pages are of, wherever an editable install points.
sys.path[:0] = [str(ROOT / place) for place in (".", "envs", "tools", "sandbox")]

from agentrl.runtime.distribution import __version__ as release  # noqa: E402 it is found on that path

project = "agentrl"
author = "the agentrl authors"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
# Docstrings write code as Markdown does, in single backticks.
default_role = "code"
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"agentrl {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def setup(app: Any) -> None:
    """Let Sphinx read the pictures in docstrings of modules as what they are."""
    app.connect("autodoc-process-docstring", draw)


def draw(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Mark the first indented block of a module's docstring as a literal one, in place."""
    del app, name, thing, options
    if what != "module":
        return
    for at, (above, line) in enumerate(pairwise(lines), start=1):
        if not above and line.startswith("    "):
            lines[at:at] = ["::", ""]
            return

"""How the site is built from these pages: `make docs`. Every warning is an error."""

import dataclasses
import re
import sys
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin

from docutils import nodes
from docutils.utils import unescape
from sphinx.domains.python import PyXRefRole
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.typing import stringify_annotation

ROOT = Path(__file__).parent.parent
# Autodoc imports agentrl from the checkout the pages are of, wherever an editable install points.
sys.path[:0] = [str(ROOT / place) for place in (".", "envs", "tools", "sandbox")]

sys.path.append(str(ROOT / ".ci"))

from llms import list_pages  # noqa: E402 so is this

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
# Docstrings write names and code as Markdown does, in single backticks.
default_role = "name"
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"agentrl {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

ALIASED = (
    "agentrl.task",
    "agentrl.message",
    "agentrl.env",
    "agentrl.errors",
    "agentrl.policy",
    "agentrl.sandbox",
    "agentrl.trajectory",
    "agentrl.authoring.tool_env",
    "agentrl.engine.scripted",
)
"""Modules whose names for types are shown in signatures, in the place of what they stand for."""
SECTIONS = Config(napoleon_use_rtype=False)
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*(\.\w+)?")


def setup(app: Any) -> None:
    """Let Sphinx read docstrings, and write signatures, as the code does."""
    app.add_role("name", name_role)
    app.connect("autodoc-process-docstring", draw)
    app.connect("autodoc-process-docstring", list_sections)
    app.connect("autodoc-process-signature", shorten)
    app.connect("missing-reference", find_type)
    app.connect("build-finished", write_page_list)


def write_page_list(app: Any, error: Exception | None) -> None:
    """Write the site's own `llms.txt`, with links to its pages."""
    if error is None:
        text = list_pages(ROOT / "docs", prefix="", suffix=".html")
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")


def name_role(
    role: str, rawtext: str, text: str, lineno: int, inliner: Any, *more: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Return what stands in backticks as code, and a class that a page has as a link to it."""
    if CLASS.fullmatch(text):
        return PyXRefRole()("py:obj", rawtext, f".{text}", lineno, inliner, *more)
    return [nodes.literal(rawtext, unescape(text, restore_backslashes=True))], []


def find_type(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """Return the link of a type in a signature that is no class, but a name for one."""
    if node["refdomain"] != "py" or node["reftype"] != "class":
        return None
    python, page = env.get_domain("py"), node["refdoc"]
    return python.resolve_xref(env, page, app.builder, "obj", node["reftarget"], node, shown)


def draw(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Mark the first indented block of a module's docstring as a literal one, in place."""
    del app, name, thing, options
    if what != "module":
        return
    for at, (above, line) in enumerate(pairwise(lines), start=1):
        if not above and line.startswith("    "):
            lines[at:at] = ["::", ""]
            return


def list_sections(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Turn `Args:`, `Returns:` and `Raises:` into lists, in place.

    The extension does so for attributes too, where it takes a colon for the end of a type.
    """
    if what in ("function", "method", "class", "exception"):
        lines[:] = GoogleDocstring(lines, SECTIONS, app, what, name, thing, options).lines()


def shorten(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str
) -> tuple[str | None, str] | None:
    """Return a signature with the code's own names for types, and with defaults that can be read.

    A class has none if it is a protocol, or is made of private parts.
    """
    del app, name, options
    if signature is None:
        return None
    if getattr(thing, "_is_protocol", False) or re.search(r"\b_[A-Z]", signature):
        return "", returns
    if what == "class" and dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            if field.default_factory is not dataclasses.MISSING:
                made: Any = field.default_factory
                default = "{}" if get_origin(made) is dict else f"{made.__name__}()"
                signature = signature.replace("<factory>", default, 1)
    for written, alias in aliases().items():
        signature = signature.replace(written, alias)
        returns = returns and returns.replace(written, alias)
    return signature, returns


@cache
def aliases() -> dict[str, str]:
    """Return names for types by what Sphinx writes for them, the longest first."""
    found = dict[str, str]()
    for home in ALIASED:
        module = import_module(home)
        source = Path(module.__file__ or "").read_text(encoding="utf-8")
        for name, value in vars(module).items():
            if get_origin(value) is None or not re.search(rf"^{name} = ", source, re.MULTILINE):
                continue
            written = stringify_annotation(value, "smart")
            # Without one of these it is a plain type, which is not always meant as that name.
            if "agentrl." in written or "Literal" in written:
                found[written] = f"~{home}.{name}"
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))

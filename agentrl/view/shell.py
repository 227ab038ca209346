"""The page without a run: one script of its modules, its style, and a policy that allows no other.

`page/` holds what a browser reads: plain modules, which need no build.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib import resources

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_DATA = "<!--agentrl:data-->"


def build_shell(title: str, *, runs: int, is_served: bool) -> tuple[str, str]:
    """Return the page before and after the place of the data.

    Its policy names its scripts by their hashes and forbids to make markup of text, so that what a
    policy wrote cannot run; a file may ask for nothing, a served page its server alone.
    """
    files = resources.files("agentrl.view") / "page"
    style = (files / "viewer.css").read_text(encoding="utf-8")
    script = join_modules()
    begin = _begin(runs, is_served=is_served)
    connect_source = "'self'" if is_served else "'none'"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)} {_hash(begin)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            f"connect-src {connect_source}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
    html = (files / "viewer.html").read_text(encoding="utf-8")
    values = {"policy": policy, "title": f"{escape(title)} - agentrl", "style": style}
    for name, value in (values | {"script": script}).items():
        html = html.replace(f"<!--agentrl:{name}-->", value, 1)
    head, _, tail = html.partition(_DATA)
    return head, tail


def begin_script(runs: int, *, is_served: bool) -> str:
    """Return the element that draws the page, once its tables are there."""
    return f"<script>{_begin(runs, is_served=is_served)}</script>\n"


@cache
def join_modules() -> str:
    """Return all modules as one script, each after those that it imports.

    A script of its own kind runs where it stands; a module would wait for the whole of a large
    file. The modules share one scope, so no two may declare the same name.
    """
    files = resources.files("agentrl.view") / "page"
    joined = dict[str, str]()

    def add(name: str) -> None:
        if name in joined:
            return
        joined[name] = ""
        text = (files / name).read_text(encoding="utf-8")
        for imported in _IMPORT.findall(text):
            add(imported)
        del joined[name]  # to stand after them
        joined[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("main.js")
    return f'(() => {{\n"use strict";\n{"".join(joined.values())}}})();\n'


def _begin(runs: int, *, is_served: bool) -> str:
    return f"agentrlBegin({{ runs: {runs}, isServed: {str(is_served).lower()} }})"


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

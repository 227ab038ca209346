"""Words of errors, advice and pages: a key that they name is one that a config can have.

Mutants seen caught: a key of one letter less in a message; a key that was renamed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from agentrl.config.field_names import FIELD_HINTS
from agentrl.config.run import RunConfig
from tests.support.pages import pages

ROOTS = ("agentrl", "envs", "tools", "sandbox")
FILES = ("jsonl", "json", "yaml", "py", "md", "template")


def known_keys(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Yield every key of a section, those of all alternatives among them."""
    for name, field in model.model_fields.items():
        yield f"{before}{name}"
        kinds: list[Any] = [field.annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from known_keys(kind, f"{before}{name}.")
            else:
                kinds += get_args(kind)


KNOWN = {*known_keys(RunConfig)}
SECTIONS = "|".join(RunConfig.model_fields)
KEY = re.compile(rf"(?<![\w./])(?:{SECTIONS})(?:\.[a-z_]+)+(?![\w(]|\.[a-z])")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def named(text: str) -> list[str]:
    """Return what in a text looks like a key; files and calls do not."""
    return [key for key in KEY.findall(text) if not key.endswith(FILES)]


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, docstrings left out: they name modules too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "raise rollout.group_size, or learn.loss.clip_low",
            ["rollout.group_size", "learn.loss.clip_low"],
        ),
        ("see rollout.alarms.", ["rollout.alarms"]),
        ("await env.reset() first", []),
        ("agentrl.engine.remote", []),
        ("docs/gui.md, metrics.jsonl", []),
    ],
)
def test_what_looks_like_a_key(text: str, keys: list[str]) -> None:
    assert named(text) == keys


def test_every_key_that_pages_name_exists(root: Path) -> None:
    """Of their sentences and tables: what stands in blocks is run."""
    wrong = {
        f"{page.relative_to(root)}: {key}"
        for page in pages(root)
        if page.name != "plan.md"  # its sections are those of the plan as JSON
        for key in named(FENCED.sub("", page.read_text(encoding="utf-8")))
        if key not in KNOWN and not key.startswith("env.kwargs.")
        # Its table of other frameworks' keys.
        if page.name != "configuration.md" or key not in FIELD_HINTS
    }
    assert wrong == set()


def test_every_key_that_is_named_exists(root: Path) -> None:
    found = {
        f"{file.relative_to(root)}:{line}: {key}"
        for base in ROOTS
        for file in sorted((root / base).rglob("*.py"))
        for line, text in texts(file)
        for key in named(text)
        if key not in KNOWN and key not in FIELD_HINTS
    }
    assert found == set()

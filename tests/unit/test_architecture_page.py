"""docs/architecture.md names the tree as it is, and its table of layers holds.

Mutants seen caught: a folder without a row, a path of a file that moved, a class that was renamed,
a method that does not exist, a folder without a layer, a store that imports the command line.
"""

import ast
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.packages import ROOTS, files, imports, modules

PAGE = "docs/architecture.md"
PLACES = (
    "",
    "agentrl",
    "envs",
    "envs/agentrl_envs",
    "tools/agentrl_tools",
    "sandbox",
    "sandbox/agentrl_sandbox",
)
"""Folders that a path on the page may begin in."""
CLASS = r"[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)*"
ENTRY_POINTS = {"__init__", "__main__", "gymnasium_envs"}
"""Modules of the package itself that import what they show."""
KNOWN_VIOLATIONS = {
    ("agentrl.config.check", "agentrl.rollout.curation.rules"),
    ("agentrl.models.folders", "agentrl.learn.lora"),
}
"""Imports that do not keep the layers yet: importing and imported module. It only gets shorter."""


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / PAGE).read_text(encoding="utf-8")


def quoted(page: str) -> list[str]:
    """Return the words in backticks, those of blocks left out."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


def drawing(page: str) -> str:
    """Return the page's first block."""
    match = re.search(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def exists(root: Path, path: str) -> bool:
    return any((root / place / path).exists() for place in PLACES)


def members(root: Path) -> dict[str, set[str]]:
    """Return every class and type alias of the code, with the names its body defines."""
    found: dict[str, set[str]] = {}
    for package in ROOTS:
        for file in files(root, package):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(defined(node))
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found.setdefault(node.targets[0].id, set())
    return found


def defined(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a class's fields and methods."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def test_every_folder_has_a_row(root: Path, page: str) -> None:
    folders = {
        folder.relative_to(root)
        for folder in (root / "agentrl").rglob("*")
        if folder.is_dir()
        and not {"__pycache__", "node_modules"} & {*folder.parts}
        # What an earlier version left compiled is in a folder that has nothing else.
        and any(child.name != "__pycache__" for child in folder.iterdir())
    }
    folders |= {Path(place) / package for package, place in ROOTS.items()}
    rows = re.findall(r"^\| `([^`]+)/` \|", page, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert {*rows} == {str(folder) for folder in folders}


def test_every_path_exists(root: Path, page: str) -> None:
    paths = [word for word in quoted(page) if re.fullmatch(r"[\w./-]+(\.py|/)", word)]
    paths += re.findall(r"[│ ] ([a-z_]+(?:/[a-z_]+)*) +[│]", drawing(page))
    assert len(paths) > 60
    assert [path for path in paths if not exists(root, path)] == []


def test_every_class_exists(root: Path, page: str) -> None:
    code = members(root)
    names = {word for word in quoted(page) if re.fullmatch(CLASS, word)}
    names |= {*re.findall(rf"\b{CLASS}\b", drawing(page))}
    assert len(names) > 40
    assert names - code.keys() == set()


def test_every_method_and_field_exists(root: Path, page: str) -> None:
    code = members(root)
    pairs = {
        (match[1], match[2])
        for word in quoted(page)
        if (match := re.match(rf"({CLASS})\.(\w+)", word))
    }
    assert ("Env", "tasks") in pairs
    assert {pair for pair in pairs if pair[1] not in code.get(pair[0], set())} == set()


def layers(page: str) -> dict[str, int]:
    """Return the layer of every folder and module of `agentrl`, as the page has it."""
    rows = re.findall(r"^\| (\d) \| (.*) \|$", page, re.MULTILINE)
    return {name: int(layer) for layer, row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_folder_has_a_layer(root: Path, page: str) -> None:
    names = {file.stem for file in (root / "agentrl").glob("*.py")} - ENTRY_POINTS
    names |= {init.parent.name for init in (root / "agentrl").glob("*/__init__.py")}
    assert layers(page).keys() == names


def test_a_folder_imports_only_from_layers_above(root: Path, page: str) -> None:
    code = modules(root)
    layer = layers(page)
    contracts = {*permutations((name for name in layer if layer[name] == 0), 2)}
    violations = {
        (module, target)
        for module, file in code.items()
        if (source := room(module)) in layer
        for target in imports(file)
        if target in code and (other := room(target)) in layer and other != source
        if layer[other] >= layer[source] and (source, other) not in contracts
    }
    assert violations - KNOWN_VIOLATIONS == set(), "move the import, or what it imports"
    assert KNOWN_VIOLATIONS - violations == set(), "they keep the layers now: delete them here"


def room(module: str) -> str:
    """Return the folder or top module of `agentrl` that a module lies in, "" for other packages."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "agentrl" else ""

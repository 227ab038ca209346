"""The architecture, held by tests: who imports whom, and what the configuration of tools names.

What stays light and what gets installed is in tests/system/test_package.py.
"""

import ast
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from tests.support.packages import ROOTS, files, imports, loads, modules

MAY_IMPORT = {
    "agentrl": set[str](),
    "agentrl_sandbox": {"agentrl"},
    "agentrl_tools": {"agentrl", "agentrl_sandbox"},
    "agentrl_envs": {"agentrl", "agentrl_sandbox", "agentrl_tools"},
}
"""Besides itself: the framework knows no concrete environment, tool or sandbox."""

ACTING = (
    "agentrl.env",
    "agentrl.errors",
    "agentrl.message",
    "agentrl.policy",
    "agentrl.rollout",
    "agentrl.sandbox",
    "agentrl.rollout.scheduler.topology",
    "agentrl.runtime.scope",
    "agentrl.task",
    "agentrl.tool",
    "agentrl.trajectory",
)
"""The contracts and the acting half, which must not know of the learning half at all."""

LEARNING = (
    "torch",
    "transformers",
    "agentrl.learn",
    "agentrl.engine",
    "agentrl.weight_sync",
    "agentrl.models.vision",
)


BROUGHT_BY = {
    "annotated_types": "pydantic",
    "anyio": "mcp",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "requests": "docker",
    "urllib3": "docker",
    "typing_extensions": "pydantic",
}
"""Modules of dependencies of what we ask for, by what brings them."""
HOSTED = frozenset({"browsergym", "gem", "inspect_ai", "openai", "verifiers", "websockets"})
"""Modules of packages that are imported in their own venv, whose environments we play."""


def is_in(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_point_one_way(root: Path, package: str) -> None:
    assert files(root, package)
    for file in files(root, package):
        ours = {name.partition(".")[0] for name in imports(file)} & {*ROOTS, "tests", "benchmarks"}
        extra = ours - {package} - MAY_IMPORT[package]
        assert not extra, f"{file.relative_to(root)}: {package} must not import {sorted(extra)}"


def test_the_acting_half_knows_nothing_of_the_learning_half(root: Path) -> None:
    acting = {name: file for name, file in modules(root).items() if is_in(name, ACTING)}
    assert {place for place in ACTING if any(is_in(name, (place,)) for name in acting)} == {*ACTING}
    for name, file in acting.items():
        extra = sorted(found for found in imports(file) if is_in(found, LEARNING))
        assert not extra, f"{name} must not import {extra}, not even inside a function"


def test_every_module_can_be_the_first_that_is_imported(root: Path) -> None:
    """Kills: a circle through a package, which a process that imports it in another order has."""
    known = modules(root)
    graph = {name: {*loads(name, file)} & {*known} for name, file in known.items()}
    TopologicalSorter(graph).prepare()


def test_import_roots_are_no_packages(root: Path) -> None:
    """With an `__init__.py`, our `tools` would shadow a user's own in an editable install."""
    roots = ["envs", "tools", "sandbox", "configs", "tests", "benchmarks", "docs", "examples"]
    assert not [name for name in roots if (root / name / "__init__.py").exists()]


def test_an_import_root_holds_one_package_and_nothing_else(root: Path) -> None:
    for package, place in ROOTS.items():
        if place != ".":
            assert [path.name for path in visible(root / place)] == [package]


def visible(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if not p.name.startswith((".", "__pycache__"))]


def test_every_package_folder_has_an_init(root: Path) -> None:
    """A forgotten one works from a checkout and type-checks differently elsewhere."""
    for package in ROOTS:
        for file in files(root, package):
            assert (file.parent / "__init__.py").exists(), f"{file.parent} has no __init__.py"


def test_every_tool_sees_the_same_roots(root: Path) -> None:
    tool = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    want = [*ROOTS.values()]
    assert tool["pytest"]["ini_options"]["pythonpath"] == want
    assert tool["ruff"]["src"] == want
    assert [".", *tool["pyright"]["extraPaths"]] == want
    assert {"agentrl", *want[1:], "tests", "benchmarks"} <= {*tool["pyright"]["include"]}
    wheel = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert wheel == [str(Path(place) / package) for package, place in ROOTS.items()]


def test_the_constraints_hold_every_dependency(root: Path) -> None:
    """A dependency without a pin would float in the venv that the Makefile builds."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"]]
    asked += project["project"]["optional-dependencies"]["train"]
    for group in ("dev", "reasoning"):
        asked += project["dependency-groups"][group]
    names = {distribution(requirement) for requirement in asked}
    pins = (root / "constraints.txt").read_text().splitlines()
    pinned = {distribution(line) for line in pins if "==" in line and not line.startswith("#")}
    assert not names - pinned, f"constraints.txt lacks {sorted(names - pinned)}"


def test_everything_that_is_imported_is_declared(root: Path) -> None:
    """What only the group `dev` installs is not there where the wheel is."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    declared = set(map(distribution, [*project["dependencies"], *extras]))
    owners = packages_distributions()
    undeclared = {
        (str(file.relative_to(root)), name)
        for package in ROOTS
        for file in files(root, package)
        for name in {module.partition(".")[0] for module in imports(file)}
        if name not in {*ROOTS, *HOSTED, *sys.stdlib_module_names}
        for module in [BROUGHT_BY.get(name, name)]
        if not declared & {*map(distribution, owners.get(module, [module]))}
    }
    assert undeclared == set()


CLAUSE = re.compile(r"(What|How|Who|Where)\b|[Rr]eturns? (what|how|where)\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@pytest.mark.parametrize("package", ROOTS)
def test_docstrings_are_sentences_or_noun_phrases(package: str, root: Path) -> None:
    """Functions say what to expect in the imperative, all else is named; nothing is a riddle."""
    clauses = [
        f"{file.relative_to(root)}: {text.splitlines()[0]}"
        for file in files(root, package)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
        if CLAUSE.match(text)
    ]
    assert clauses == []


def distribution(requirement: str) -> str:
    name = requirement.split("[")[0]
    for mark in "<>=!~; ":
        name = name.split(mark)[0]
    return name.lower().replace("_", "-")


def config_files() -> list[Path]:
    return sorted((Path(__file__).parents[2] / "configs").glob("**/*.yaml"))


@pytest.mark.parametrize("file", config_files(), ids=lambda file: file.name)
def test_every_config_loads(file: Path) -> None:
    assert load_config(file, {}).run.name


def test_there_are_configs_and_nothing_else_in_their_folder(root: Path) -> None:
    files = {path for path in root.glob("configs/**/*") if path.is_file()}
    assert files == {*root.glob("configs/**/*.yaml")} != set()

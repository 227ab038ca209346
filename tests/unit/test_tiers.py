"""Tests lie in the tier of what they touch. `tests/unit/conftest.py` holds what is not seen here.

Seen caught: a test file beside the tiers, a unit test with the mark of a part, one that trains by
each of the names, one that takes what another tier's test has, a fast test that is not there, one
of a part that is not named, a folder of tests whose package is not there.
"""

import ast
import re
from pathlib import Path

from tests.conftest import PARTS

TIERS = ("unit", "system", "run")
IMPORTS_TRAINING = re.compile(
    r"^ *from agentrl(?:\.run\.train)? import (?:\([^)]*|[^#\n]*)\b(?:train|warmstart)\b",
    re.MULTILINE,
)
CALLS_TRAINING = re.compile(r"\b(?:agentrl|(?<!_)run\.train)\.(?:train|warmstart)\(")
"""What starts a training run, as it is imported or called."""
IMPORTS_TESTS = re.compile(r"^ *(?:from|import) (tests\.\w+)", re.MULTILINE)


PACKAGES = {
    "benchmarks": "benchmarks",
    "envs": "envs/agentrl_envs",
    "sandbox": "sandbox/agentrl_sandbox",
    "tools": "tools/agentrl_tools",
}
"""Where a folder of tests has its package, if not in `agentrl`."""
OF_NO_PACKAGE = ("security", "with_vllm")


def files_of(root: Path, tier: str = "") -> list[Path]:
    return sorted((root / "tests" / tier).rglob("test_*.py"))


def marks(source: str) -> set[str]:
    return {*re.findall(r"\bpytest\.mark\.(\w+)", source)}


def test_every_test_lies_in_a_tier(root: Path) -> None:
    tiers = {path.relative_to(root / "tests").parts[0] for path in files_of(root)}
    assert tiers == {*TIERS}
    assert len(files_of(root, "unit")) > 100


def test_unit_tests_need_no_part_are_not_slow_and_do_not_train(root: Path) -> None:
    for file in files_of(root, "unit"):
        source = file.read_text(encoding="utf-8")
        wrong = marks(source) & {*PARTS, "slow"}
        wrong |= {*IMPORTS_TRAINING.findall(source), *CALLS_TRAINING.findall(source)}
        assert not wrong, f"{file.relative_to(root)} has {sorted(wrong)}; see CONTRIBUTING.md"


def test_no_test_takes_from_another_tier(root: Path) -> None:
    for tier in TIERS:
        others = {f"tests.{other}" for other in TIERS if other != tier}
        for file in files_of(root, tier):
            taken = others & {*IMPORTS_TESTS.findall(file.read_text(encoding="utf-8"))}
            assert not taken, f"{file.relative_to(root)} takes from {taken}; use tests/support"


def test_folders_of_tests_mirror_the_packages(root: Path) -> None:
    for tier in ("unit", "system"):
        folders = {file.parent.relative_to(root / "tests" / tier) for file in files_of(root, tier)}
        for folder in folders - {Path(), *map(Path, OF_NO_PACKAGE)}:
            first, *rest = folder.parts
            package = Path(PACKAGES.get(first, f"agentrl/{first}"), *rest)
            modules = [*(root / package).glob("*.py")]  # a folder may be left with caches alone
            assert modules, f"tests/{tier}/{folder} has no package {package}"


def fast_tests(root: Path) -> list[str]:
    return (root / "tests" / "fast.txt").read_text(encoding="utf-8").splitlines()


def test_fast_tests_are_there_and_of_every_part_an_environment_needs(root: Path) -> None:
    needs = set[str]()
    for name in fast_tests(root):
        file, _, function = name.partition("::")
        source = (root / file).read_text(encoding="utf-8")
        tree = ast.parse(source)
        found = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in found, f"{name} is not there"
        of_the_file = [node for node in tree.body if isinstance(node, ast.Assign)]
        needs |= marks("\n".join(map(ast.unparse, [found[function], *of_the_file])))
    assert {"chromium", "docker", "gui", "namespaces"} <= needs
    assert "slow" not in needs

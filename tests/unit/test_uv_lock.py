"""`uv.lock`: from the public index, of this pyproject.toml, with the versions that are tested.

When one of these fails: `make lock`.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

SOURCES = {"https://pypi.org", "https://files.pythonhosted.org"}
ELSEWHERE = {"pillow"}
"""Packages whose version in constraints.txt an extra excludes."""


@pytest.fixture(scope="module")
def locked(root: Path) -> dict[str, list[dict[str, Any]]]:
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))["package"]:
        packages.setdefault(package["name"], []).append(package)
    return packages


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_comes_from_the_public_index(root: Path) -> None:
    text = (root / "uv.lock").read_text(encoding="utf-8")
    assert {*re.findall(r"\w+://[^/\"]*", text)} == SOURCES
    assert "file:" not in text


def test_it_is_the_lock_of_this_project(
    root: Path, locked: dict[str, list[dict[str, Any]]]
) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (own,) = locked[project["name"]]
    requires = own["metadata"]["requires-dist"]
    found = {(each["name"], each.get("specifier", "")) for each in requires}
    asked = [*project["dependencies"]]
    for extra, texts in project["optional-dependencies"].items():
        asked += texts if extra != "all" else []
    wanted = {(normalise(each.name), each.specifier) for each in map(Requirement, asked)}
    assert {(name, str(specifier)) for name, specifier in wanted} == {
        (name, str(Requirement(f"{name}{specifier}").specifier))
        for name, specifier in found
        if name != project["name"]
    }


def test_versions_are_those_of_the_tests(
    root: Path, locked: dict[str, list[dict[str, Any]]]
) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("#")[0].strip().partition("==") for line in lines]
    tested = {normalise(name): version for name, sign, version in pairs if sign}
    common = tested.keys() & locked.keys()
    assert len(common) > 150
    for name in common - ELSEWHERE:
        versions = {package["version"] for package in locked[name]}
        assert tested[name] in versions, name  # beside the older one that vLLM asks for

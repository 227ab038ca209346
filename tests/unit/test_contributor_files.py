"""Hooks, templates and notes for contributors: what they name is there.

Mutants seen caught: a hook that runs what `make check` does not, a field without a label, two
fields of one id, a path that is not there.
"""

import re
from pathlib import Path

import pytest
import yaml

TEMPLATES = ("bug", "environment", "feature")


def test_hooks_run_what_make_check_runs(root: Path) -> None:
    """So a commit is held to the rules, and by the versions, that CI holds it to."""
    checks = re.findall(r"^\t\$\(BIN\)/(.+)$", (root / "Makefile").read_text(), re.MULTILINE)
    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert {*hooks} == {"ruff-format", "ruff-check", "llms", "language"}
    for hook in hooks.values():
        assert hook["language"] == "system"
        command = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        # The list of pages is held by a test.
        assert hook["id"] == "llms" or command in {line.removesuffix(" --check") for line in checks}
        for script in re.findall(r"\S+\.py", command):
            assert (root / script).is_file(), script


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_issue_template_is_a_form(name: str, root: Path) -> None:
    form = yaml.safe_load((root / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert {*form} == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len({*ids}) == len(ids) > 2
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in fields:
        assert field["type"] in ("input", "textarea", "dropdown"), field
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1


def test_templates_name_files_and_commands_that_are_there(root: Path) -> None:
    files = sorted((root / ".github").rglob("*.*"))
    assert len(files) == 5
    for file in files:
        for path in re.findall(r"\b(?:docs/[\w-]+|[A-Z]{4,})\.md\b", file.read_text()):
            assert (root / path).is_file(), f"{file.name}: {path}"


def test_paths_that_agents_are_told_are_there(root: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", (root / "AGENTS.md").read_text(), flags=re.M | re.S)
    paths = re.findall(r"`((?:agentrl|tests|envs|tools|sandbox|docs)/[\w/.-]*)`", text)
    assert len(paths) > 10
    for path in paths:
        assert (root / path).exists(), path

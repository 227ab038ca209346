"""`--json`: one JSON value on stdout, and nothing else there.

Mutants seen caught: a program that the environment starts writes to stdout; a command that lists
something without the flag.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from agentrl.cli.app import app
from tests.support.commands import agentrl

LIST_NOTHING = {
    "agentrl init",
    "agentrl warmstart",
    "agentrl record",
    "agentrl export",
    "agentrl view",
    "agentrl trace record",
    "agentrl engine serve",
    "agentrl model get",
    "agentrl image build",
}
"""Commands that make something and say in a sentence where it is."""
QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, each in below.items():
        yield from leaves(each, f"{path} {name}")


def test_every_command_that_lists_something_has_it() -> None:
    without = {
        path
        for path, command in leaves(typer.main.get_command(app), "agentrl")
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without - LIST_NOTHING == set()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["envs"], "family"),
        (["envs", "retrieval"], "id"),
        (["envs", "--search", "no such thing"], None),
        (["methods"], "slot"),
        (["methods", "loss"], "keys"),
        (["model", "list"], "get_it"),
        (["config", "explain"], "meaning"),
        (["config", "explain", "learn.loss"], "method"),
        (["gc", "--dry-run"], None),
    ],
)
def test_lists_are_json(
    capsys: pytest.CaptureFixture[str], arguments: list[str], key: str | None
) -> None:
    _, out, _ = agentrl(capsys, *arguments, "--json")
    listed = json.loads(out)
    assert isinstance(listed, list)
    if key is not None:
        assert all(key in one for one in listed)
        assert listed


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["config", "show", str(QUICKSTART)], "rollout"),
        (["trace", "show", "agentic"], "quantiles"),
        (["simulate", "bimodal", "--steps", "4", "--no-recommend"], "modes"),
        (["check-env", "reasoning/ChainSum-v0", "--episodes", "1"], "kept"),
    ],
)
def test_reports_are_json(
    capsys: pytest.CaptureFixture[str], arguments: list[str], key: str
) -> None:
    code, out, _ = agentrl(capsys, *arguments, "--json")
    assert code == 0
    assert json.loads(out)[key]


LOUD = """
import os
import agentrl
from tests.support.doubles import double, doubles, gold

print("printed")
os.system("echo started")
agentrl.register_tool_env("test/Loud-v0", tools=[double], tasks=doubles, gold=gold,
                          reward=agentrl.rewards.exact_answer)
"""


def test_what_an_environment_prints_goes_to_stderr(root: Path, tmp_path: Path) -> None:
    (tmp_path / "loud_env.py").write_text(LOUD)
    command = [sys.executable, "-m", "agentrl", "check-env", "loud_env:test/Loud-v0", "--json"]
    done = subprocess.run(
        [*command, "--episodes", "1"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([str(root), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["id"] == "loud_env:test/Loud-v0"
    assert {"printed", "started"} <= set(done.stderr.splitlines())

"""`agentrl init`: a project that works as it is.

Mutants seen caught: a file left out of the package; a placeholder left in; an existing folder
overwritten; the partial folder left behind; a hyphen in the name of a module.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli import init
from agentrl.cli.init import FILES, make_project
from agentrl.config.load import load_config
from agentrl.errors import ConfigError


def test_a_project_has_every_file_and_no_placeholder(tmp_path: Path) -> None:
    project = make_project("shop", tmp_path)
    assert project == tmp_path / "shop"
    assert {path.name for path in project.iterdir()} == {
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "shop.yaml",
        "shop_env.py",
        "test_shop.py",
    }
    scaffold = Path(init.__file__).parent / "scaffold"
    assert {path.name for path in scaffold.iterdir()} == FILES.keys()
    for path in project.iterdir():
        assert "$" not in path.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    assert len((project / "shop_env.py").read_text().splitlines()) <= 25
    config = load_config(project / "shop.yaml")
    assert (config.env.id, config.run.name) == ("shop_env:shop/Multiply-v0", "shop")


def test_the_project_s_own_test_passes(root: Path, tmp_path: Path) -> None:
    project = make_project("shop", tmp_path)
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_hyphen_is_an_underscore_to_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init.init("my-agent", folder=tmp_path)
    project = tmp_path / "my-agent"
    assert capsys.readouterr().out.splitlines()[-1] == "  agentrl train my_agent.yaml"
    assert {"my_agent.yaml", "my_agent_env.py"} < {path.name for path in project.iterdir()}
    config = load_config(project / "my_agent.yaml")
    assert (config.env.id, config.run.name) == ("my_agent_env:my_agent/Multiply-v0", "my_agent")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("My-shop", "my_shop"),
        ("3d", "d"),
        ("a/b", "a_b"),
        ("..", "shop"),
        ("-x", "x"),
        ("日本", "shop"),
        ("Class", "my_class"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused(tmp_path: Path, name: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_project(name, tmp_path)
    assert f"{name!r} is not a valid Python module name" in str(caught.value)
    assert str(caught.value).endswith(f"such as {near}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["class", "os", "torch", "agentrl", "agentrl-gym", "test"])
def test_a_name_that_means_something_in_python_is_refused(tmp_path: Path, name: str) -> None:
    """Installed, a project named torch would take the place of torch."""
    with pytest.raises(ConfigError, match=rf"such as my_{name}$"):
        make_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert make_project(f"my_{name}", tmp_path).is_dir()


def test_a_folder_that_lies_here_takes_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert make_project("shop", tmp_path).is_dir()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    make_project("shop", tmp_path)
    (tmp_path / "shop" / "shop.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="already exists and is not empty; choose another name"):
        make_project("shop", tmp_path)
    assert (tmp_path / "shop" / "shop.yaml").read_text() == "mine"


def test_a_project_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(init.FILES, "gone.template", "gone.py")
    with pytest.raises(FileNotFoundError):
        make_project("shop", tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The name and the version under which the project is installed, the same everywhere.

Mutants seen caught: another name in pyproject.toml, in a page, in an error and in what `init`
writes; the old name among what a session must not see.
"""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import agentrl
from agentrl.cli import app as application
from agentrl.cli.init import make_project
from agentrl.runtime.distribution import DISTRIBUTION
from agentrl.runtime.machine import versions
from agentrl_sandbox.inside.container import OF_AGENTRL

TEXTS = ("*.md", "*.py", "*.toml", "*.yaml", "*.template", "Makefile", "run", "*.sh")
OTHER_NAME = re.compile(r"agentrl\[|pip3? install (?:-\S+ )*[\"']?agentrl(?![-\w/])")
"""An extra, or an installation, of the distribution `agentrl`, which is another project."""


def test_one_name_is_installed(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    folders = ("agentrl", "envs", "tools", "sandbox", "docs", "configs", "examples", ".ci")
    pages = [
        page
        for folder in folders
        for kind in TEXTS
        for page in (root / folder).rglob(kind)
        if page.is_file()
    ]
    pages += [page for kind in TEXTS for page in root.glob(kind)]
    assert len(pages) > 500
    named = {
        f"{page.relative_to(root)}: {found[0]}"
        for page in pages
        if page.name != "CHANGELOG.md" and "node_modules" not in page.parts
        for found in OTHER_NAME.finditer(page.read_text(encoding="utf-8"))
    }
    assert not named


@pytest.mark.parametrize(
    ("text", "is_other"),
    [
        ("pip install agentrl", True),
        ("pip install 'agentrl[web]'", True),
        ("pip install -q --upgrade agentrl", True),
        ("pip install 'agentrl-gym[web]'", False),
        ("pip install agentrl-gym", False),
        ("agentrl image build", False),
    ],
)
def test_another_projects_name_is_seen(text: str, is_other: bool) -> None:
    assert bool(OTHER_NAME.search(text)) is is_other


def test_a_session_sees_no_metadata_of_the_distribution() -> None:
    assert f"{DISTRIBUTION.replace('-', '_')}-*.dist-info" in OF_AGENTRL


def test_a_project_depends_on_the_distribution(tmp_path: Path) -> None:
    written = (make_project("shop", tmp_path) / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(written)["project"]["dependencies"] == [f"{DISTRIBUTION}[train]"]


def test_the_version_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    source = (root / tool["version"]["path"]).read_text(encoding="utf-8")
    assert f'__version__ = "{agentrl.__version__}"' in source
    monkeypatch.setattr(sys, "argv", ["agentrl", "--version"])
    with pytest.raises(SystemExit) as exit_:
        application.main()
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"agentrl {agentrl.__version__}\n"
    assert versions()["agentrl"] == agentrl.__version__

"""A release, made for real in a copy of the repository.

Mutants seen caught: a branch left moved where the tag fails, packages left by a release that fails,
an older version taken, a checkout with changes taken.
"""

import datetime
import hashlib
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.core_venv import make_wheel_venv

DAY = datetime.date(2030, 1, 2)


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", root / ".ci/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_checkout(root: Path, folder: Path, names: bytes) -> Path:
    """Return a repository with files of this one in one commit."""
    folder.mkdir()
    copy = ["tar", "-c", "-C", str(root), "--null", "--ignore-failed-read", "-T", "-"]
    packed = subprocess.run(copy, input=names, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.com")
    changelog = folder / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n- A change.\n", encoding="utf-8")
    (folder / ".gitignore").write_text("dist/\n__pycache__/\n", encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", "Everything")
    return folder


@pytest.fixture
def whole(root: Path, tmp_path: Path) -> Path:
    """Return a repository of which packages can be built."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", ":!tests", ":!docs", ":!benchmarks"]
    names = subprocess.run(command, check=True, capture_output=True).stdout
    return make_checkout(root, tmp_path / "whole", names)


@pytest.fixture
def checkout(script: ModuleType, root: Path, tmp_path: Path) -> Path:
    """Return a repository with a version and a changelog."""
    return make_checkout(root, tmp_path / "checkout", script.VERSION_FILE.encode())


def state(checkout: Path) -> tuple[str, ...]:
    """Return what a release that fails may not change."""
    refs = git(checkout, "for-each-ref")
    return refs, git(checkout, "status", "--porcelain"), git(checkout, "symbolic-ref", "HEAD")


def install(wheel: Path, folder: Path) -> Path:
    return make_wheel_venv(folder, wheel).agentrl


@pytest.mark.nightly
def test_a_release_is_packages_a_commit_and_a_tag(script: ModuleType, whole: Path) -> None:
    before, said = git(whole, "rev-parse", "HEAD"), list[str]()
    script.release(whole, "7.1.0", image=None, install=install, say=said.append)
    assert git(whole, "status", "--porcelain") == ""
    assert git(whole, "rev-parse", "main", "main^").split() == [
        git(whole, "rev-parse", "v7.1.0^{commit}"),
        before,
    ]
    assert git(whole, "cat-file", "-t", "v7.1.0") == "tag"
    assert '__version__ = "7.1.0"' in (whole / script.VERSION_FILE).read_text(encoding="utf-8")
    changelog = (whole / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.startswith("# Changelog\n\n## Unreleased\n\n## 7.1.0 (")
    out = whole / "dist" / "7.1.0"
    sums = (out / "SHA256SUMS").read_text(encoding="utf-8").split()
    named = dict(zip(sums[1::2], sums[::2], strict=True))
    assert {*named} == {"agentrl_gym-7.1.0-py3-none-any.whl", "agentrl_gym-7.1.0.tar.gz"}
    for name, digest in named.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    with pytest.raises(script.ReleaseError, match=r"the tag v7\.1\.0 exists"):
        script.release(whole, "7.1.0", image=None, install=install)
    with pytest.raises(script.ReleaseError, match="say what is new"):
        script.release(whole, "7.2.0", image=None, install=install)


class Killed(BaseException):
    """What ends a release in the middle."""


@pytest.mark.parametrize("point", ["build_twice", "try_wheel", "move_branch", "update-ref", "dry"])
def test_a_release_that_ends_early_changes_nothing(
    script: ModuleType, checkout: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*words: object, **_: object) -> None:
        raise Killed

    def skip(agentrl: Path, folder: Path, version: str) -> None: ...

    def no_install(wheel: Path, venv: Path) -> Path:
        return venv

    def build(clone: Path, folder: Path) -> list[Path]:
        wheel = folder / "packages1" / "agentrl.whl"
        wheel.parent.mkdir()
        wheel.write_bytes(b"wheel")
        return [wheel]

    run = script.run

    def run_until_tag(*words: str | Path, **more: object) -> str:
        if words[1] == "update-ref":
            raise Killed
        return run(*words, **more)

    monkeypatch.setattr(script, "build_twice", build)
    monkeypatch.setattr(script, "try_wheel", skip)
    if point == "update-ref":
        monkeypatch.setattr(script, "run", run_until_tag)
    elif point != "dry":
        monkeypatch.setattr(script, point, end)
    before = state(checkout)
    ends = {"dry_run": True} if point == "dry" else {}

    def make() -> None:
        script.release(checkout, "7.1.0", image=None, install=no_install, **ends)

    if point == "dry":
        make()
    else:
        with pytest.raises(Killed):
            make()
    assert state(checkout) == before
    assert not (checkout / "dist" / "7.1.0").exists()


def test_a_checkout_with_changes_is_refused(script: ModuleType, checkout: Path) -> None:
    (checkout / "new.txt").write_text("new\n", encoding="utf-8")
    with pytest.raises(script.ReleaseError, match=r"has changes.*(\n.*)*new\.txt"):
        script.release(checkout, "7.1.0", image=None)


def test_changes_move_under_the_version(script: ModuleType) -> None:
    text = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2029-01-01)\n\n- Old.\n"
    moved = script.move_changes(text, "0.2.0", DAY)
    assert moved == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2030-01-02)\n\n- New.\n\n"
        "## 0.1.0 (2029-01-01)\n\n- Old.\n"
    )
    for refused in (moved, "# Changelog\n", "## 0.1.0\n\n- Old.\n\n## Unreleased\n\n- New.\n"):
        with pytest.raises(script.ReleaseError, match="top section"):
            script.move_changes(refused, "0.3.0", DAY)


def test_a_version_is_newer_and_as_packages_have_it(script: ModuleType) -> None:
    text = 'DOC = 1\n\n__version__ = "0.9.0"\n'
    assert script.set_version(text, "0.10.0") == text.replace("0.9.0", "0.10.0")
    assert script.set_version(text, "0.9.0") == text
    for refused in ("0.8.9", "0.9.0rc1", "v1.0", "1.0.0+x", "one", ""):
        with pytest.raises(script.ReleaseError, match=r"is older|is no version"):
            script.set_version(text, refused)

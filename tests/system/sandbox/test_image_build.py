"""What `agentrl image build` builds, on what, and what it says when it cannot.

`.ci/run` builds both images for real.

Mutants seen caught, each applied to a copy of the tree: a sandbox on an old Debian; a desktop never
on one that is there; Debian not named for sandboxes; proxies left out; packages loaded without a
network; set-id bits left in an image of a registry.
"""

import contextlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxSettings
from agentrl_envs.gui.desktop.launch import INSTALL
from agentrl_envs.gui.desktop.parts import probe_image
from agentrl_envs.gui.desktop.settings import DesktopSettings
from agentrl_sandbox import ForkServerPool, image
from agentrl_sandbox.commands import image as commands
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.recipe import BASE, DESKTOP, PROGRAMS, RECIPES, Kind

KINDS: tuple[Kind, ...] = ("sandbox", "desktop")
TAG = "agentrl-test-build"


class Notes:
    """An engine that writes down what it is asked for."""

    def __init__(self, *images: str) -> None:
        self.images = {*images}
        self.built: list[tuple[str, Mapping[str, str], str]] = []
        self.files: list[set[str]] = []

    def find_image(self, name: str) -> str | None:
        return name if name in self.images else None

    def tag(self, name: str, other: str) -> None:
        assert name in self.images
        self.images.add(other)

    def build(
        self,
        directory: str,
        tag: str,
        *,
        arguments: Mapping[str, str] | None = None,
        network: str = "none",
    ) -> Iterator[str]:
        self.built.append((tag, arguments or {}, network))
        self.files.append({path.name for path in Path(directory).iterdir()})
        self.images.add(tag)
        yield f"Successfully tagged {tag}"

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for debootstrap; return the mirrors it was asked for."""
    mirrors = list[str]()

    def bootstrap(root: str, *, mirror: str, say: object) -> None:
        Path(root, "etc").mkdir()
        mirrors.append(mirror)

    monkeypatch.setattr(image, "bootstrap", bootstrap)
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return mirrors


def engine_with(monkeypatch: pytest.MonkeyPatch, *images: str) -> Notes:
    notes = Notes(*images)
    monkeypatch.setattr(image, "DockerEngine", lambda: notes)
    return notes


# -- on what ---------------------------------------------------------------------------------------


def test_a_sandbox_is_debian_and_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, debian: list[str]
) -> None:
    notes = engine_with(monkeypatch, BASE)
    said = list[str]()
    assert image.build("bootstrap", mirror="http://m", say=said.append) == "agentrl-sandbox"
    assert debian == ["http://m"]
    assert notes.built == [(BASE, {}, "none")]
    assert notes.files == [{"Dockerfile", "root.tar"}]
    assert notes.images == {BASE, "agentrl-sandbox"}
    assert said == [f"Successfully tagged {BASE}"]


def test_an_archive_needs_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debian: list[str]
) -> None:
    monkeypatch.setattr(image, "DockerEngine", None)
    archive = tmp_path / "root.tar"
    ran = CliRunner().invoke(commands, ["build", "--archive", str(archive), "--mirror", "http://m"])
    assert ran.exit_code == 0, ran.output
    assert debian == ["http://m"]
    with tarfile.open(archive) as opened:
        assert opened.getnames() == [".", "./etc"]
    assert [path.name for path in tmp_path.iterdir()] == ["root.tar"]
    assert f'rootfs: {{"{BASE}":' in ran.output
    ran = CliRunner().invoke(commands, ["build", "desktop", "--archive", str(archive)])
    assert "leave out the kind" in str(ran.exception)
    with pytest.raises(ConfigError, match=r"--archive /proc/x/root.tar: .*no write|/proc"):
        image.build_archive(Path("/proc/x/root.tar"), say=print)


@pytest.mark.parametrize("there", [True, False])
def test_a_desktop_is_built_on_the_debian_that_is_there(
    monkeypatch: pytest.MonkeyPatch, debian: list[str], there: bool
) -> None:
    notes = engine_with(monkeypatch, *([BASE] if there else []))
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert image.build("bootstrap", kind="desktop", say=print) == "agentrl-desktop"
    assert len(debian) == (0 if there else 1)
    tag, arguments, network = notes.built[-1]
    assert (tag, network) == ("agentrl-desktop", "host")
    assert arguments["BASE"] == BASE
    assert {*arguments["PACKAGES"].split()} == {*DESKTOP, *PROGRAMS}
    assert arguments["http_proxy"] == "http://proxy:1"
    assert "https_proxy" not in arguments


@pytest.mark.parametrize(
    ("kind", "base"), [("sandbox", "python:3.11-slim"), ("desktop", "debian:bookworm-slim")]
)
def test_slim_is_built_on_an_image_of_a_registry(
    monkeypatch: pytest.MonkeyPatch, debian: list[str], kind: Kind, base: str
) -> None:
    notes = engine_with(monkeypatch)
    assert image.build("slim", "mine:2", kind=kind, say=print) == "mine:2"
    ((tag, arguments, _),) = notes.built
    assert (tag, arguments["BASE"]) == ("mine:2", base)
    assert debian == []


def test_the_command_says_how_to_use_it(monkeypatch: pytest.MonkeyPatch, debian: list[str]) -> None:
    engine_with(monkeypatch, BASE)
    ran = CliRunner().invoke(commands, ["build", "desktop", "--tag", "mine"])
    assert ran.exit_code == 0, ran.output
    assert "desktop: {backend: docker} and desktop.image: mine" in " ".join(ran.output.split())
    ran = CliRunner().invoke(commands, ["build"])
    assert "built agentrl-sandbox; use it with sandbox.backend: docker" in ran.output


# -- for real --------------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An image as a registry would have it, with a program that makes anybody root."""
    (tmp_path / "Dockerfile").write_text(
        f"FROM {SandboxSettings().image}\n"
        "RUN cp /bin/true /usr/bin/mine && chmod 6755 /usr/bin/mine\n"
    )
    name = f"{TAG}-base"
    changed = {**RECIPES, "sandbox": replace(RECIPES["sandbox"], slim=name)}
    monkeypatch.setattr(image, "RECIPES", changed)
    with contextlib.closing(DockerEngine()) as engine:
        list(engine.build(str(tmp_path), name))
        yield name
        engine.remove_image(name)


@pytest.mark.docker
async def test_slim_serves_sessions_and_makes_nobody_more_than_he_is(registry: str) -> None:
    image.build("slim", TAG, say=print)
    pool = ForkServerPool(SandboxSettings(backend="docker", image=TAG))
    try:
        session = await pool.open()
        result = await session.exec("import os; oct(os.stat('/usr/bin/mine').st_mode & 0o7777)")
        assert result.value == "'0o755'", result
    finally:
        await pool.close()
        with contextlib.closing(DockerEngine()) as engine:
            engine.remove_image(TAG)


@pytest.mark.docker
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_registry_the_other_way_is_said(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    nowhere = replace(RECIPES[kind], slim="localhost:1/nothing")
    monkeypatch.setattr(image, "RECIPES", {**RECIPES, kind: nowhere})
    named = (
        "agentrl image build --tag" if kind == "sandbox" else "agentrl image build desktop --tag"
    )
    with pytest.raises(ConfigError, match=rf"{named} {TAG} --from bootstrap`"):
        image.build("slim", TAG, kind=kind, say=print)


# -- what is said of it ----------------------------------------------------------------------------


def test_settings_and_recipes_name_the_same_images() -> None:
    assert RECIPES["sandbox"].tag == SandboxSettings().image
    assert RECIPES["desktop"].tag == DesktopSettings().image


def test_the_pages_and_ci_install_what_the_image_has(root: Path) -> None:
    page = (root / "docs/gui.md").read_text().replace("\\\n", " ")
    installed = re.findall(r"^apt-get install --no-install-recommends (.+)$", page, re.MULTILINE)
    assert [{*line.split()} for line in installed[:2]] == [{*DESKTOP, "bubblewrap"}, {*PROGRAMS}]
    assert {*INSTALL.split()} >= {*DESKTOP, "bubblewrap"}
    lines = re.findall(r"^packages\+?=\((.*)\)$", (root / ".ci/run").read_text(), re.MULTILINE)
    assert {word for line in lines for word in line.split()} >= {*DESKTOP, *PROGRAMS}


def test_the_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    row = probe_image()
    assert (row.name, row.live) == ("desktop image", False)
    assert row.detail.startswith("no Docker engine answers")
    assert "agentrl image build desktop" in row.get_it


@pytest.mark.desktop_image
def test_the_doctor_sees_the_image() -> None:
    assert probe_image().live

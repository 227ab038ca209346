"""The images of containers, built where no registry can be reached as well.

`bootstrap` makes a root file system from Debian's packages, without what nobody reads in there.
`slim` starts from an image of a registry. A desktop's programs are installed on either.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.atomic_files import check_folder, disk_advice
from agentrl_sandbox.image_kind import Base, Kind
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.recipe import BASE, DEBIAN, RECIPES

PACKAGES = ("python3",)
"""Beside bash, coreutils and the other essential ones."""
_BOOTSTRAP_S = 900.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")  # arguments that the engine knows by itself
_LEFT_OUT = (
    *("dev/", "proc/", "sys/", "tmp/", "var/cache/apt/", "var/lib/apt/lists/", "var/log/"),
    *("usr/share/doc/", "usr/share/info/", "usr/share/locale/", "usr/share/man/"),
)
"""Beginnings of the paths of what is left out; the directories themselves stay."""
_SET_ID_BITS = 0o6000


def build(
    base: Base,
    tag: str = "",
    *,
    kind: Kind = "sandbox",
    mirror: str = "",
    say: Callable[[str], None],
) -> str:
    """Build an image into the engine and return its name; `say` hears how it goes.

    A desktop is built on the Debian that an earlier `bootstrap` left in the engine, if one did.
    `ConfigError` for what is missing here, `SandboxError` when the engine fails.
    """
    recipe = RECIPES[kind]
    tag = tag or recipe.tag
    engine = DockerEngine()
    try:
        if base == "bootstrap" and not (recipe.packages and engine.find_image(BASE)):
            with tempfile.TemporaryDirectory(prefix="agentrl-image-") as root:
                bootstrap(root, mirror=mirror, say=say)
                _build(engine, "bootstrap", BASE, root=root, say=say)
        if recipe.packages:
            on = BASE if base == "bootstrap" else recipe.slim
            proxies = {name: value for name in _PROXIES if (value := os.environ.get(name))}
            arguments = {"BASE": on, "PACKAGES": " ".join(recipe.packages), **proxies}
            # The host's network: an engine may have no other, and packages are loaded.
            _build(engine, kind, tag, arguments=arguments, network="host", say=say)
        elif base == "slim":
            _build(engine, "slim", tag, arguments={"BASE": recipe.slim}, say=say)
        else:
            engine.tag(BASE, tag)
    except SandboxError as error:
        if base == "slim":
            without = f"without a registry: `{recipe.image(tag).build} --from bootstrap`"
            raise ConfigError(f"{error}; {without}") from error
        raise
    finally:
        engine.close()
    return tag


def build_archive(archive: Path, *, mirror: str = "", say: Callable[[str], None]) -> None:
    """Write a root file system of Debian into a tar archive, for which no engine is asked.

    `ConfigError` for what is missing here, and for an archive that cannot be written.
    """
    if why := check_folder(archive.parent):
        raise ConfigError(f"--archive {archive}: {why}")
    with tempfile.TemporaryDirectory(prefix="agentrl-image-") as root:
        bootstrap(root, mirror=mirror, say=say)
        partial = archive.with_name(f".{archive.name}.{os.getpid()}.partial")
        try:
            pack(root, partial)
            partial.replace(archive)
        except OSError as error:
            raise ConfigError(f"--archive {archive}: {error}; {disk_advice(error)}") from error
        finally:
            partial.unlink(missing_ok=True)


def _build(
    engine: DockerEngine,
    name: str,
    tag: str,
    *,
    root: str = "",
    arguments: Mapping[str, str] | None = None,
    network: str = "none",
    say: Callable[[str], None],
) -> None:
    """Build `NAME.Dockerfile`, with the files of `root` in an archive beside it."""
    with tempfile.TemporaryDirectory(prefix="agentrl-image-") as context:
        dockerfile = files("agentrl_sandbox") / "images" / f"{name}.Dockerfile"
        Path(context, "Dockerfile").write_bytes(dockerfile.read_bytes())
        if root:
            pack(root, Path(context, "root.tar"))
        for line in engine.build(context, tag, arguments=arguments, network=network):
            say(line)


def bootstrap(root: str, *, mirror: str = "", say: Callable[[str], None]) -> None:
    """Fill a directory with a root file system of Debian; `ConfigError` when that fails."""
    if os.geteuid() != 0:
        raise ConfigError(
            "an image from Debian packages must be built by root, who may create files of other "
            "users; run `sudo agentrl image build`, or use a registry: `agentrl image build --from "
            "slim`"
        )
    if (program := shutil.which("debootstrap")) is None:
        raise ConfigError(
            "debootstrap is not installed; install it (apt-get install debootstrap), or use a "
            "registry: `agentrl image build --from slim`"
        )
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    last = ""
    for line in _output([program, *options, DEBIAN, root, *([mirror] if mirror else [])]):
        last = line or last
        say(line)
    if not Path(root, "usr/bin/python3").exists():
        raise ConfigError(
            f"debootstrap could not create a root file system: {last}; it needs a reachable Debian "
            "mirror (--mirror, http_proxy) and the signing keys of its packages (apt-get install "
            "debian-archive-keyring)"
        )


def _output(command: list[str]) -> Iterator[str]:
    """Yield what a program writes, line by line, and end it after a while."""
    deadline = ["timeout", "--kill-after=10", f"{_BOOTSTRAP_S:g}"]
    with subprocess.Popen(
        [*deadline, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield line.rstrip()
        except BaseException:
            process.terminate()
            raise


def pack(root: str, archive: Path) -> None:
    """Write a root file system into an archive, without what sandboxes have no use for."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        packed.add(root, arcname=".", filter=_filter_member)


def _filter_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.removeprefix("./").startswith(_LEFT_OUT):
        return None
    member.mode &= ~_SET_ID_BITS  # no program in there shall make anybody more than he is
    return member

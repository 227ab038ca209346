"""The image of the docker back-end, built where no registry can be reached as well.

`bootstrap` makes a root file system from Debian's packages, without what nobody reads in there.
`slim` starts from an image of a registry.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Literal

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.launch.engine import Engine

Base = Literal["bootstrap", "slim"]
TAG = SandboxSettings().image
DEBIAN = "bookworm"
PACKAGES = ("python3",)
"""Beside bash, coreutils and the other essential ones."""
_BOOTSTRAP_S = 900.0
_DOCKERFILES = {"bootstrap": "bootstrap.Dockerfile", "slim": "Dockerfile"}
_LEFT_OUT = (
    *("dev/", "proc/", "sys/", "tmp/", "var/cache/apt/", "var/lib/apt/lists/", "var/log/"),
    *("usr/share/doc/", "usr/share/info/", "usr/share/locale/", "usr/share/man/"),
)
"""Beginnings of the paths of what is left out; the directories themselves stay."""
_SET_ID_BITS = 0o6000


def build(base: Base, tag: str, *, mirror: str = "", say: Callable[[str], None]) -> None:
    """Build an image into the engine and call it `tag`; `say` hears how it goes.

    `ConfigError` for what is missing here, `SandboxError` when the engine fails.
    """
    engine = Engine()
    try:
        with tempfile.TemporaryDirectory(prefix="agentrl-image-") as context:
            dockerfile = files("agentrl_sandbox") / "images" / _DOCKERFILES[base]
            Path(context, "Dockerfile").write_bytes(dockerfile.read_bytes())
            if base == "bootstrap":
                with tempfile.TemporaryDirectory(prefix="agentrl-image-") as root:
                    bootstrap(root, mirror=mirror, say=say)
                    pack(root, Path(context, "root.tar"))
            for line in engine.build(context, tag):
                say(line)
    except SandboxError as error:
        if base == "slim":
            without = "without a registry: `agentrl image build --from bootstrap`"
            raise ConfigError(f"{error}; {without}") from error
        raise
    finally:
        engine.close()


def bootstrap(root: str, *, mirror: str = "", say: Callable[[str], None]) -> None:
    """Fill a directory with a root file system of Debian; `ConfigError` when that fails."""
    if os.geteuid() != 0:
        raise ConfigError(
            "an image from Debian's packages is made by root, who may make another's files; run "
            "`sudo agentrl image build`, or use a registry: `agentrl image build --from slim`"
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
            f"debootstrap could not make a root file system: {last}; it needs a mirror of Debian "
            "that it can reach (--mirror, http_proxy) and the keys of its packages "
            "(apt-get install debian-archive-keyring)"
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
        packed.add(root, arcname=".", filter=_kept)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.removeprefix("./").startswith(_LEFT_OUT):
        return None
    member.mode &= ~_SET_ID_BITS  # no program in there shall make anybody more than he is
    return member

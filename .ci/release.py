"""Make a release of the branch that is checked out: packages, an image, a commit and a tag.

    python .ci/release.py 0.2.0 --dry-run     do all of it but the commit and the tag
    python .ci/release.py 0.2.0               and leave the packages in dist/0.2.0

Everything happens in a clone, so a release that fails or is killed leaves the checkout as it was.
The branch moves and the tag is made at the very end. Nothing is uploaded.
"""

import argparse
import datetime
import hashlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
VERSION_FILE = "agentrl/runtime/distribution.py"
CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## Unreleased\n"
LINE_S = 1200.0
"""Deadline of one command: a build of an image may download gigabytes."""

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """A reason not to release, with the way out."""


def set_version(text: str, version: str) -> str:
    """Return the module of the version with another one, which must not be older."""
    found = _VERSION.findall(text)
    if len(found) != 1:
        raise ReleaseError(f"{VERSION_FILE} must set __version__ once, and does {len(found)} times")
    try:
        new = Version(version)
    except InvalidVersion:
        new = None
    if new is None or str(new) != version or new.local:
        raise ReleaseError(
            f"{version!r} is no version as packages have it, such as 0.2.0 or 1.0rc1"
        )
    if new < Version(found[0]):
        raise ReleaseError(f"{version} is older than {found[0]}, the version of {VERSION_FILE}")
    return _VERSION.sub(f'__version__ = "{version}"', text)


def move_changes(text: str, version: str, day: datetime.date) -> str:
    """Return the changelog with its unreleased entries under a version and a date."""
    above, heading, below = text.partition(UNRELEASED)
    entries = below.partition("\n## ")[0]
    if not heading or re.search("^## ", above, re.MULTILINE) or not entries.strip():
        raise ReleaseError(
            f"the top section of {CHANGELOG} must be {UNRELEASED.strip()!r} and say what is new"
        )
    return f"{above}{UNRELEASED}\n## {version} ({day.isoformat()})\n{below}"


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """Run a command and return its output; `ReleaseError` with its last words where it fails."""
    words = [str(word) for word in command]
    ran = subprocess.run(
        ["env", *(f"{name}={value}" for name, value in environ.items()), *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LINE_S,
        check=False,
    )
    if ran.returncode:
        raise ReleaseError(
            f"`{shlex.join(words)}` exits with {ran.returncode}:\n{ran.stdout[-4000:]}"
        )
    return ran.stdout.strip()


def check_checkout(root: Path, tag: str) -> None:
    """Raise where the checkout has changes or no branch, or the tag exists."""
    if changes := run("git", "status", "--porcelain", cwd=root):
        raise ReleaseError(f"the checkout has changes; commit or stash them first:\n{changes}")
    if not run("git", "branch", "--show-current", cwd=root):
        raise ReleaseError("no branch is checked out; a release moves one: git switch BRANCH")
    if run("git", "tag", "--list", tag, cwd=root):
        raise ReleaseError(f"the tag {tag} exists; a release needs a version of its own")


def commit_release(root: Path, clone: Path, version: str, day: datetime.date) -> None:
    """Clone the checkout, and commit and tag the release in the clone."""
    run("git", "clone", "-q", "--shared", root, clone)
    for name in ("user.name", "user.email"):
        run("git", "config", name, run("git", "config", name, cwd=root), cwd=clone)
    for file, text in (
        (clone / VERSION_FILE, set_version((clone / VERSION_FILE).read_text("utf-8"), version)),
        (clone / CHANGELOG, move_changes((clone / CHANGELOG).read_text("utf-8"), version, day)),
    ):
        file.write_text(text, "utf-8")
    run("git", "commit", "-qam", f"Release {version}", cwd=clone)
    run("git", "tag", "-a", f"v{version}", "-m", f"agentrl {version}", cwd=clone)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def build_twice(clone: Path, folder: Path) -> list[Path]:
    """Build both packages from two clones; return them where they have the same bytes."""
    made: list[dict[str, str]] = []
    epoch = run("git", "log", "-1", "--format=%ct", cwd=clone)
    for number in (1, 2):
        source, out = folder / f"source{number}", folder / f"packages{number}"
        run("git", "clone", "-q", "--shared", clone, source)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source]
        run(*command, cwd=folder, SOURCE_DATE_EPOCH=epoch)
        made.append({file.name: digest(file) for file in sorted(out.iterdir())})
    if made[0] != made[1]:
        raise ReleaseError(f"two builds differ, so neither can be checked: {made[0]} and {made[1]}")
    return sorted((folder / "packages1").iterdir())


def install_from_index(wheel: Path, venv: Path) -> Path:
    """Install a wheel into an empty venv with what it needs; return the program `agentrl`."""
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "python", "-m", "pip", "install", "-q", wheel, cwd=venv)
    return venv / "bin" / "agentrl"


def try_wheel(agentrl: Path, folder: Path, version: str) -> None:
    """Run an installed agentrl in an empty folder."""
    folder.mkdir()
    said = run("env", "-u", "PYTHONPATH", agentrl, "--version", cwd=folder)
    if said != f"agentrl {version}":
        raise ReleaseError(f"the installed wheel calls itself {said!r}, not agentrl {version}")
    if "quickstart" not in run("env", "-u", "PYTHONPATH", agentrl, "configs", cwd=folder):
        raise ReleaseError("the installed wheel has no config named quickstart")
    run("env", "-u", "PYTHONPATH", agentrl, "init", "shop", cwd=folder)


def build_image(root: Path, clone: Path, version: str, arguments: Sequence[str]) -> str:
    """Build the container image of the release; return what was done, in words."""
    try:
        run("docker", "version")
    except ReleaseError:
        return "no container engine answers: the image is not built"
    if (root / "wheels").is_dir():  # see the Makefile: what an image is made of without an index
        shutil.copytree(root / "wheels", clone / "wheels")
    run("docker", "build", "--tag", f"agentrl:{version}", *arguments, clone)
    return f"built the image agentrl:{version}"


def move_branch(root: Path, clone: Path, tag: str) -> None:
    """Move the branch and make the tag: both, or neither where an exception gets in between."""
    before = run("git", "rev-parse", "HEAD", cwd=root)
    check_checkout(root, tag)
    run("git", "fetch", "-q", "--no-tags", clone, f"refs/tags/{tag}", cwd=root)
    released = run("git", "rev-parse", f"refs/tags/{tag}", cwd=clone)
    try:
        run("git", "merge", "-q", "--ff-only", f"{released}^{{commit}}", cwd=root)
        run("git", "update-ref", f"refs/tags/{tag}", released, "", cwd=root)
    except BaseException:
        run("git", "reset", "-q", "--keep", before, cwd=root)
        raise


def release(
    root: Path,
    version: str,
    *,
    dry_run: bool = False,
    image: Sequence[str] | None = (),
    install: Callable[[Path, Path], Path] = install_from_index,
    say: Callable[[str], None] = lambda line: print(line, flush=True),  # noqa: T201
) -> None:
    """Release what is checked out in `root`; `image` has arguments of its build, or is None."""
    tag, day = f"v{version}", datetime.datetime.now(datetime.UTC).date()
    check_checkout(root, tag)
    out = root / "dist" / version
    if out.exists():
        raise ReleaseError(f"{out} exists; remove what an earlier release has left there")
    with tempfile.TemporaryDirectory(prefix="agentrl-release-") as name:
        folder = Path(name)
        clone = folder / "clone"
        commit_release(root, clone, version, day)
        packages = build_twice(clone, folder)
        say(f"built {' and '.join(file.name for file in packages)} twice, with the same bytes")
        (wheel,) = (file for file in packages if file.suffix == ".whl")
        try_wheel(install(wheel, folder / "venv"), folder / "empty", version)
        say("installed the wheel into an empty venv, and ran it there")
        sums = "".join(f"{digest(file)}  {file.name}\n" for file in packages)
        (folder / "packages1" / "SHA256SUMS").write_text(sums, "utf-8")
        if image is None:
            say("the image is not built: --no-image")
        else:
            say(build_image(root, clone, version, image))
        if dry_run:
            say(f"a dry run: no commit, no tag, no dist/{version}\n{sums}")
            return
        try:
            shutil.copytree(folder / "packages1", out)
            move_branch(root, clone, tag)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    say(f"made the tag {tag} and dist/{version}; to publish: git push --follow-tags\n{sums}")


def stop(signal_number: int, frame: FrameType | None) -> None:
    """End as after Ctrl-C, so that what is temporary is removed."""
    sys.exit(128 + signal_number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="do all but the commit and the tag")
    parser.add_argument("--no-image", action="store_true", help="build no container image")
    parser.add_argument(
        "--image-arguments", default="", help="more of `docker build`: see docs/containers.md"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    image = None if arguments.no_image else shlex.split(arguments.image_arguments)
    try:
        release(ROOT, arguments.version, dry_run=arguments.dry_run, image=image)
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Build of an image: the steps of a plan, one after the other, in a container of its base."""

import os
import stat
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from agentrl.errors import SandboxError
from agentrl.runtime.threads import run_in_thread
from agentrl_sandbox.provider.namespaces.container import NamespaceContainer
from agentrl_sandbox.provider.namespaces.image_plan import CopyStep, RunStep

_STEP_S = 86400.0
"""Of one step; the deadline of a build is its caller's."""
_QUERY_S = 60.0
_SHOWN_CHARACTERS = 2000
_OWNER_FILE = "/.agentrl-owner"
_FIND_OWNER = 'touch "$2" && chown "$1" "$2" && stat -c "%u %g" "$2" && rm "$2"'
_NAMES = Path("/etc/resolv.conf")


async def play_steps(container: NamespaceContainer, steps: Sequence[RunStep | CopyStep]) -> None:
    """Do the steps of a build; `SandboxError` names the file and the line of one that fails."""
    for step in steps:
        if isinstance(step, RunStep):
            await _run(container, step)
        else:
            await _copy(container, step)


async def put_names(container: NamespaceContainer) -> None:
    """Give a build with a network the servers of names that this machine asks."""
    archive = container.folder / "names.tar"
    if await run_in_thread(_NAMES.exists):
        await run_in_thread(_write_names, archive)
        await container.put_file(archive)


def remove_names(upper: Path) -> None:
    """Remove what `put_names` put from a layer; links in it are not followed."""
    with suppress(OSError):
        folder = os.open(upper / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.unlink(_NAMES.name, dir_fd=folder)
        finally:
            os.close(folder)


def _write_names(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add(_NAMES.resolve(), str(_NAMES)[1:], filter=_own_by_root)


def _own_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
    return member


async def _run(container: NamespaceContainer, step: RunStep) -> None:
    output = await container.exec(
        step.argv, timeout_s=_STEP_S, cwd=step.cwd, env=step.env, user=step.user
    )
    if output.exit_code != 0:
        printed = (output.stdout + output.stderr).decode(errors="replace")[-_SHOWN_CHARACTERS:]
        raise SandboxError(f"{step.place} ended with exit code {output.exit_code}:\n{printed}")


async def _copy(container: NamespaceContainer, step: CopyStep) -> None:
    target, into_folder = PurePosixPath(step.target), step.into_folder
    if not into_folder and not step.sources[0].is_dir():
        check = ["test", "-d", str(target)]
        into_folder = (await container.exec(check, timeout_s=_QUERY_S, user="0")).exit_code == 0
    owner = await _find_owner(container, step) if step.owner else (0, 0)
    is_folder = into_folder or step.sources[0].is_dir()
    folder = str(target if is_folder else target.parent)
    make_folder = ("mkdir", "-p", "--", folder)
    await _run(container, RunStep(place=step.place, argv=make_folder, cwd="/", user="0", env={}))
    archive = container.folder / "copy.tar"
    await run_in_thread(_pack, archive, step, target, into_folder=into_folder, owner=owner)
    try:
        await container.put_file(archive)
    finally:
        archive.unlink(missing_ok=True)


def _pack(
    path: Path,
    step: CopyStep,
    target: PurePosixPath,
    *,
    into_folder: bool,
    owner: tuple[int, int],
) -> None:
    def change(member: tarfile.TarInfo) -> tarfile.TarInfo:
        _own_by_root(member)
        member.uid, member.gid = owner
        member.mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if step.mode is not None and not member.issym():
            member.mode = step.mode
        return member

    with tarfile.open(path, "w") as archive:
        for source in step.sources:
            if source.is_dir():
                for child in sorted(source.iterdir()):
                    archive.add(child, str(target / child.name)[1:], filter=change)
            else:
                name = target / source.name if into_folder else target
                archive.add(source.resolve(), str(name)[1:], filter=change)


async def _find_owner(container: NamespaceContainer, step: CopyStep) -> tuple[int, int]:
    """Return the ids of `--chown`, whose names are those of the container's own users."""
    argv = ["sh", "-c", _FIND_OWNER, "sh", step.owner, _OWNER_FILE]
    output = await container.exec(argv, timeout_s=_QUERY_S, user="0")
    if output.exit_code != 0:
        why = output.stderr.decode(errors="replace")[:500]
        raise SandboxError(f"{step.place}: --chown={step.owner}: {why}")
    uid, gid = map(int, output.stdout.split())
    return uid, gid if ":" in step.owner else uid

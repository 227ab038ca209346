"""Tar archives between a task folder and a container."""

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentrl_sandbox.provider.content import walk_files

LOG_FOLDERS = ("logs", "logs/agent", "logs/verifier", "logs/artifacts")
"""Folders that Harbor gives every container, for everybody to write to."""


def pack_folders(names: Sequence[str]) -> bytes:
    """Return an archive of empty folders that everybody may write to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(member)
    return buffer.getvalue()


def pack_tree(folder: Path, name: str) -> bytes:
    """Return an archive of a folder under another name, root's, with its scripts executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        archive.add(folder, arcname=name, recursive=False, filter=_own)
        for path in walk_files(folder):
            inside = f"{name}/{path.relative_to(folder).as_posix()}"
            archive.add(path, arcname=inside, recursive=False, filter=_own)
    return buffer.getvalue()


def _own(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.name.endswith(".sh"):
        member.mode |= 0o111
    return member


@dataclass(frozen=True, slots=True)
class CleanArtifact:
    """An artefact with what is harmless in it."""

    archive: bytes
    """To unpack into the folder that the artefact lies in."""
    is_folder: bool


def clean_artifact(archive: bytes, source: str) -> CleanArtifact | None:
    """Return an artefact under its own name, with what is harmless in it; None where nothing is.

    Files and folders stay, root's and without set-id bits, the artefact's own folder for everybody
    to write to; so do links that lead nowhere outside of it. The agent made it: nothing of it is
    trusted.
    """
    root = PurePosixPath(source).name
    kinds: list[bytes] = []
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as opened,
        tarfile.open(fileobj=buffer, mode="w") as cleaned,
    ):
        for member in opened:
            name = PurePosixPath(member.name)
            below = PurePosixPath(*name.parts[1:])
            if ".." in name.parts or name.is_absolute() or not _is_harmless(member, below):
                continue
            kinds.append(member.type)
            member.name = str(root / below)
            member.mode = 0o777 if member.isdir() and not below.parts else member.mode & 0o777
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            cleaned.addfile(member, opened.extractfile(member) if member.isreg() else None)
    return CleanArtifact(buffer.getvalue(), kinds[0] == tarfile.DIRTYPE) if kinds else None


def _is_harmless(member: tarfile.TarInfo, below: PurePosixPath) -> bool:
    if member.isreg() or member.isdir():
        return True
    if not member.issym() or member.linkname.startswith("/"):
        return False
    depth = len(below.parts) - 1
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return depth >= 0 and bool(below.parts)

"""Changes of a container: its own layer, compared with the layers of its image."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from agentrl.sandbox_provider import FileChange

_OPAQUE = "user.overlay.opaque"
_PATH_BYTES = 4096
"""Length from which the kernel opens no path."""


def find_changes(upper: Path, layers: Sequence[Path]) -> list[FileChange]:
    """Return the changes of an upper layer to those below it, the last of which is first.

    Folders whose path is longer than the kernel opens are not looked into: no program is there.
    """
    changes: list[FileChange] = []
    waiting: list[tuple[str, Sequence[Path]]] = [("", layers)]
    while waiting:
        folder, below = waiting.pop()
        with os.scandir(f"{upper}{folder}") as entries:
            rows = sorted(entries, key=lambda entry: entry.name)
        for entry in rows:
            path = f"{folder}/{entry.name}"
            if len(os.fsencode(entry.path)) >= _PATH_BYTES:
                changes.append(FileChange(path, "added"))
                continue
            places = [place / entry.name for place in below]
            places = [place for place in places if os.path.lexists(place)]
            status = entry.stat(follow_symlinks=False)
            is_in_image = bool(places) and not _is_whiteout(os.lstat(places[0]))
            if _is_whiteout(status):
                if is_in_image:
                    changes.append(FileChange(path, "deleted"))
                continue
            changes.append(FileChange(path, "modified" if is_in_image else "added"))
            if not entry.is_dir(follow_symlinks=False):
                continue
            merged = _list_merged(places) if is_in_image else []
            if _is_opaque(entry.path):
                names = _list_names(merged) - set(os.listdir(entry.path))
                changes += [FileChange(f"{path}/{name}", "deleted") for name in sorted(names)]
            waiting.append((path, merged))
    return changes


def _list_merged(places: Sequence[Path]) -> list[Path]:
    """Return the folders of the layers that are seen together, from the top."""
    merged: list[Path] = []
    for place in places:
        if place.is_symlink() or not place.is_dir():
            break
        merged.append(place)
        if _is_opaque(str(place)):
            break
    return merged


def _list_names(merged: Sequence[Path]) -> set[str]:
    """Return the names in folders that are seen together."""
    kinds: dict[str, bool] = {}
    for place in merged:
        with os.scandir(place) as entries:
            for entry in entries:
                kinds.setdefault(entry.name, _is_whiteout(entry.stat(follow_symlinks=False)))
    return {name for name, is_whiteout in kinds.items() if not is_whiteout}


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False

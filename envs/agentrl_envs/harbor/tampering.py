"""Changes that let an agent decide what a verifier sees: of the programs that run it."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from agentrl.sandbox_provider import FileChange

SYSTEM_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
)
"""Folders whose files come with an image; new ones beside them are an installation."""
LOCAL_FOLDERS = ("/usr/local/bin", "/usr/local/sbin")
"""Folders that are looked through before those of the system."""
_PRELOADED = ("/etc/ld.so.preload", "/etc/ld.so.cache.d")
_STARTED = ("sitecustomize.py", "usercustomize.py")
"""Python files that every interpreter runs when it starts."""


def find_tampering(
    changes: Iterable[FileChange], system_programs: Iterable[str], watched: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the changed paths by which a verdict could be prepared, sorted.

    A program or library of the image that is another one or gone; a new program that is found
    before the image's of the same name (`system_programs`, by name); what every program, or every
    Python, loads when it starts. `watched` are further paths of the image that nobody may change.
    """
    rows = {change.path: change for change in changes}
    folders = {str(parent) for path in rows for parent in PurePosixPath(path).parents}
    programs = frozenset(system_programs)
    return tuple(
        sorted(
            path
            for path, change in rows.items()
            # A folder is modified when what it holds is.
            if not (change.kind == "modified" and path in folders)
            and _is_tampering(change, programs, watched)
        )
    )


def _is_tampering(change: FileChange, programs: frozenset[str], watched: Sequence[str]) -> bool:
    path = PurePosixPath(change.path)
    if change.path in _PRELOADED or path.name in _STARTED or change.path in watched:
        return True
    if change.kind == "added":
        return (str(path.parent) in LOCAL_FOLDERS and path.name in programs) or (
            path.suffix == ".pth" and "python" in change.path
        )
    return any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)

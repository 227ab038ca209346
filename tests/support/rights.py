"""Rights of files."""

from pathlib import Path


def read_rights(path: Path) -> int:
    """Return who may read, write and run a file."""
    return path.stat().st_mode & 0o777


def has_rights_of_new_files(folder: Path) -> bool:
    """Return whether each file below a folder has the rights of one that is made beside it."""
    new = folder.parent / "new"
    new.touch()
    return {read_rights(p) for p in folder.rglob("*") if p.is_file()} == {read_rights(new)}

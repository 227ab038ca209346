"""Rights of files."""

from pathlib import Path


def readable_by_all(folder: Path) -> bool:
    """Return whether everybody may read each file below a folder, and nobody else may write."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.stat().st_mode & 0o777 for path in files} == {0o644}

"""Files of a session, handled by the keeper, which trusts nothing it finds there.

Every component of a path is opened on its own and no link is followed, so a link planted by the
code leads nowhere.
"""

import os
import shutil
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts:
        raise PermissionError(
            f"{path!r} is not a path below the session's directory; give a relative one without .."
        )
    return parts


def _open_parent(root: str, path: str, *, make: bool) -> tuple[int, str]:
    """Return a descriptor of the directory that holds `path`, and the last component."""
    *above, name = _parts(path)
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            if make:
                _make(part, here)
            below = _open(part, _DIRECTORY, here, path)
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here, name


def _make(name: str, directory: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:
        return


def _open(name: str, flags: int, directory: int, path: str) -> int:
    if _is_link(name, directory):
        raise PermissionError(f"{path!r} goes through a link, and links are not followed")
    return os.open(name, flags, 0o644, dir_fd=directory)


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _regular(fd: int, path: str) -> int:
    """Return the size of an open file; `OSError` unless it is a regular one."""
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path!r} is not a regular file")
    return state.st_size


def write(root: str, path: str, data: bytes, *, limit_bytes: int) -> None:
    """Write a file below `root`, making its parents."""
    if len(data) > limit_bytes:
        raise OSError(
            f"{path!r} has {len(data)} bytes, over sandbox.limits.file_bytes={limit_bytes}"
        )
    directory, name = _open_parent(root, path, make=True)
    try:
        fd = _open(name, os.O_WRONLY | os.O_CREAT | _FILE, directory, path)
    finally:
        os.close(directory)
    with open(fd, "wb") as file:
        _regular(fd, path)
        os.ftruncate(fd, 0)
        file.write(data)


def read(root: str, path: str, *, limit_bytes: int) -> bytes:
    """Return a regular file below `root`."""
    directory, name = _open_parent(root, path, make=False)
    try:
        fd = _open(name, os.O_RDONLY | _FILE, directory, path)
    finally:
        os.close(directory)
    with open(fd, "rb") as file:
        size_bytes = _regular(fd, path)
        data = file.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise OSError(
                f"{path!r} has {size_bytes} bytes, over sandbox.limits.file_bytes={limit_bytes}"
            )
        return data


def entries(root: str, path: str) -> list[tuple[str, str, int]]:
    """Return name, kind and size of what a directory below `root` holds, by name."""
    if path in ("", "."):
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        parent, name = _open_parent(root, path, make=False)
        try:
            directory = _open(name, _DIRECTORY, parent, path)
        finally:
            os.close(parent)
    try:
        with os.scandir(directory) as found:
            names = sorted(_entry(entry) for entry in found)
    finally:
        os.close(directory)
    return names


def _entry(entry: "os.DirEntry[str]") -> tuple[str, str, int]:
    name = entry.name.encode(errors="replace").decode()
    mode = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(mode.st_mode):
        return name, "file", mode.st_size
    if stat.S_ISDIR(mode.st_mode):
        return name, "directory", 0
    return name, "link" if stat.S_ISLNK(mode.st_mode) else "other", 0


def copy_tree(source: str, target: str) -> None:
    """Copy directories, regular files and links (as links); skip everything else."""
    with os.scandir(source) as entries:
        for entry in entries:
            to = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), to)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(to)
                copy_tree(entry.path, to)
                shutil.copystat(entry.path, to, follow_symlinks=False)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(entry.path, to)


def _copy_file(source: str, target: str) -> None:
    fd = os.open(source, os.O_RDONLY | _FILE)
    with open(fd, "rb") as data:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            with open(target, "xb") as copy:
                shutil.copyfileobj(data, copy, 2**20)
            shutil.copystat(source, target, follow_symlinks=False)


def used_bytes(root: str) -> int:
    """Return the bytes of the regular files below `root`."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total


def remove_tree(root: str) -> None:
    """Delete a directory, also one whose permissions say no."""
    os.chmod(root, 0o700)
    for directory, names, _ in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(root)

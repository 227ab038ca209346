"""Changes that let an agent decide what a verifier sees: of the programs and libraries that run it.

An image's program is replaced (`modified`, `deleted`), or hidden: something new is found before it.
`list_hidden` says what a new file would hide, and whoever has the container looks whether it is
there.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from agentrl.sandbox_provider import FileChange

SYSTEM_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/usr/local/lib64"),
    "/usr/local/libexec",
)
"""Folders whose files come with an image; new ones beside them are an installation."""
LOCAL_FOLDERS = ("/usr/local/bin", "/usr/local/sbin")
"""Folders that are looked through before those of the system."""
SYSTEM_PROGRAMS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_PRELOADED = ("/etc/ld.so.preload", "/etc/ld.so.cache.d")
_STARTED = ("sitecustomize.py", "usercustomize.py")
"""Python files that every interpreter runs when it starts."""
_LIBRARY = re.compile(r"(?P<prefix>.*)/lib(?:64)?/(?P<python>python3(?:\.(?P<minor>\d+))?)(?:/.*)?")
"""Folder of Python's library, or one within."""
_ZIPPED = re.compile(r".*/lib(?:64)?/python3\d+\.zip")
"""Archive that Python looks through before its library."""
_PYTHONS = ("python3", "python", "bin/python3", "bin/python")
"""Interpreters that read a `pyvenv.cfg`, from its folder."""
_EXTENSION = ".cpython-3{}-{}-linux-gnu.so"
_MACHINES = ("x86_64", "aarch64")
_METADATA = (".dist-info", ".egg-info")
"""Ends of the folders that describe Python's packages, in any case."""
LOADER_CACHE = "/etc/ld.so.cache"
"""File that says where programs find their libraries; `ldconfig` writes it. musl has none."""
LOADER_FILES = (LOADER_CACHE, *(f"/etc/ld-musl-{machine}.path" for machine in _MACHINES))
"""All files that say so."""
_MUSL_FOLDERS = ("/lib", "/usr/local/lib", "/usr/lib")
"""Folders that musl looks through for libraries, in their order."""
_LIBRARY_FOLDERS = (
    *(f"/usr/lib/{machine}-linux-gnu" for machine in _MACHINES),
    *(f"/lib/{machine}-linux-gnu" for machine in _MACHINES),
    *("/lib", "/usr/lib", "/lib64", "/usr/lib64"),
)


def find_tampering(
    changes: Iterable[FileChange],
    *,
    hiding: Collection[str] = (),
    watched: Collection[str] = (),
    search_path: Sequence[str] = (),
    workdir: str = "/",
) -> tuple[str, ...]:
    """Return the changed paths by which a verdict could be prepared, sorted.

    A program or library of the image that is another one or gone; what hides one of them; what
    every program, or every Python, loads when it starts.

    Args:
        changes: What differs from the image.
        hiding: New paths that hide what the image has; see `list_hidden`.
        watched: Further paths of the image that nobody may change.
        search_path: Folders that the container's programs are found in.
        workdir: Folder that the agent works on: it may replace what is in it.
    """
    rows = {change.path: change for change in changes}
    parents = {str(parent) for path in rows for parent in PurePosixPath(path).parents}
    folders = [*SYSTEM_FOLDERS, *_list_program_folders(search_path, workdir)]
    program_folders = {*SYSTEM_PROGRAMS, *LOCAL_FOLDERS, *search_path}
    venvs = _list_new_venvs(rows)
    return tuple(
        sorted(
            path
            for path, change in rows.items()
            # A folder is modified when what it holds is; Docker says so of a program, too, which is
            # a folder now.
            if not (
                change.kind == "modified"
                and path in parents
                and not _names_program(path, program_folders)
            )
            and (path in hiding or path in watched or _is_tampering(change, folders, venvs))
        )
    )


def list_caches(changes: Iterable[FileChange]) -> tuple[str, ...]:
    """Return the new and changed files of bytecode in Python's libraries, of whose sources it may
    not be: without them Python compiles the sources again.
    """
    return tuple(
        change.path for change in changes if change.kind != "deleted" and _is_cache(change.path)
    )


def list_entry_points(
    changes: Iterable[FileChange], search_path: Sequence[str] = (), workdir: str = "/"
) -> tuple[str, ...]:
    """Return the new files that may name entry points to Pythons of the image: pytest loads the
    plugins of those without being asked. A folder of them may be a link.
    """
    rows = {change.path for change in changes if change.kind == "added"}
    parents = {str(PurePosixPath(path).parent) for path in rows}
    folders = [*SYSTEM_FOLDERS, *_list_program_folders(search_path, workdir)]
    listed: list[str] = []
    for path in rows:
        file = PurePosixPath(path)
        metadata = file.parent if file.name == "entry_points.txt" else file
        is_read = "/.local/lib/python3" in path or any(map(file.is_relative_to, folders))
        if is_read and metadata.name.lower().endswith(_METADATA) and path not in parents:
            listed.append(path)
    return tuple(sorted(listed))


def list_hidden(
    path: str,
    search_path: Sequence[str] = (),
    *,
    is_cached: bool = False,
    has_cache: bool = False,
) -> tuple[str, ...]:
    """Return the paths that a new file would hide, if they are there.

    Of a program those of its name in the folders that are looked through later, of a Python module
    those of its name that `import` finds later, of a `pyvenv.cfg` the interpreters that read it; of
    a shared library those of its name: where one of `LOADER_FILES` has changed (`is_cached`) the
    system's, where the image has no `LOADER_CACHE` (`has_cache`) those that musl finds later.
    """
    file = PurePosixPath(path)
    folder = str(file.parent)
    if file.name == "pyvenv.cfg":
        beside = folder in search_path or f"{folder}/bin" in search_path
        return tuple(f"{folder}/{python}" for python in _PYTHONS) if beside else ()
    later = [*search_path[search_path.index(folder) + 1 :]] if folder in search_path else []
    later += [*(SYSTEM_PROGRAMS if folder in LOCAL_FOLDERS else ())]
    programs = [f"{place}/{file.name}" for place in dict.fromkeys(later)]
    places: list[str] = []
    if ".so" in file.suffixes and is_cached and folder not in _LIBRARY_FOLDERS:
        places += _LIBRARY_FOLDERS
    if ".so" in file.suffixes and not has_cache and folder in _MUSL_FOLDERS:
        places += _MUSL_FOLDERS[_MUSL_FOLDERS.index(folder) + 1 :]
    libraries = [f"{place}/{file.name}" for place in dict.fromkeys(places)]
    return (*programs, *_list_hidden_modules(file, search_path), *libraries)


def _list_hidden_modules(file: PurePosixPath, search_path: Iterable[str]) -> list[str]:
    is_package = file.name.startswith("__init__.")
    place = file.parent.parent if is_package else file.parent
    stem = file.name.partition(".")[0]
    name = file.parent.name if is_package else stem
    if (
        file.suffix not in (".py", ".pyc", ".so")
        or (match := _LIBRARY.fullmatch(str(place))) is None
    ):
        return []
    # In one folder, a package is found before a module, and one that is compiled before its source.
    extensions = [_EXTENSION.format(match["minor"], each) for each in _MACHINES]
    hidden: list[str] = []
    if is_package:
        ends = extensions if place.name == "lib-dynload" else [".py"]
        hidden += [f"{place}/{name}{end}" for end in ends]
    if file.suffix == ".so":
        ends = [end for end in (".abi3.so", ".py") if file.name != f"{stem}{end}"]
        hidden += [f"{file.parent}/{stem}{end}" for end in ends]
    prefix, python = match["prefix"], match["python"]
    if prefix.endswith("/.local"):
        folders = [
            f"{prefix}/lib/{python}/site-packages",
            f"/usr/local/lib/{python}/site-packages",
            *_list_module_folders("/usr", python)[2:],
        ]
    elif prefix in ("/usr", "/usr/local") or f"{prefix}/bin" in search_path:
        folders = _list_module_folders(prefix, python)
    else:  # no interpreter of the image's looks there
        return hidden
    later = folders[folders.index(str(place)) + 1 :] if str(place) in folders else []
    for folder in later:
        hidden += (
            [f"{folder}/{name}{extension}" for extension in extensions]
            if folder.endswith("/lib-dynload")
            else [f"{folder}/{name}.py", f"{folder}/{name}/__init__.py"]
        )
    return hidden


def _list_module_folders(prefix: str, python: str) -> list[str]:
    """Return the folders that a Python looks through for a module, in their order."""
    library = f"{prefix}/lib/{python}"
    folders = [
        library,
        f"{library}/lib-dynload",
        f"/usr/local/lib/{python}/dist-packages",
        f"{library}/site-packages",
        f"{library}/dist-packages",
        "/usr/lib/python3/dist-packages",
    ]
    return [*dict.fromkeys(folders)]


def _list_program_folders(search_path: Iterable[str], workdir: str) -> list[str]:
    """Return the folders of programs outside of a directory, and those of their libraries."""
    folders: list[str] = []
    for place in map(PurePosixPath, search_path):
        if workdir == "/" or not place.is_relative_to(workdir):
            beside = ("lib", "lib64", "libexec") if place.name in ("bin", "sbin") else ()
            folders += [str(place), *(str(place.parent / name) for name in beside)]
    return folders


def _is_cache(path: str) -> bool:
    file = PurePosixPath(path)
    return (
        file.parent.name == "__pycache__"
        and file.suffix == ".pyc"
        and _LIBRARY.fullmatch(str(file.parent)) is not None
    )


def _names_program(path: str, program_folders: Collection[str]) -> bool:
    """Return whether a path is that of a program, a module or a library, and no folder's."""
    file = PurePosixPath(path)
    is_folder = file.name == "__pycache__" or any(
        PurePosixPath(folder).is_relative_to(path) for folder in program_folders
    )
    return not is_folder and (
        str(file.parent) in program_folders or file.suffix == ".py" or ".so" in file.suffixes
    )


def _list_new_venvs(rows: Mapping[str, FileChange]) -> set[str]:
    """Return the virtual environments that are new together with the interpreter that reads them;
    the folder of a user's packages, which others read, is none."""
    added = {path for path, change in rows.items() if change.kind == "added"}
    roots = {path.removesuffix("/pyvenv.cfg") for path in added if path.endswith("/pyvenv.cfg")}
    return {
        root
        for root in roots
        if not root.endswith("/.local") and added & {f"{root}/bin/python", f"{root}/bin/python3"}
    }


def _is_tampering(change: FileChange, folders: Sequence[str], venvs: Collection[str]) -> bool:
    path = PurePosixPath(change.path)
    if change.path in _PRELOADED or path.name in _STARTED or _ZIPPED.fullmatch(change.path):
        return True
    if _is_cache(change.path):
        return False
    if change.kind == "added":
        library = _LIBRARY.fullmatch(str(path.parent))
        is_own = library is not None and library["prefix"] in venvs
        is_read = not is_own or any(map(path.is_relative_to, folders))
        return path.suffix == ".pth" and "python" in change.path and is_read
    return any(
        path.is_relative_to(folder) or PurePosixPath(folder).is_relative_to(path)
        for folder in folders
    )

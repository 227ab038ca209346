"""This machine's files as isolated programs see them: what is bound, and what is covered.

An allow-list. Of /usr it has the directories in which systems keep programs and their data, of an
interpreter elsewhere the program and its libraries. Python packages are not on it: sessions import
the standard library and `sandbox.packages`. Where something else of this process lies on a listed
path (an environment is code with the answers in it), it is covered as well.
"""

import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

_OF_USR = (
    *("bin", "games", "include", "lib", "lib32", "lib64", "libexec", "libx32", "sbin", "share"),
)
_USR = (Path("/usr"), Path("/usr/local"))
_PROGRAMS = tuple(directory / name for directory in _USR for name in ("bin", "sbin"))
_OF_SYSTEM = (Path("/usr/lib"), Path("/usr/lib64"))
"""Directories where only the system's own package manager installs Python packages."""
_PACKAGES = ("python*/*-packages", "pypy*/*-packages")
_OURS = "agentrl*"


def usr_directories() -> list[Path]:
    """Return the directories of /usr that are bound, links among them."""
    paths = (directory / name for directory in _USR for name in _OF_USR)
    return [path for path in paths if path.is_dir()]


def is_visible(path: Path) -> bool:
    """Return whether a path with its links resolved is below a directory of /usr that is bound."""
    return any(path.is_relative_to(directory) for directory in usr_directories())


def find_covered_paths(bound: Iterable[str], *, system_packages: bool) -> list[str]:
    """Return directories and files to be covered where /usr and the `bound` paths are seen.

    With `system_packages` the packages of the system's own package manager stay, for programs that
    come with them.
    """
    visible = {path.resolve() for path in (*usr_directories(), *map(Path, bound)) if path.is_dir()}
    packages = {path.resolve() for top in visible for glob in _PACKAGES for path in top.glob(glob)}
    system_paths = {path for path in packages if system_packages and path.parents[1] in _OF_SYSTEM}
    ours = {path for top in (*system_paths, *_PROGRAMS) for path in top.glob(_OURS)}
    imported = set(_module_paths()) if system_packages else {*_import_paths(), *_module_paths()}
    if system_packages:
        imported = {
            path for path in imported if not any(path.is_relative_to(top) for top in system_paths)
        }
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    needed = (*visible, *system_paths, *_PROGRAMS, stdlib, stdlib / "lib-dynload")
    covered = select_covered(
        (packages - system_paths) | ours | imported, visible=visible, needed=needed
    )
    return [str(path) for path in covered]


def select_covered(
    paths: Iterable[Path], *, visible: Iterable[Path], needed: Sequence[Path]
) -> list[Path]:
    """Return those of the paths that are visible, hold nothing needed, and are in no other one."""
    tops = [*visible]
    covered: list[Path] = []
    for path in sorted(set(paths)):
        is_seen = any(path.is_relative_to(top) for top in tops)
        is_needed = any(other.is_relative_to(path) for other in needed)
        is_below = any(path.is_relative_to(above) for above in covered)
        if is_seen and not is_needed and not is_below:
            covered.append(path)
    return covered


def _import_paths() -> Iterable[Path]:
    """Yield where this process looks for modules: an editable install is a path of it."""
    for path in sys.path:
        if (resolved := Path(path).resolve()).exists():
            yield resolved


def _module_paths() -> Iterable[Path]:
    """Yield the directory of every package that this process has, and of every single module.

    Of a single module also the file, for its directory may be one that is needed.
    """
    for name, module in [*sys.modules.items()]:
        if "." in name or name in sys.stdlib_module_names or name.startswith("_sysconfigdata"):
            continue
        facts = vars(module)
        paths = facts.get("__path__")
        if paths is not None:
            files = [*map(str, paths)]
        else:
            file = facts.get("__file__")
            files = [file, str(Path(file).parent)] if isinstance(file, str) else []
        yield from (path for path in (Path(file).resolve() for file in files) if path.exists())

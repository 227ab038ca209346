"""Unit tests of the memory that a process may have.

Mutations that were seen to fail here: the machine's memory in any case; the innermost cgroup's
limit alone; `max` as no bytes; a root without a file as a limit of nothing.
"""

from pathlib import Path

from agentrl.runtime.cgroup_place import Version
from agentrl.runtime.memory_limit import (
    NO_LIMIT_BYTES,
    least_limit_bytes,
    limit_bytes_of,
    total_bytes,
)

GIB = 2**30


def levels(folder: Path, version: Version, *limits: str) -> list[tuple[Version, str]]:
    """Return nested cgroups with these limits, innermost first; an empty one has no file."""
    found: list[tuple[Version, str]] = []
    for number, limit in enumerate(limits):
        level = folder / f"level-{number}"
        level.mkdir()
        if limit:
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            (level / name).write_text(limit, encoding="ascii")
        found.append((version, str(level)))
    return found


def test_a_limit_is_a_number_or_none() -> None:
    assert limit_bytes_of("max\n") == limit_bytes_of("9223372036854771712\n") == NO_LIMIT_BYTES
    assert limit_bytes_of("4096\n") == 4096


def test_the_least_limit_of_all_levels_counts(tmp_path: Path) -> None:
    container = levels(tmp_path, 2, "max\n", f"{2 * GIB}\n", "")
    assert least_limit_bytes(container, 64 * GIB) == 2 * GIB
    assert least_limit_bytes(container, GIB) == GIB
    assert least_limit_bytes((), 64 * GIB) == 64 * GIB


def test_the_first_version_has_other_files(tmp_path: Path) -> None:
    container = levels(tmp_path, 1, f"{3 * GIB}\n", "9223372036854771712\n")
    assert least_limit_bytes(container, 64 * GIB) == 3 * GIB


def test_there_is_memory_here() -> None:
    assert GIB < total_bytes() < NO_LIMIT_BYTES

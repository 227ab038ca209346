"""User ids for the sessions of one supervisor: nobody else's, and enough for one each.

Root takes a block of ids that nobody has. A user gets what /etc/subuid and /etc/subgid lend, by the
set-user-id programs of the package uidmap, and otherwise all sessions share the user's own id.
"""

import contextlib
import os
import pwd
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl_sandbox.cgroup import CgroupRoot
from agentrl_sandbox.inside.kernel import INSIDE_ID
from agentrl_sandbox.launch.forbidden import read_if_there

BLOCK = 2**16
"""Ids of one supervisor: its own, and those of its sessions."""
BLOCKS = range(2**30, 2**31 - 2**25, BLOCK)
"""Range of the blocks: above all users of common systems, below what programs read as negative
and what systemd keeps for itself."""
_LENT = {"uid": ("/etc/subuid", "newuidmap"), "gid": ("/etc/subgid", "newgidmap")}
LEND_IDS = (
    "apt-get install uidmap && usermod --add-subuids 200000-265535 --add-subgids 200000-265535 "
    "YOU; Python and sandbox.packages must be readable by other users (chmod -R o+rX)"
)

Extent = tuple[int, int, int]
"""First id inside, first id outside, how many."""


@dataclass(frozen=True, slots=True)
class NamespaceUsers:
    """Maps of a supervisor's user namespace."""

    uid: tuple[Extent, ...]
    gid: tuple[Extent, ...]
    programs: dict[str, str]
    """Programs that write the map, by kind; none for root, who writes it."""


def map_block(ids: range) -> NamespaceUsers:
    """Return the map of a block of ids, the first of which is the supervisor's."""
    extents = ((INSIDE_ID, ids.start, len(ids)),)
    return NamespaceUsers(extents, extents, {})


def free_block(taken: Iterable[range], drawn: int) -> range:
    """Return a block that holds none of the ids that are taken, by a number drawn at random.

    `ConfigError` when none is free.
    """
    used: set[int] = set()
    for ids in filter(None, taken):
        first, last = ((n - BLOCKS.start) // BLOCK for n in (ids.start, ids.stop - 1))
        used.update(range(max(first, 0), min(last + 1, len(BLOCKS))))
    free = [block for number, block in enumerate(BLOCKS) if number not in used]
    if not free:
        raise ConfigError(
            f"/etc/subuid and /etc/subgid assign all ids from {BLOCKS.start} to {BLOCKS.stop}; "
            f"leave {BLOCK} of them for sandboxes"
        )
    start = free[drawn % len(free)]
    return range(start, start + BLOCK)


def find_lent(text: str, names: Iterable[str]) -> range:
    """Return the first run of ids that /etc/subuid lends to one of these names."""
    return next((ids for name, ids in _entries(text) if name in names and ids), range(0))


def rotate(ids: range, by: int) -> tuple[Extent, ...]:
    """Return extents for all ids after the supervisor's, beginning in the middle.

    All supervisors of a user get the same ids: each begins somewhere else.
    """
    cut = by % len(ids)
    pieces, inside = (ids[cut:], ids[:cut]), INSIDE_ID + 1
    extents: list[Extent] = []
    for piece in filter(None, pieces):
        extents.append((inside, piece.start, len(piece)))
        inside += len(piece)
    return tuple(extents)


def gives_ids(uid_map: str, user_id: int) -> bool:
    """Return whether this user may become one of a block: root, and not that of a container alone.

    `uid_map` is that of its user namespace; root of one that maps few ids is an ordinary user.
    """
    extents = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    first, last = BLOCKS.start, BLOCKS.stop + BLOCK - 1
    return user_id == 0 and any(inside <= first and last < inside + n for inside, _, n in extents)


def draw_block() -> range:
    """Return a block for root. Two supervisors draw the same one as good as never."""
    ranges = [ids for path, _ in _LENT.values() for _, ids in _entries(read_if_there(path))]
    return free_block(ranges, secrets.randbits(32))


def find_own_users(shown: Sequence[str]) -> NamespaceUsers | None:
    """Return the ids that this user, not being root, may have mapped; None for only itself.

    Ids other than the user's own do not get into directories that are for the user alone: all of
    those that are `shown` must be open to others.
    """
    if not all(os.stat(path).st_mode & 0o005 == 0o005 for path in shown):
        return None
    cgroups = CgroupRoot.find()
    if cgroups is not None and cgroups.place.version == 1:
        return None  # there only root moves processes of others, and bounds on memory matter more
    uid, gid = os.getuid(), os.getgid()
    names = {str(uid)}
    with contextlib.suppress(KeyError):  # known by number only
        names.add(pwd.getpwuid(uid).pw_name)
    by = secrets.randbits(32)
    maps: dict[str, tuple[Extent, ...]] = {}
    programs: dict[str, str] = {}
    for kind, host_id in (("uid", uid), ("gid", gid)):
        path, program = _LENT[kind]
        ids = find_lent(read_if_there(path), names)[: BLOCK - 1]
        program_path = shutil.which(program)
        if not ids or program_path is None:
            return None
        maps[kind], programs[kind] = ((INSIDE_ID, host_id, 1), *rotate(ids, by)), program_path
    return NamespaceUsers(maps["uid"], maps["gid"], programs)


def _entries(text: str) -> list[tuple[str, range]]:
    entries: list[tuple[str, range]] = []
    for line in text.splitlines():
        name, _, numbers = line.strip().partition(":")
        start, _, count = numbers.partition(":")
        if start.isdecimal() and count.isdecimal():
            entries.append((name, range(int(start), int(start) + int(count))))
    return entries

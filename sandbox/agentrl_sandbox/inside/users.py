"""User ids for sessions: one each, of those that the pool's user namespace maps."""

import os
from pathlib import Path
from typing import Self

from agentrl_sandbox.inside.kernel import INSIDE_ID

NOBODY = -1
"""Instead of an id, where there is none to give away."""


class SessionUsers:
    """Gives every opened session an id that no other live one has, as long as there are enough."""

    def __init__(self, ids: range) -> None:
        self._ids = ids
        self._next = 0
        self._taken: set[int] = set()

    @classmethod
    def from_maps(cls) -> Self:
        """Return those of this process's user namespace."""
        maps = (Path(f"/proc/self/{kind}_map").read_text() for kind in ("uid", "gid"))
        return cls(range(INSIDE_ID + 1, min(end_of(text, os.getuid()) for text in maps)))

    def take(self) -> int:
        """Return an id that is free; when all are taken, one that is shared; `NOBODY` of none."""
        if not self._ids:
            return NOBODY
        count = len(self._ids)
        from_here = ((self._next + step) % count for step in range(count))
        at = next((at for at in from_here if self._ids[at] not in self._taken), self._next)
        self._next = (at + 1) % count
        self._taken.add(self._ids[at])
        return self._ids[at]

    def give_back(self, user_id: int) -> None:
        """Hear that all processes of a session are gone."""
        self._taken.discard(user_id)


def end_of(text: str, own: int) -> int:
    """Return the end of the ids that a uid_map or gid_map maps without a gap from `own` on."""
    extents = sorted(
        (int(first), int(count)) for first, _, count in map(str.split, text.splitlines())
    )
    end = own
    for first, count in extents:
        if first <= end < first + count:
            end = first + count
    return end

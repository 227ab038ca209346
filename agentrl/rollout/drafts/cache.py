"""The newest trajectory of every task and sample, for the next time it comes up.

What is kept while one version of the weights is loaded is only found under a later one, so that
what a trajectory finds does not depend on who ended first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.rollout.drafts.draft import DraftTrajectory
from agentrl.rollout.drafts.replaying_env import RememberedEpisode

DraftKey = tuple[str, int]
"""A task's id, and the index of the trajectory within its group."""


@dataclass(frozen=True, slots=True)
class CachedDraft:
    """A draft, and where it comes from."""

    draft: DraftTrajectory
    group: int
    """Groups are counted over the run: of two of one version the later one stays."""
    world: RememberedEpisode | None = None
    """Exchanges of the environment; not kept in checkpoints."""


@dataclass(slots=True)
class DraftCache:
    """Bounded by tokens; what has not been renewed for longest goes first."""

    capacity_tokens: int
    version: int = 0
    _ready: dict[DraftKey, CachedDraft] = field(default_factory=dict[DraftKey, CachedDraft])
    _fresh: dict[DraftKey, CachedDraft] = field(default_factory=dict[DraftKey, CachedDraft])

    def find(self, key: DraftKey, *, version: int) -> CachedDraft | None:
        """Return the draft of a task and sample from before `version`."""
        self._come_to(version)
        return self._ready.get(key)

    def keep(self, key: DraftKey, kept: CachedDraft, *, version: int) -> None:
        """Keep a trajectory that ended under `version`."""
        self._come_to(version)
        previous_draft = self._fresh.get(key)
        if previous_draft is None or previous_draft.group <= kept.group:
            self._fresh[key] = kept

    def forget(self, key: DraftKey) -> None:
        """Forget the draft of a task and sample: its world is not what it was."""
        self._ready.pop(key, None)

    def plain(self, *, version: int) -> tuple[Mapping[str, Any], ...]:
        """Return the drafts from before `version`, in the form `agentrl.store.codec` packs."""
        self._come_to(version)
        return tuple(
            {"task": task, "sample": sample, "group": entry.group, **entry.draft.plain()}
            for (task, sample), entry in self._ready.items()
        )

    def restore(self, plain: tuple[Mapping[str, Any], ...]) -> None:
        """Take what `plain` gave."""
        for one in plain:
            entry = CachedDraft(DraftTrajectory.from_plain(one), one["group"])
            self._ready[one["task"], one["sample"]] = entry
        self._make_room()

    def _come_to(self, version: int) -> None:
        if version <= self.version:
            return
        self.version = version
        # In the order of groups, not of ends: what is dropped first must not depend on timing.
        for key, entry in sorted(self._fresh.items(), key=lambda item: (item[1].group, item[0])):
            self._ready.pop(key, None)
            self._ready[key] = entry
        self._fresh.clear()
        self._make_room()

    def _make_room(self) -> None:
        tokens = sum(len(entry.draft.token_ids) for entry in self._ready.values())
        while tokens > self.capacity_tokens:
            oldest = next(iter(self._ready))
            tokens -= len(self._ready.pop(oldest).draft.token_ids)

"""Slots of the key-value cache, and which one a request gets.

A slot holds the keys of one token sequence. After its request has ended it keeps them, so that the
next turn of the trajectory, or a sibling with the same prompt, need not compute them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest

WORTH_TOKENS = 16
"""Shorter common prefixes are computed again rather than copied or waited for."""


@dataclass(slots=True, eq=False)
class CacheSlot:
    """One place in the decode batch. Owned by the engine."""

    index: int
    held: list[int] = field(default_factory=list[int])
    """The tokens whose keys are in the cache."""
    flight: InflightRequest | InflightScoreRequest | None = None
    """The request decoding here; None while idle."""
    used_at: int = 0
    """Step at which the slot last became idle, on the engine's step counter."""


@dataclass(frozen=True, slots=True)
class SlotPlacement:
    """Slot of a request: `slot`, holding the first `tokens` of what `source` holds."""

    slot: CacheSlot
    source: CacheSlot
    tokens: int


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Return the number of leading tokens two sequences share, at most `limit`."""
    limit = min(limit, len(a), len(b))
    for at in range(0, limit, 64):
        ours, theirs = a[at : min(at + 64, limit)], b[at : min(at + 64, limit)]
        if ours != theirs:
            return at + next(i for i, (x, y) in enumerate(zip(ours, theirs, strict=True)) if x != y)
    return limit


def place(context: Sequence[int], slots: Sequence[CacheSlot]) -> SlotPlacement | None:
    """Return the slot for a context, or None while it is better to wait.

    It waits while every slot is busy, and while a sibling is just computing a prefix that it can
    then copy. It continues in the slot that holds exactly its past; otherwise the prefix is copied
    to an empty slot, or to the one idle for longest.
    """
    idle = [slot for slot in slots if slot.flight is None]
    if not idle:
        return None
    # The last token is always computed: its logits are what is wanted.
    limit = len(context) - 1
    shared = {slot.index: common_prefix(context, slot.held, limit) for slot in slots}
    source = max(slots, key=lambda slot: shared[slot.index])
    tokens = shared[source.index]
    promised = max(
        (common_prefix(context, s.flight.context, limit) for s in slots if s.flight is not None),
        default=0,
    )
    if promised >= tokens + WORTH_TOKENS:
        return None
    for slot in idle:
        if shared[slot.index] == tokens == len(slot.held):
            return SlotPlacement(slot, slot, tokens)
    target = min(idle, key=lambda slot: (bool(slot.held), slot.used_at))
    if tokens < WORTH_TOKENS or shared[target.index] == tokens:
        source, tokens = target, shared[target.index]
    return SlotPlacement(target, source, tokens)

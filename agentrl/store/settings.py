"""Settings of a store's writer."""

from dataclasses import dataclass
from typing import Literal

from agentrl.store.disk_sync import Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Settings of a store's writer."""

    durable: Durable = "process"
    """Guarantee for a completed turn; see `disk_sync.Durable`."""
    interval_s: float = 0.05
    """Age at which a record is on the disk, for `interval`."""
    segment_bytes: int = 64 * 2**20
    """Size at which a file of the log is closed and the next one begun."""
    keep: Literal["all", "untrained"] = "all"
    """`untrained` removes tokens, in whole segments, that no kept checkpoint can need again."""

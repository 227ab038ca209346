"""Config section of the durable record of a run."""

from typing import Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection


class StoreSection(ConfigSection):
    """Durable record of all events of a run, from which `--resume` continues after a crash."""

    durable: Literal["process", "interval", "power"] = "process"
    """Durability of a completed turn. `process`: survives the end of the process; `interval`: also
    survives a power failure, except for the last `interval_s`; `power`: survives any power failure,
    but each turn waits for the disk."""
    interval_s: PositiveFloat = 0.05
    """With `interval`: maximum age in seconds of a record that is not yet on disk."""
    segment_bytes: int = Field(default=64 * 2**20, ge=4096)
    """Size at which a log file is closed and the next one started."""
    keep: Literal["all", "untrained"] = "untrained"
    """Tokens to keep on disk: all, or only those that a kept checkpoint may still need."""

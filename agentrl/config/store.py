"""Config of the durable record of a run."""

from typing import Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import ConfigSection


class StoreSection(ConfigSection):
    """The record of everything that happens, from which `--resume` goes on after a crash."""

    durable: Literal["process", "interval", "power"] = "process"
    """Durability of a completed turn. `process`: it survives the end of the process; `interval`:
    also a power failure, but for the last `interval_s`; `power`: any power failure, and every turn
    waits for the disk."""
    interval_s: PositiveFloat = 0.05
    """In `interval`: age in seconds at which a record is on the disk."""
    segment_bytes: int = Field(default=64 * 2**20, ge=4096)
    """Size at which a file of the log is closed and the next one begun."""
    keep: Literal["all", "untrained"] = "untrained"
    """Tokens that stay on disk: all, or those that a kept checkpoint could need again."""

"""Config of the durable record of a run."""

from typing import Literal

from pydantic import Field, PositiveFloat

from agentrl.config.section import Section


class StoreSection(Section):
    """The record of everything that happens, from which `--resume` goes on after a crash."""

    durable: Literal["process", "interval", "power"] = "process"
    """What cannot lose a completed turn: the end of the process; a power failure, but for the last
    `interval_s`; a power failure, and every turn waits for the disk."""
    interval_s: PositiveFloat = 0.05
    """Of `interval`: the age in seconds at which a record is on the disk."""
    segment_bytes: int = Field(default=64 * 2**20, ge=4096)
    """Size at which a file of the log is closed and the next one begun."""
    keep: Literal["all", "untrained"] = "untrained"
    """What stays on disk: all tokens, or those that a kept checkpoint could need again."""

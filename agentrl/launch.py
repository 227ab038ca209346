"""Whether `torchrun` started this process, and as which of how many."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """What torchrun says to each of its processes."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Launch | None":
        """Return what an environment says, None where there are no others."""
        if "TORCHELASTIC_RUN_ID" not in environment or environment.get("WORLD_SIZE", "1") == "1":
            return None
        return cls(
            rank=int(environment["RANK"]),
            size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
        )

    @property
    def leads(self) -> bool:
        """Return whether this is the process that holds the run; the others follow it."""
        return self.rank == 0

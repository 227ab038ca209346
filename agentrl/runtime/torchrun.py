"""Launch by `torchrun` of this process, with its rank among the others."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchrunLaunch:
    """Rank, world size and local rank that torchrun gives each of its processes."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "TorchrunLaunch | None":
        """Read the launch from an environment; return None where there are no other processes."""
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

"""The section of a config that says where environments, engines and ranks of the trainer run."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class ClusterSection(ConfigSection):
    """Placement of environments, engines and trainer ranks: on this machine, or by Ray."""

    kind: Literal["local", "ray"] = "local"
    """`local` runs environments in this process, and `engine.processes` and `learn.devices` on this
    machine; `ray` runs all of them in actors of Ray (docs/cluster.md)."""
    address: str | None = None
    """Address of the Ray cluster. `auto` finds the one this machine belongs to, none starts one
    here."""
    workers: PositiveInt = 2
    """Actors for environments; each holds as many as come to it, with pools of its own."""
    worker_cpus: PositiveFloat = 1.0
    """CPUs that Ray sets aside for one."""
    start_s: PositiveFloat = 120.0
    """Deadline for the cluster to have room, for the workers to be there, and for the replacement
    of a dead one."""
    max_restarts: int = Field(default=20, ge=0)
    """Dead workers that are replaced before the run gives up."""
    engine_cpus: PositiveFloat = 1.0
    """CPUs that Ray sets aside for one of `engine.processes`."""
    engine_gpus: float = Field(default=0.0, ge=0)
    """GPUs that it sets aside for one; of 0.5, two share one. With none, engines run on CPUs."""
    engine_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray's strategy for the engines: on few machines (`PACK`) or on many (`SPREAD`). The strict
    ones accept nothing else."""
    trainer_cpus: PositiveFloat = 1.0
    """CPUs that Ray sets aside for a rank of `learn.devices.count`, but for the first: that one is
    in the run's own process, which Ray knows nothing of."""
    trainer_gpus: int = Field(default=0, ge=0, le=1)
    """GPUs that it sets aside for one: 1 where the trainer is on GPUs, else 0."""
    trainer_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray's strategy for these ranks, as with `engine_strategy`."""

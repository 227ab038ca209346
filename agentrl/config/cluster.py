"""Config section of the cluster: placement of environments, engines, and trainer ranks."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class ClusterSection(ConfigSection):
    """Placement of environments, engines, and trainer ranks: on this machine, or on a Ray
    cluster."""

    kind: Literal["local", "ray"] = "local"
    """`local` runs environments in this process, and `engine.processes` and `learn.devices` on this
    machine; `ray` runs them all as Ray actors (docs/cluster.md)."""
    address: str | None = None
    """Address of the Ray cluster. `auto` uses the cluster this machine belongs to; null starts one
    here."""
    workers: PositiveInt = 2
    """Number of environment workers (Ray actors). Each one holds a share of the environments and
    its own resource pools."""
    worker_cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves per environment worker."""
    start_s: PositiveFloat = 120.0
    """Timeout for the cluster to allocate resources, for workers to start, and for a dead worker to
    be replaced."""
    max_restarts: int = Field(default=20, ge=0)
    """Maximum number of times dead workers are replaced before the run fails."""
    engine_cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves per engine process."""
    engine_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves per engine process; with 0.5, two engines share a GPU. With 0, engines
    run on CPUs."""
    engine_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray placement strategy of the engines: on as few machines as possible (`PACK`) or spread out
    (`SPREAD`). The strict variants fail if that is not possible."""
    trainer_cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves per trainer rank. The first rank runs in the run's own process,
    outside Ray, and reserves none."""
    trainer_gpus: int = Field(default=0, ge=0, le=1)
    """GPUs that Ray reserves per trainer rank: 1 if the trainer runs on GPUs, else 0."""
    trainer_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Ray placement strategy of the trainer ranks, as with `engine_strategy`."""

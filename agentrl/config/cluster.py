"""The section of a config that says where environments run."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.section import Section


class ClusterSection(Section):
    """Where environments run: in this process, or in workers that Ray places."""

    kind: Literal["local", "ray"] = "local"
    """`local` runs them in this process, `ray` in actors of Ray (docs/cluster.md)."""
    address: str | None = None
    """Of the Ray cluster; `auto` finds the one this machine belongs to, none starts one here."""
    workers: PositiveInt = 2
    """Actors; each holds as many environments as come to it, with pools of its own."""
    worker_cpus: PositiveFloat = 1.0
    """CPUs that Ray sets aside for one."""
    start_s: PositiveFloat = 120.0
    """Deadline for the workers to be there, and for the replacement of a dead one."""
    max_restarts: int = Field(default=20, ge=0)
    """How many dead workers are replaced before the run gives up."""

"""Room that is asked of a cluster, and what is said where there is none."""

from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError

SHOWN = ("CPU", "GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """So many places that are alike."""

    what: str
    """Users of the places, in the plural."""
    count: int
    cpus: float
    gpus: float
    strategy: str
    keys: str
    """Config keys to lower where there is no such room."""

    def ask(self) -> Any:
        """Ask Ray for a placement group, so that a cluster may grow; who asks removes it."""
        from ray.util.placement_group import placement_group

        each = {"CPU": self.cpus, "GPU": self.gpus}
        bundles = [
            {name: float(amount) for name, amount in each.items() if amount}
            for _ in range(self.count)
        ]
        return placement_group(bundles, strategy=self.strategy)

    def refusal(self, *, within_s: float) -> ConfigError:
        """Return the error for room that did not come."""
        return ConfigError(
            f"Ray has no room for {self.count} {self.what} with {self.cpus:g} CPUs and "
            f"{self.gpus:g} GPUs each ({self.strategy}) within cluster.start_s = {within_s:g} s; "
            f"{describe_resources()}: lower {self.keys}, or raise cluster.start_s if the cluster "
            "scales up"
        )


def describe_resources() -> str:
    """Return a description of the cluster's resources, and of those that are free."""
    import ray

    has, free = ray.cluster_resources(), ray.available_resources()
    resources = [
        f"{has.get(name, 0):g} {name}s, {free.get(name, 0):g} of them free" for name in SHOWN
    ]
    return f"the cluster has {' and '.join(resources)}"

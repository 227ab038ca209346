"""The trainer on several devices."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class DevicesSection(ConfigSection):
    """Devices that train one model together, each in a process with a shard of the weights (FSDP2).
    Under `torchrun` its processes are used; otherwise the run starts them: on this machine, or with
    `cluster.kind: ray` as actors placed by Ray."""

    count: PositiveInt = 1
    """Number of devices; 1 trains in the run's own process."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Communication backend for weights and gradients: `auto` uses nccl between GPUs and gloo
    between CPUs."""
    start_s: PositiveFloat = 600.0
    """Timeout for the other processes to load the model and join the process group."""
    step_s: PositiveFloat = 1800.0
    """Maximum time a process waits for the others in a training step before the run fails."""

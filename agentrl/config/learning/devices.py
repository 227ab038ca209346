"""The trainer on several devices."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from agentrl.config.section import ConfigSection


class DevicesSection(ConfigSection):
    """Devices that train one model together, each in a process with a part of the weights (FSDP2).
    Under `torchrun` its processes are taken, else the run starts them: on this machine, or with
    `cluster.kind: ray` as actors where Ray has room."""

    count: PositiveInt = 1
    """One trains in the run's own process."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Backend for weights and gradients: `auto` is nccl between GPUs and gloo between CPUs."""
    start_s: PositiveFloat = 600.0
    """Deadline for the other processes to load the model and find each other."""
    step_s: PositiveFloat = 1800.0
    """Longest wait of a process for the others in a training step, before the run fails."""

"""The checks, in the order in which they run. Imports nothing of what they need."""

from dataclasses import dataclass

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """One check: a function of a module in `agentrl.selfcheck.checks`."""

    name: str
    function: str
    """The function as `module:name`."""
    limit_s: float
    """Seconds until it is ended: several times what it takes on two CPU cores, where it is not
    stuck."""
    about: str


def _row(name: str, function: str, limit_s: float, about: str) -> DeviceCheck:
    return DeviceCheck(name, f"agentrl.selfcheck.checks.{function}", limit_s, about)


CHECKS = (
    _row("device", "device:check_device", 60, "the device, its software, and matrix products"),
    _row("gap", "engines:check_local_gap", 90, "log-probs of the local engine and the trainer"),
    _row("weights-memory", "weights:check_in_process", 60, "weights into an engine in the process"),
    _row("weights-file", "weights:check_file", 60, "weights into an engine from a file"),
    _row(
        "checkpoint", "trainers:check_checkpoint", 60, "a checkpoint, and the run that resumes it"
    ),
    _row("head", "kernels:check_head", 60, "the output head in chunks against the whole"),
    _row("layouts", "kernels:check_layouts", 180, "layouts against float32 on the CPU"),
    _row(
        "throughput",
        "throughput:check_throughput",
        120,
        "tokens per second, MFU, and memory beside its plan",
    ),
    _row("weights-shared", "weights:check_shared_memory", 90, "weights by shared memory"),
    _row("weights-gloo", "weights:check_gloo", 90, "weights by broadcast between CPUs (Gloo)"),
    _row("weights-nccl", "weights:check_nccl", 90, "weights by broadcast between GPUs (NCCL)"),
    _row("ranks", "trainers:check_ranks", 120, "one trainer on two ranks (FSDP2)"),
    _row("vllm", "engines:check_vllm", 240, "vLLM: its log-probs, and weights into it"),
    _row("quickstart", "quickstart:check_quickstart", 240, "20 steps of the quickstart"),
    _row("vllm-ipc", "engines:check_vllm_ipc", 240, "weights into vLLM on the same GPU (IPC)"),
    _row("sleep", "sleep:check_sleep", 240, "vLLM asleep, and awake with new weights"),
)
"""Every check. Those that tell most in the least time come first; those that start processes, which
import everything anew, come after the others."""


def choose_checks(names: tuple[str, ...] = ()) -> tuple[DeviceCheck, ...]:
    """Return the checks with these names, or all; `ConfigError` for a name that none has."""
    check_names = [check.name for check in CHECKS]
    if unknown := [name for name in names if name not in check_names]:
        raise ConfigError(
            f"there is no check {unknown[0]!r}: --only takes one of {', '.join(check_names)}"
        )
    return tuple(check for check in CHECKS if not names or check.name in names)

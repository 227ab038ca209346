"""Command and environment that start vLLM's server. Nothing here imports vLLM."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import ConfigError
from agentrl.runtime.vllm_release import FIXED_ARGUMENTS

CPU_CACHE_BYTES = 2**30
"""Room for keys on a CPU unless set."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM has room."""
MODULE = "vllm.entrypoints.openai.api_server"
NAME = "policy"
"""Name under which a server of ours has its model."""
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Arguments whose product is the number of devices."""
NOT_INHERITED = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER")
Transfer = Literal["folder", "nccl", "ipc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerSettings:
    """A model, and how vLLM's server runs it."""

    model: Path | str
    """A Hugging Face folder with config and weights, or a name on the hub."""
    slots: int = 32
    context_tokens: int = 2048
    dtype: str = "auto"
    memory_fraction: float = 0.45
    cache_bytes: int | None = None
    eager: bool = False
    prefix_cache: bool = True
    prefill_tokens: int | None = None
    adapter_rank: int | None = None
    """Room for adapters of up to this rank; None merges adapters into the weights."""
    transfer: Transfer = "folder"
    """Way of whole weights to the server."""
    update: Literal["recompute", "keep"] = "recompute"
    """Requests in flight when new weights arrive; see `ServerSettings`."""
    sleep_level: int = 0
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument of vLLM, such as `tensor_parallel_size`."""

    def __post_init__(self) -> None:
        if taken := sorted(FIXED_ARGUMENTS & {name.replace("-", "_") for name in self.options}):
            raise ConfigError(
                f"engine.vllm.options.{taken[0]} is {self.options.get(taken[0])!r}, but this "
                "argument follows from other keys of the config; remove it"
            )
        if self.update == "keep" and self.adapter_rank:
            raise ConfigError(
                "engine.vllm.update is keep and engine.vllm.adapters is native: a native adapter "
                "has a name that its requests are bound to; set adapters: merged, or update: "
                "recompute"
            )


def count_devices(options: Mapping[str, Any]) -> int:
    """Return the number of devices that one server computes on, by its arguments.

    Raises `ConfigError` for what is no number of processes.
    """
    return prod(read_size(options, name) for name in PARALLEL)


def read_size(options: Mapping[str, Any], name: str) -> int:
    """Return one of the sizes of `PARALLEL`, 1 unless set. Raises as `count_devices`."""
    value = options.get(name, options.get(name.replace("_", "-"), 1))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"engine.vllm.options.{name} is {value!r}, which is not a positive integer"
        )
    return value


def build_arguments(
    settings: VllmServerSettings, *, model: str, socket: str, cpu: bool
) -> list[str]:
    """Return the arguments of the server: those that follow from settings, then the options.

    `model` is the folder it begins with. Raises `ConfigError` for options that no command line
    carries, and for steps that would split a prompt on a CPU, whose build then draws other noise.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "served_model_name": NAME,
        "uds": socket,
        "dtype": settings.dtype,
        "max_model_len": settings.context_tokens,
        "max_num_seqs": settings.slots,
        "max_num_batched_tokens": settings.prefill_tokens,
        "enable_prefix_caching": settings.prefix_cache,
        "gpu_memory_utilization": settings.memory_fraction,
        "kv_cache_memory_bytes": settings.cache_bytes or (CPU_CACHE_BYTES if cpu else None),
        "enforce_eager": settings.eager or cpu or None,
        "skip_tokenizer_init": True,
        # Log-probs of the distribution that is drawn from, and as many as are asked for.
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,
        "generation_config": "vllm",
        "enable_scale_out": True if settings.update == "keep" else None,
        "enable_sleep_mode": True if settings.sleep_level and not cpu else None,
        "enable_prompt_tokens_details": True,
        "seed": 0,
        **_cpu_arguments(settings, cpu=cpu),
        **_lora_arguments(settings.adapter_rank),
    }
    if settings.transfer != "folder":
        arguments["weight_transfer_config"] = {"backend": settings.transfer}
    options = {name.replace("-", "_"): value for name, value in settings.options.items()}
    return to_flags({**arguments, **options})


def find_room(rank: int) -> int:
    """Return the least rank that vLLM has room for, of those that adapters of a rank fit.

    Raises `ConfigError` for a rank that is too high.
    """
    if rank > RANKS[-1]:
        raise ConfigError(
            f"learn.lora.rank is {rank}, but vLLM supports adapters of rank up to {RANKS[-1]}; set "
            "engine.vllm.adapters to merged"
        )
    return next(room for room in RANKS if room >= rank)


def _cpu_arguments(settings: VllmServerSettings, *, cpu: bool) -> dict[str, Any]:
    if not cpu:
        return {}
    tokens, context_tokens = settings.prefill_tokens, settings.context_tokens
    if tokens is not None and tokens < context_tokens:
        raise ConfigError(
            f"engine.vllm.prefill_tokens is {tokens} and engine.context_tokens is "
            f"{context_tokens}: on a CPU, vLLM's own sampler only processes whole prompts; remove "
            "prefill_tokens, or set engine.vllm.sampler: agentrl"
        )
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": tokens or max(context_tokens, 2048),
    }


def _lora_arguments(rank: int | None) -> dict[str, Any]:
    if not rank:
        return {}
    return {"enable_lora": True, "max_loras": 2, "max_lora_rank": find_room(rank)}


def to_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as a command line has them; None is left out, texts of a list follow.

    Raises `ConfigError` for a value that JSON has no form for.
    """
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, str | int | float):
            flags += [f"--{flag}", str(value)]
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            flags += [f"--{flag}", *value]
        else:
            try:
                flags += [f"--{flag}", json.dumps(value)]
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"engine.vllm.options.{name} is {value!r:.100}, which no command line carries: "
                    f"{error}"
                ) from error
    return flags


def build_environment(
    settings: VllmServerSettings, ours: Mapping[str, str], *, cuda_devices: str | None, cpu: bool
) -> dict[str, str]:
    """Return the environment of the server: ours, with what opens its control.

    A server that computes on one CPU device has no process for that alone, which would import all
    of vLLM again, unless its threads are bound to cores.
    """
    quiet = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # The CPU build would pin its processes to cores of its choice.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    given: dict[str, str] = {"VLLM_SERVER_DEV_MODE": "1"}
    if settings.adapter_rank:
        given["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if settings.transfer == "ipc":
        given["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if cuda_devices is not None:
        given["CUDA_VISIBLE_DEVICES"] = cuda_devices
    # What the engine in this process sets for itself is not meant for a server.
    inherited = {name: value for name, value in ours.items() if name not in NOT_INHERITED}
    made = {**quiet, **inherited, **given}
    is_bound = made["VLLM_CPU_OMP_THREADS_BIND"] != "nobind"
    if cpu and not is_bound and count_devices(settings.options) == 1:
        made["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # of the worker; the core stays a process
    return made

"""From the engine section of a config to an engine."""

import sys
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.engine.recipe import EngineRecipe
from agentrl.policy import PolicyEngine

if TYPE_CHECKING:
    from agentrl.config.run import EngineSection, RunConfig
    from agentrl.engine.remote.spreading import Spreader
    from agentrl.first_policy import Policy


class ClosingEngine(PolicyEngine, Protocol):
    """A policy engine for `async with`, which closes it."""

    async def __aenter__(self) -> PolicyEngine: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def recipe_of(config: "RunConfig", folder: str, *, device: str) -> EngineRecipe:
    """Return what the engine of a config is made of."""
    section = config.engine
    return EngineRecipe(
        kind=section.kind,
        folder=folder,
        slots=section.slots,
        context_tokens=section.context_tokens,
        dtype=config.policy.dtype,
        device=device,
        threads=config.run.threads,
        vllm=_vllm_of(config) if section.kind == "vllm" else {},
    )


def _vllm_of(config: "RunConfig") -> dict[str, Any]:
    """Return the further fields of `VllmSettings`."""
    section, lora = config.engine.vllm, config.learn.lora
    told = section.model_dump(exclude={"adapters"})
    if section.adapters == "native" and lora is not None:
        told["adapter_rank"] = lora.rank
    return told


def engine_of(config: "RunConfig", policy: "Policy") -> ClosingEngine:
    """Return the engine a config asks for, with the weights of `policy`.

    Raises `ConfigError` where the package behind it is missing or refuses its options.
    """
    section = config.engine
    recipe = recipe_of(config, str(policy.path), device=str(policy.model.device))
    spreader = _spreader(config, str(policy.model.device))
    if section.addresses:
        return engines_at(section, spreader)
    if section.processes and config.cluster.kind == "ray":
        from agentrl.cluster.engines.replicas import RayReplicas

        device = "cuda" if config.cluster.engine_gpus else "cpu"
        return RayReplicas(
            replace(recipe, device=device),
            config.cluster,
            count=section.processes,
            python=section.python,
            start_s=section.start_s,
            max_restarts=section.max_restarts,
            spreader=spreader,
        )
    if section.processes:
        from agentrl.engine.remote import ProcessEngine, Replicas

        engines = [
            ProcessEngine(
                recipe,
                python=section.python or sys.executable,
                start_s=section.start_s,
                max_restarts=section.max_restarts,
            )
            for _ in range(section.processes)
        ]
        is_alone = len(engines) == 1 and spreader is None
        return engines[0] if is_alone else Replicas(engines, spreader)
    return recipe.open(policy.model, policy.tokenizer, policy.images)


def engines_at(section: "EngineSection", spreader: "Spreader | None" = None) -> ClosingEngine:
    """Return the engines that others serve. Raises `ConfigError` for a key that cannot be read."""
    from agentrl.engine.remote import AddressEngine, Replicas
    from agentrl.engine.remote.address import read_key

    key = read_key(section.key_file)
    alone = len(section.addresses) == 1
    engines = [
        # With others there, whoever waits for one that is away is better off with them.
        AddressEngine(
            address, key=key, start_s=section.start_s, patience_s=section.start_s if alone else 0.0
        )
        for address in section.addresses
    ]
    return engines[0] if alone and spreader is None else Replicas(engines, spreader)


def _spreader(config: "RunConfig", device: str) -> "Spreader | None":
    """Return what sends weights by broadcast, where a config asks for that; `device` is the
    trainer's."""
    section = config.engine.broadcast
    if section is None:
        return None
    from agentrl.engine.remote.spreading import Spreader

    backend = section.backend
    if backend == "auto":
        cluster = config.cluster
        apart = cluster.kind == "ray" and cluster.engine_gpus >= 1 and config.engine.processes
        backend = "nccl" if apart and device.startswith("cuda") else "gloo"
    return Spreader(
        backend=backend, bucket_bytes=section.bucket_bytes, deadline_s=section.deadline_s
    )

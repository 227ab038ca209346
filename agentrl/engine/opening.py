"""From the engine section of a config to an engine."""

import sys
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from agentrl.engine.recipe import EngineRecipe
from agentrl.policy import PolicyEngine

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
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


def engine_of(config: "RunConfig", policy: "Policy") -> ClosingEngine:
    """Return the engine a config asks for, with the weights of `policy`.

    Raises `ConfigError` where the package behind it is missing or refuses its options.
    """
    section = config.engine
    recipe = EngineRecipe(
        kind=section.kind,
        folder=str(policy.path),
        slots=section.slots,
        context_tokens=section.context_tokens,
        dtype=config.policy.dtype,
        device=str(policy.model.device),
        threads=config.run.threads,
        vllm=section.vllm.model_dump() if section.kind == "vllm" else {},
    )
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
        return engines[0] if len(engines) == 1 else Replicas(engines)
    return recipe.open(policy.model, policy.tokenizer, policy.images)

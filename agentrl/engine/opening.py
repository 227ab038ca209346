"""From the engine section of a config to an engine."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from agentrl.policy import PolicyEngine

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.first_policy import Policy


class ClosingEngine(PolicyEngine, Protocol):
    """A policy engine for `async with`, which closes it."""

    async def __aenter__(self) -> Self: ...

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

    def decode(token_ids: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(token_ids)))

    if section.kind == "vllm":
        from agentrl.engine.vllm import VllmEngine, VllmSettings

        settings = VllmSettings(
            model=policy.path,
            slots=section.slots,
            context_tokens=section.context_tokens,
            dtype=config.policy.dtype,
            **section.vllm.model_dump(),
        )
        return VllmEngine(settings, decode=decode)
    from agentrl.engine.local import LocalEngine

    return LocalEngine(
        policy.model, slots=section.slots, context_tokens=section.context_tokens, decode=decode
    )

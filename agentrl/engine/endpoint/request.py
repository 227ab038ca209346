"""A request in flight: what it has so far, and how it is ended or asked anew."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agentrl.engine.endpoint.completion_reader import CompletionDelta, TopLogprobs
from agentrl.engine.stopping import Decode, ends_with_stop
from agentrl.errors import ConfigError
from agentrl.policy import Completion, FinishReason, GenerateRequest

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class EndpointRequest:
    """Tokens sampled so far for one request."""

    request: GenerateRequest
    max_tokens: int
    """Tokens that budget and context leave room for."""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    top_logprobs: list[TopLogprobs] = field(default_factory=list[TopLogprobs])
    cached_tokens: int | None = None
    """Cached tokens of the prompt at its first request; None where the server does not say."""
    finish: FinishReason | None = None

    @property
    def context(self) -> list[int]:
        """Return the prompt and what has been sampled."""
        return [*self.request.prompt, *self.tokens]

    def take(
        self, piece: CompletionDelta, *, version: int, decode: Decode | None, server: str
    ) -> None:
        """Append what came, up to the token that ends it; what a server adds is dropped.

        Raises `ConfigError` for an end that nobody asked for.
        """
        if self.cached_tokens is None:
            self.cached_tokens = piece.cached_tokens
        for place, token in enumerate(piece.tokens):
            if self.finish is not None:
                return
            self.tokens.append(token)
            self.logprobs.append(piece.logprobs[place])
            self.versions.append(version)
            if piece.top_logprobs:
                self.top_logprobs.append(piece.top_logprobs[place])
            self.finish = self._finish(decode)
        if piece.finish is not None and self.finish is None:
            last = self.tokens[-1] if self.tokens else None
            raise ConfigError(
                f"{server} ended a completion with {piece.finish!r} after {len(self.tokens)} of "
                f"{self.max_tokens} tokens, but the last token, {last}, is none of the stop tokens "
                f"{sorted(self.request.stop_token_ids)}; start it with --generation-config vllm "
                "and without limits of its own"
            )

    def _finish(self, decode: Decode | None) -> FinishReason | None:
        if self.tokens[-1] in self.request.stop_token_ids:
            return "stop"
        stops = self.request.stop_strings
        if stops and decode is not None and ends_with_stop(self.tokens, stops, decode):
            return "stop"
        return "length" if len(self.tokens) >= self.max_tokens else None

    def completion(self) -> Completion:
        """Return the completion so far, as the answer to the request."""
        return Completion(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish=self.finish or "aborted",
            top_logprobs=tuple(self.top_logprobs),
            prompt_cached_tokens=self.cached_tokens or 0,
        )


class RetriedCall(Generic[R]):
    """Something that is asked for, and asked for anew until it is done, or ended."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[R] | None = None
        self._ended = False

    async def run(self) -> R | None:
        """Return the result, or None where it was ended; a cancelled caller hangs up."""
        while not self._ended:
            asking = self._asking = asyncio.create_task(self._ask(), name="agentrl-endpoint")
            try:
                await asyncio.wait([asking])
            except asyncio.CancelledError:
                asking.cancel()
                await asyncio.wait([asking])
                raise
            if not asking.cancelled():
                return asking.result()
        return None

    def restart(self) -> None:
        """Hang up and ask anew."""
        if self._asking is not None:
            self._asking.cancel()

    def end(self) -> None:
        """Hang up."""
        self._ended = True
        self.restart()

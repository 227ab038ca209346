"""A request in flight: what it has so far, and how it is ended or asked anew."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentrl.engine.endpoint.completion_reader import CompletionDelta
from agentrl.engine.stopping import Decode, PartialTurn
from agentrl.errors import ConfigError
from agentrl.policy import FinishReason

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class EndpointRequest(PartialTurn):
    """A turn that is sampled by one stream after another."""

    finish: FinishReason | None = None
    answer_start: int = 0
    """Number of tokens before those of the answer under way."""

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
                break
            self.context.append(token)
            self.logprobs.append(piece.logprobs[place])
            self.versions.append(version)
            if piece.top_logprobs:
                self.top_logprobs.append(piece.top_logprobs[place])
            self.finish = self.find_finish(decode)
        for span in piece.spans:
            first, end = self.answer_start + span.start, self.answer_start + span.end
            for place in range(first, min(end, len(self.versions))):
                self.versions[place] = span.version
        if piece.finish is not None and self.finish is None:
            last = self.context[-1] if self.logprobs else None
            raise ConfigError(
                f"{server} ended a completion with {piece.finish!r} after {len(self.logprobs)} of "
                f"{self.max_tokens} tokens, but the last token, {last}, is none of the stop tokens "
                f"{sorted(self.request.stop_token_ids)}; start it with --generation-config vllm "
                "and without limits of its own"
            )


class RetriedCall(Generic[R]):
    """Something that is asked for, and asked for anew until it is done, or ended."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[R] | None = None
        self._ended = False
        self._error: Exception | None = None

    async def run(self) -> R | None:
        """Return the result, or None where it was ended; a cancelled caller hangs up.

        Raises the error that it was ended with (`fail`).
        """
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
        if self._error is not None:
            raise self._error
        return None

    def restart(self) -> None:
        """Hang up and ask anew."""
        if self._asking is not None:
            self._asking.cancel()

    def end(self) -> None:
        """Hang up."""
        self._ended = True
        self.restart()

    def fail(self, error: Exception) -> None:
        """Hang up, and have `run` raise an error."""
        self._error = error
        self.end()

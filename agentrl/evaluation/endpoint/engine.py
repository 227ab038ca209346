"""An endpoint as a policy engine that evaluates: asks, waits, tries again, and gives up in time."""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, EngineError
from agentrl.evaluation.endpoint.chat import conversation, turn_bytes
from agentrl.policy import Completion, GenerateRequest
from agentrl.runtime.chat_choice import read_choice
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.http_endpoint import HttpEndpoint, HttpEndpointClient
from agentrl.runtime.json_limits import JsonLimits

if TYPE_CHECKING:
    import httpx


TURN_LIMITS = JsonLimits(text_bytes=2**20)
"""Of an answer: some 200,000 tokens of English. Each byte of it is a token here, and takes about a
hundred bytes of memory."""


class EndpointEngine(ClosingResource):
    """Asks an endpoint for turns. Its tokens are bytes: see `EndpointChat`.

    Tokens have no log-probs (they are nan). `abort` and `pause` drop what an endpoint is at: it
    hands out no partial messages.
    """

    def __init__(
        self,
        endpoint: HttpEndpoint,
        *,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._endpoint = endpoint
        self._client = HttpEndpointClient(endpoint, first_wait_s=first_wait_s, transport=transport)
        self._flights: dict[str, asyncio.Task[Completion]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._open = True

    @property
    def version(self) -> int:
        """Return 0: what is behind an endpoint has no versions."""
        return 0

    async def generate(self, request: GenerateRequest) -> Completion:
        """Ask for one turn; `ConfigError` for a wrong key or model, `EngineError` for no answer."""
        if request.id in self._flights:
            raise ValueError(
                f"request {request.id!r} is already in flight; give each request its own id"
            )
        await self._resumed.wait()
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        task = asyncio.create_task(self._turn(request), name="agentrl-endpoint-turn")
        self._flights[request.id] = task
        try:
            finished_tasks, _ = await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._flights[request.id]
        if task.cancelled():
            return Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")
        return finished_tasks.pop().result()

    async def abort(self, request_id: str) -> None:
        if (task := self._flights.get(request_id)) is not None:
            task.cancel()

    async def pause(self) -> None:
        self._resumed.clear()
        self._end_all()

    async def resume(self) -> None:
        self._resumed.set()

    async def load(self, weights: Any, version: int) -> None:
        raise ConfigError(
            f"{self._endpoint} accepts no weights and returns neither token ids nor log-probs, so "
            "its completions cannot be trained on; train with engine.kind local or vllm, or with "
            "endpoint, which requests token ids from a server"
        )

    async def close(self) -> None:
        self._open = False
        self._resumed.set()
        self._end_all()
        await self._client.close()

    def _end_all(self) -> None:
        for task in self._flights.values():
            task.cancel()

    async def _turn(self, request: GenerateRequest) -> Completion:
        messages, tools = conversation(request.prompt)
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": messages,
            "temperature": request.sampling.temperature,
            "max_tokens": request.max_new_tokens,
            "seed": request.seed % 2**31,
        }
        # What is at its default is left to the endpoint.
        if tools:
            body["tools"] = tools
        if request.sampling.top_p < 1:
            body["top_p"] = request.sampling.top_p
        answer = await self._client.ask_chat(body, limits=TURN_LIMITS)
        choice = read_choice(answer, of=self._endpoint)
        try:
            tokens = turn_bytes(choice)
        except (AttributeError, KeyError, TypeError) as error:
            calls = choice.message["tool_calls"]
            raise EngineError(
                f"{self._endpoint} returned tool_calls {calls!r:.300}, but each must have a "
                "function with a name, and an id of text"
            ) from error
        cut = choice.is_cut
        return Completion(
            # A turn that was cut short lacks the end of its line.
            token_ids=tokens[:-1] if cut else tokens,
            logprobs=(math.nan,) * (len(tokens) - cut),
            versions=(0,) * (len(tokens) - cut),
            finish="length" if cut else "stop",
        )

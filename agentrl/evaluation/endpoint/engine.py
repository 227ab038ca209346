"""An endpoint as a policy engine that evaluates: asks, waits, tries again, and gives up in time."""

import asyncio
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.closing import Closing
from agentrl.errors import ConfigError, EngineError
from agentrl.evaluation.endpoint.chat import conversation, turn_bytes
from agentrl.policy import Completion, GenerateRequest

if TYPE_CHECKING:
    import httpx

KEY = "OPENAI_API_KEY"
WRONG = {401: "the key", 403: "the key", 404: "the address or the model"}
"""Answers that every further request would get too, and what they say is wrong."""
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model answers chat completions."""

    url: str
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    key_variable: str = KEY
    """The variable of our environment that holds the key; none is sent where it is not set."""
    timeout_s: float = 600.0
    """Deadline of one answer."""
    retries: int = 6
    """After answers 408, 409, 429 and 5xx and broken connections, waiting longer each time."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or not self.model:
            raise ConfigError(
                f"an endpoint is a URL and a model, got {self.url!r} and {self.model!r}; write "
                "--endpoint http://HOST:PORT/v1 --model NAME"
            )

    def __str__(self) -> str:
        return f"{self.model} at {self.url}"


class EndpointEngine(Closing):
    """Asks an endpoint for turns. Its tokens are bytes: see `EndpointChat`.

    Tokens have no log-probs (they are nan). `abort` and `pause` drop what an endpoint is at: it
    hands out no partial messages.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """Nothing is asked yet; `transport` is httpx's own unless given.

        Raises `ConfigError` where httpx is missing.
        """
        try:
            import httpx
        except ImportError as error:
            raise ConfigError(
                f"an endpoint needs httpx ({error}); pip install 'agentrl[endpoint]'"
            ) from error
        key = os.environ.get(endpoint.key_variable)
        self._endpoint = endpoint
        self._first_wait_s = first_wait_s
        self._httpx = httpx
        self._client = httpx.AsyncClient(
            base_url=endpoint.url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=endpoint.timeout_s,
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._flights: dict[str, asyncio.Task[Completion]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._open = True

    @property
    def version(self) -> int:
        """Return 0: what is behind an endpoint has no versions."""
        return 0

    async def generate(self, request: GenerateRequest) -> Completion:
        """Ask for one turn.

        Raises `EngineError` for an answer that is none, and after the last retry; `ConfigError` for
        what every request would be refused for: a wrong key, a wrong model.
        """
        if request.id in self._flights:
            raise ValueError(f"request {request.id!r} is in flight already; give each its own id")
        await self._resumed.wait()
        if not self._open:
            raise EngineError("the engine is closed; make a new one")
        task = asyncio.create_task(self._turn(request), name="agentrl-endpoint-turn")
        self._flights[request.id] = task
        try:
            done, _ = await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._flights[request.id]
        if task.cancelled():
            return Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")
        return done.pop().result()

    async def abort(self, request_id: str) -> None:
        """End a request now; its `generate` returns nothing, `finish="aborted"`."""
        if (task := self._flights.get(request_id)) is not None:
            task.cancel()

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        self._resumed.clear()
        self._end_all()

    async def resume(self) -> None:
        """Take requests again."""
        self._resumed.set()

    async def load(self, weights: Any, version: int) -> None:
        """Raise `ConfigError`: nobody can load weights there."""
        del weights, version
        raise ConfigError(
            f"{self._endpoint} takes no weights and returns neither token ids nor log-probs, so "
            "nothing of it can train; train with engine.kind local or vllm"
        )

    async def close(self) -> None:
        """End every request as aborted. Idempotent."""
        self._open = False
        self._resumed.set()
        self._end_all()
        await self._client.aclose()

    def _end_all(self) -> None:
        for task in self._flights.values():
            task.cancel()

    async def _turn(self, request: GenerateRequest) -> Completion:
        answer = await self._ask(body_of(request, self._endpoint.model))
        try:
            choice = answer["choices"][0]
            tokens = turn_bytes(choice["message"])
            cut = choice.get("finish_reason") == "length"
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self._endpoint} answered no message: {answer!r:.300}") from error
        return Completion(
            # A turn that was cut short lacks the end of its line.
            token_ids=tokens[:-1] if cut else tokens,
            logprobs=(math.nan,) * (len(tokens) - cut),
            versions=(0,) * (len(tokens) - cut),
            finish="length" if cut else "stop",
        )

    async def _ask(self, body: Mapping[str, Any]) -> Any:
        wait_s, why = self._first_wait_s, ""
        for left in range(self._endpoint.retries, -1, -1):
            try:
                response = await self._client.post("chat/completions", json=body)
            except self._httpx.HTTPError as error:
                why, asked_s = f"{type(error).__name__}: {error}", None
            else:
                if response.is_success:
                    return self._json(response)
                why, asked_s = self._refusal(response)
            if left:
                await asyncio.sleep(min(LONGEST_WAIT_S, max(wait_s, asked_s or 0.0)))
                wait_s *= 2
        tries = self._endpoint.retries + 1
        raise EngineError(f"{self._endpoint} did not answer after {tries} tries: {why}")

    def _json(self, response: "httpx.Response") -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise EngineError(
                f"{self._endpoint} answered no JSON: {response.text!r:.300}"
            ) from error

    def _refusal(self, response: "httpx.Response") -> tuple[str, float | None]:
        """Return why an answer is none, and the seconds it asks to wait; raises for a final one."""
        status, text = response.status_code, f"{response.status_code} {response.text:.300}"
        if (what := WRONG.get(status)) is not None:
            raise ConfigError(
                f"{self._endpoint} refuses us, so {what} is wrong: {text}; the key is that of the "
                f"variable {self._endpoint.key_variable}"
            )
        if status not in (408, 409, 429) and status < 500:
            raise EngineError(f"{self._endpoint} refuses a request: {text}")
        asked = response.headers.get("retry-after", "")
        return text, float(asked) if asked.replace(".", "", 1).isdecimal() else None


def body_of(request: GenerateRequest, model: str) -> dict[str, Any]:
    """Return the request for a chat completion; what is at its default is left to the endpoint."""
    messages, tools = conversation(request.prompt)
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": sampling.temperature,
        "max_tokens": request.max_new_tokens,
        "seed": request.seed % 2**31,
    }
    if tools:
        body["tools"] = tools
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    return body

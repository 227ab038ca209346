"""The endpoint: HTTP for who knows an episode's key; on the loopback device, if not told where."""

import asyncio
import logging
import resource
import secrets
import socket
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from agentrl.gateway.answer import GatewayAnswer
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.bodies import BodyReader
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.conversations import MessageKeys, message_keys
from agentrl.gateway.dialect import (
    ApiDialect,
    BadRequest,
    Body,
    ChatRequest,
    LongRequest,
    check_texts,
    digest_content,
    digest_conversation,
)
from agentrl.gateway.listening import ListenAddress, open_socket
from agentrl.gateway.responses import ResponsesDialect
from agentrl.gateway.session import GatewayRequest, GatewaySession, GatewaySessionClosed

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

START_S = 30.0
END_S = 10.0
HEAD_S = 10.0
"""Seconds in which a connection has to bring the head of its next request."""
MODEL = "policy"
"""The name under which the policy is listed; every name is answered."""

_log = logging.getLogger(__name__)

_PROTOCOLS: dict[str, ApiDialect] = {
    "chat/completions": ChatCompletionsDialect(),
    "responses": ResponsesDialect(),
    "messages": AnthropicDialect(),
}


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Address and keys with which an episode's program sends requests."""

    url: str
    """Base URL for clients of Anthropic's protocol; OpenAI's want `/v1` behind it."""
    key: str
    """Also good as API key, at the gateway's own address."""
    desk: GatewaySession


class GatewayServer:
    """One endpoint for all episodes of a process. `open` starts it, `close` ends it."""

    def __init__(self, server: "uvicorn.Server", serving: "asyncio.Task[None]", url: str) -> None:
        self._server = server
        self._serving = serving
        self.url = url
        self._desks: dict[str, GatewaySession] = {}

    @classmethod
    async def open(cls, address: ListenAddress | None = None) -> Self:
        """Start at an address, or on a free port of the loopback device.

        Raises `ConfigError` where a part it needs is not installed, and for an address that is not
        free or not of this machine.
        """
        address = address or ListenAddress()
        listening = open_socket(address)
        port = listening.getsockname()[1]
        try:
            server, run = _server(lambda key: gateway._desks.get(key), listening)
        except BaseException:
            listening.close()
            raise
        gateway = cls(server, asyncio.create_task(run()), address.build_url(port))
        try:
            async with asyncio.timeout(START_S):
                while not server.started:
                    if gateway._serving.done():
                        gateway._serving.result()
                    await asyncio.sleep(0.005)
        except BaseException:
            await gateway.close()
            raise
        if warning := address.explain_reach(port):
            _log.warning("%s", warning)
        return gateway

    def place(self, ignored: Iterable[str] = ()) -> GatewayAddress:
        """Return a place for a new episode; `free` ends it.

        `ignored` are names of fields that its requests may have and nobody looks at.
        """
        key = secrets.token_hex(16)
        self._desks[key] = GatewaySession(ignored)
        return GatewayAddress(f"{self.url}/episode/{key}", key, self._desks[key])

    def free(self, place: GatewayAddress) -> None:
        """End an episode: who still asks is told so. Idempotent."""
        self._desks.pop(place.key, None)
        place.desk.close("this episode is over")

    async def close(self) -> None:
        """End all episodes and stop serving. Idempotent."""
        for desk in self._desks.values():
            desk.close("the gateway is closed")
        self._desks.clear()
        self._server.should_exit = True
        try:
            async with asyncio.timeout(END_S):
                await asyncio.shield(self._serving)
        except TimeoutError:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)


def _server(
    find: Callable[[str], GatewaySession | None], listening: socket.socket
) -> tuple["uvicorn.Server", Callable[[], Coroutine[Any, Any, None]]]:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class QuietUvicornServer(uvicorn.Server):
        """Leaves the process's signals to whoever has them."""

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    class BoundedProtocol(H11Protocol):
        """Ends a connection that brings no request in time, and those that are too many.

        Whoever reaches the port may connect, with or without a key.
        """

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            if len(self.connections) > count_most_connections():
                transport.abort()
                return
            self.loop.call_later(HEAD_S, self._end_idle, self.cycle)

        def _end_idle(self, seen: Any) -> None:
            is_idle = self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]
            if self.transport.is_closing():
                return
            if is_idle and self.cycle is seen:
                self.transport.abort()
                return
            self.loop.call_later(HEAD_S, self._end_idle, self.cycle)

    server = QuietUvicornServer(
        uvicorn.Config(
            _app(find),
            http=BoundedProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )

    async def run() -> None:
        try:
            await server.serve(sockets=[listening])
        finally:
            listening.close()

    return server, run


def count_most_connections() -> int:
    """Return the limit of connections: half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files // 2 if files != resource.RLIM_INFINITY else 2**16


def _app(find: Callable[[str], GatewaySession | None]) -> "Starlette":
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def models(request: "Request") -> "Response":
        if find(_key(request)) is None:
            return JSONResponse(ChatCompletionsDialect().error(401, "no episode has this key"), 401)
        listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentrl"}
        return JSONResponse({"object": "list", "data": [listed]})

    bodies = BodyReader()
    routes: list[Route] = []
    for prefix in ("/v1", "/episode/{key}/v1"):
        routes.append(Route(f"{prefix}/models", models, methods=["GET"]))
        for path, protocol in _PROTOCOLS.items():
            handler = _handler(find, bodies, protocol)
            routes.append(Route(f"{prefix}/{path}", handler, methods=["POST"]))
    app = Starlette(routes=routes)
    # A redirection would be to whatever the request says this machine is called.
    app.router.redirect_slashes = False
    return app


def _handler(
    find: Callable[[str], GatewaySession | None], bodies: BodyReader, protocol: ApiDialect
) -> Callable[["Request"], Awaitable["Response"]]:
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse

    def refuse(status: int, text: str, *, is_too_long: bool = False) -> "Response":
        # A client must not try again what will not change.
        headers = {"x-should-retry": "false"}
        body = protocol.error(status, text, is_too_long=is_too_long)
        return JSONResponse(body, status, headers=headers)

    async def handle(request: "Request") -> "Response":
        desk = find(_key(request))
        if desk is None:
            return refuse(
                401,
                "no running episode has this key; its program is still running after the episode "
                "ended",
            )
        ignored = desk.ignored
        conversation = content = b""

        def read(body: Body) -> tuple[ChatRequest, Sequence[MessageKeys]]:
            nonlocal conversation
            try:
                chat_request = protocol.read(body, ignored)
                check_texts(chat_request)
            except BadRequest:
                conversation = digest_conversation(body)
                raise
            if desk.refusals:
                conversation = digest_conversation(body)
            return chat_request, [*map(message_keys, chat_request.messages)]

        try:
            length = request.headers.get("content-length")
            chat_request, keys = await bodies.read(request.stream(), length=length, read=read)
            content = digest_content(chat_request, keys)
            chat_request = replace(
                chat_request,
                is_retry=request.headers.get("x-stainless-retry-count", "0") != "0",
                key=request.headers.get("idempotency-key", ""),
            )
            answer = await _unless_gone(request, desk.ask(chat_request, keys))
        except BadRequest as error:
            desk.note_refusal(error, content or conversation)
            return refuse(400, str(error), is_too_long=isinstance(error, LongRequest))
        except GatewaySessionClosed as error:
            return refuse(410, str(error))
        except ClientDisconnect:
            return refuse(499, "the client has disconnected")
        if answer is None:
            return refuse(499, "the client has disconnected")
        desk.note_answer(conversation, content)
        return _answer(protocol, chat_request, answer)

    return handle


def _answer(protocol: ApiDialect, asked: ChatRequest, answer: GatewayAnswer) -> "Response":
    from starlette.responses import JSONResponse, StreamingResponse

    if not asked.stream:
        return JSONResponse(protocol.answer(asked, answer))

    async def write_lines() -> AsyncGenerator[str]:
        # What is not asynchronous would be written from a thread, one hop an event.
        for event in protocol.events(asked, answer):
            yield (f"event: {event.name}\n" if event.name else "") + f"data: {event.data}\n\n"

    return StreamingResponse(write_lines(), media_type="text/event-stream")


def _key(request: "Request") -> str:
    """Return the episode's key: of the path, or the API key."""
    if (key := request.path_params.get("key")) is not None:
        return str(key)
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return bearer or request.headers.get("x-api-key", "")


async def _unless_gone(
    request: "Request", asking: Awaitable[tuple[GatewayRequest, GatewayAnswer]]
) -> GatewayAnswer | None:
    """Return the answer; None when the client went away before there was one."""
    answer = asyncio.ensure_future(asking)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((answer, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return None
        question, reply = await answer
        if disconnect.done():
            question.is_delivered = False
        return reply
    finally:
        for task in (answer, disconnect):
            task.cancel()
        await asyncio.gather(answer, disconnect, return_exceptions=True)


async def _wait_for_disconnect(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue

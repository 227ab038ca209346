"""An endpoint over HTTP, asked with patience: what may pass is waited for, the rest is told."""

import asyncio
import json
import logging
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.runtime.http_body import read_pieces
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json
from agentrl.runtime.reachability import is_url
from agentrl.runtime.surrogates import replace_surrogates

if TYPE_CHECKING:
    import httpx

KEY = "OPENAI_API_KEY"
WRONG = {
    401: "the key is wrong",
    402: "the account has no credit",
    403: "the key is wrong",
    404: "the address or the model is wrong",
}
"""Answers that every further request would get too, and what they mean."""
NO_CREDIT = b"insufficient_quota"
"""In an answer 429 that no wait helps against."""
PASSING = (408, 409, 425, 429)
"""Answers besides 5xx that another try may not get."""
LONGEST_WAIT_S = 60.0
"""Of waits that grow; one that the server asks for may be longer."""
LONGEST_ASKED_S = 600.0
"""A server that asks for more is given up."""
QUIET_S = 30.0
"""Between two warnings of one endpoint."""
ANSWER_LIMITS = JsonLimits(text_bytes=2**26, values=500_000)
"""Of an answer: log-probs of a long turn, with alternatives of each token. No more is received."""
REFUSAL_BYTES = 2**12
"""Of a refusal, of which the beginning is shown."""
SHOWN_CHARS = 300

_log = logging.getLogger(__name__)
_warned_s: dict[str, float] = {}
"""Time of the last warning of each endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    """Inference server and the model it serves."""

    url: str
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    key_variable: str = KEY
    """The variable of our environment that holds the key; none is sent where it is not set."""
    timeout_s: float = 600.0
    """Longest silence while something is to come: an answer, or the next part of one."""
    retries: int = 6
    """After answers 408, 409, 425, 429 and 5xx and broken connections, waiting longer each time."""

    def __post_init__(self) -> None:
        if not is_url(self.url) or not self.model:
            raise ConfigError(
                f"an endpoint needs a URL and a model, got {self.url!r} and {self.model!r}; set "
                "--endpoint http://HOST:PORT/v1 --model NAME, or engine.endpoint.urls and "
                "engine.endpoint.model"
            )
        parts = urlsplit(self.url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError(
                f"the URL of an endpoint at {parts.hostname} has a user name, a query or a "
                "fragment, but paths are appended to it, and it is recorded; set "
                f"{parts.scheme}://HOST:PORT/PATH, and the key in the variable {self.key_variable}"
            )

    def read_key(self) -> str:
        """Return the key, "" where none is set; `ConfigError` for one that no header can hold."""
        key = os.environ.get(self.key_variable, "")
        if not all("!" <= letter <= "~" for letter in key):
            raise ConfigError(
                f"the key in the variable {self.key_variable} has a space, a line break or a "
                "letter beyond ASCII in it, which no request can send; set it again without, as by "
                f'{self.key_variable}="$(cat FILE)"'
            )
        return key

    def __str__(self) -> str:
        return f"{self.model} at {self.url}"

    @property
    def root(self) -> str:
        """The URL without the version: paths that begin with a slash are from here on."""
        return self.url.rstrip("/").removesuffix("/v1")


class EndpointRefusedError(ConfigError):
    """An answer that every request would get."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class EndpointRequestError(EngineError):
    """Refusal of one request, for what it asks."""


class EndpointUnavailableError(EngineError):
    """Failure after which another try may get an answer."""

    def __init__(self, why: str, *, asked_s: float | None = None) -> None:
        """`asked_s` is how long the endpoint asks to be left alone."""
        super().__init__(why)
        self.asked_s = asked_s


class RetryPolicy:
    """Waits between tries, and the number of tries before giving up."""

    def __init__(self, *, first_wait_s: float, retries: int) -> None:
        self._first_wait_s = first_wait_s
        self._retries = retries
        self._failed = 0

    def progress(self) -> None:
        """Begin anew: something came."""
        self._failed = 0

    async def wait(self, error: EndpointUnavailableError, *, of: HttpEndpoint) -> None:
        """Wait until the next try. Raises `EngineLost` where there is none left."""
        self._failed += 1
        if self._failed > self._retries:
            raise EngineLost(f"{of} did not answer after {self._failed} tries: {error}") from error
        asked_s = error.asked_s or 0.0
        if asked_s > LONGEST_ASKED_S:
            raise EngineLost(
                f"{of} asks for a wait of {asked_s:g} s, but the longest is {LONGEST_ASKED_S:g} s: "
                f"{error}"
            ) from error
        wait_s = self._first_wait_s * 2.0 ** min(self._failed - 1, 16)
        wait_s = max(min(LONGEST_WAIT_S, wait_s), asked_s)
        if self._failed > 1 or wait_s > QUIET_S:  # what passes at once is no news
            _warn_of_failures(str(of), f"{error}; try {self._failed + 1} follows in {wait_s:g} s")
        await asyncio.sleep(wait_s)


def _encode(body: Mapping[str, Any]) -> bytes:
    """Return a request as JSON."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    try:
        return encode(body).encode()
    except UnicodeEncodeError:
        return encode(replace_surrogates(body)).encode()


def _warn_of_failures(endpoint: str, what: str) -> None:
    """Warn of an endpoint that fails again, now and then: many requests fail at once."""
    now_s = time.monotonic()
    if now_s - _warned_s.get(endpoint, -QUIET_S) >= QUIET_S:
        _warned_s[endpoint] = now_s
        _log.warning("%s: %s", endpoint, what)


class HttpEndpointClient:
    """Connections to an endpoint; `close` ends them."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        *,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        import httpx

        key = endpoint.read_key()
        self._endpoint = endpoint
        self._key = key
        self._first_wait_s = first_wait_s
        self._httpx = httpx
        self._names: dict[str, str] = {}
        """Names that fields have at this endpoint; empty for what it does not take."""
        self._client = httpx.AsyncClient(
            base_url=endpoint.url.rstrip("/") + "/",
            headers={"Accept-Encoding": "gzip"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=endpoint.timeout_s,
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )

    def patience(self) -> RetryPolicy:
        """Return a new measure of tries."""
        return RetryPolicy(first_wait_s=self._first_wait_s, retries=self._endpoint.retries)

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        limits: JsonLimits = ANSWER_LIMITS,
    ) -> Any:
        """Return the JSON of an answer within limits; without a body it is a GET.

        Raises `EngineLost` after the last try, `EndpointRefusedError` for what every request would
        be refused for, `EngineError` for any other refusal.
        """
        answer = await self._send(path, body, limits.text_bytes)
        try:
            return read_json(answer, limits)
        except JsonLimitError as error:
            why = f"which cannot be parsed: {error}"
            if answer.lstrip().startswith(b"<"):
                why = "a page and no JSON; check the address, which for most APIs ends in /v1"
            raise EngineError(f"{self._endpoint} answered {self._show(answer)!r}, {why}") from error

    async def ask_chat(self, body: Mapping[str, Any], *, limits: JsonLimits = ANSWER_LIMITS) -> Any:
        """Return the JSON of a chat completion; raises as `ask` does.

        A field that this endpoint refuses is asked for by its own name from then on, or not at all.
        """
        while True:
            fields = {self._names.get(name, name): value for name, value in body.items()}
            fields.pop("", None)
            try:
                return await self.ask("chat/completions", fields, limits=limits)
            except EndpointRequestError as error:
                other_names = _find_refused_field(str(error), fields)
                if other_names is None:
                    raise
                self._names |= other_names

    async def ask_once(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of an answer, or None where it has none; tries once, for what must not be
        done twice. Raises as `ask` does, and `EndpointUnavailableError` for what may pass."""
        answer = await self._send_once(path, body, ANSWER_LIMITS.text_bytes)
        try:
            return read_json(answer, ANSWER_LIMITS) if answer.strip() else None
        except JsonLimitError:
            return None  # a word that all went well

    async def tell(self, path: str, body: Mapping[str, Any], *, once: bool = False) -> None:
        """Have something done; raises as `ask` does. `once` is for what may be left undone."""
        most = ANSWER_LIMITS.text_bytes
        await (self._send_once(path, body, most) if once else self._send(path, body, most))

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """Yield the JSON of a stream's events. Tries once, and raises as `ask` does, and
        `EndpointUnavailableError` for a stream that is torn; closing it hangs up."""
        async with self._open("POST", path, body) as response:
            if "text/event-stream" not in (kind := response.headers.get("content-type", "")):
                raise ConfigError(
                    f"{self._endpoint} answers {path} with {kind!r} although streaming was "
                    "requested; use a server that supports streaming, such as vLLM's"
                )
            async with aclosing(self._read_lines(response)) as lines:
                async for line in lines:
                    is_data = line.startswith(b"data:")
                    data = line.removeprefix(b"data:").strip() if is_data else b""
                    if data == b"[DONE]":
                        return
                    if data:
                        yield self._parse_event(data)
        raise EndpointUnavailableError("the stream ended before its end")

    async def close(self) -> None:
        """Hang up. Idempotent."""
        await self._client.aclose()

    async def _send(self, path: str, body: Mapping[str, Any] | None, most: int) -> bytes:
        patience = self.patience()
        while True:
            try:
                return await self._send_once(path, body, most)
            except EndpointUnavailableError as error:
                await patience.wait(error, of=self._endpoint)

    async def _send_once(self, path: str, body: Mapping[str, Any] | None, most: int) -> bytes:
        async with self._open("GET" if body is None else "POST", path, body) as response:
            return await self._read_content(response, most)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncGenerator["httpx.Response"]:
        try:
            url = f"{self._endpoint.root}{path}" if path.startswith("/") else path
            content = None if body is None else _encode(body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            async with self._client.stream(
                method, url, content=content, headers=headers
            ) as response:
                if not response.is_success:
                    raise await self._read_refusal(response)
                yield response
        except self._httpx.DecodingError as error:
            raise EngineError(
                f"{self._endpoint} sent an answer that cannot be unpacked: {error}"
            ) from error
        except self._httpx.HTTPError as error:
            if (fault := _find_certificate_fault(error)) is not None:
                raise ConfigError(
                    f"{self._endpoint}: its certificate cannot be trusted: {fault}; set "
                    "SSL_CERT_FILE to a file with the certificate of who signed it"
                ) from error
            raise EndpointUnavailableError(f"{type(error).__name__}: {error}") from error

    async def _read_content(self, response: "httpx.Response", most: int) -> bytes:
        """Return the body of an answer, of which no more than `most` bytes are received."""
        size = response.headers.get("content-length", "")
        if size.isdecimal() and (len(size) > len(str(most)) or int(size) > most):
            raise self._too_long(f"an answer of {size:.30} bytes", most)
        content = bytearray()
        async with aclosing(read_pieces(response)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > most:
                    raise self._too_long(f"an answer of more than {most} bytes", most)
        return bytes(content)

    async def _read_lines(self, response: "httpx.Response") -> AsyncGenerator[bytes]:
        """Yield the lines of a stream, as its events end them: a text may hold U+2028."""
        rest, most = bytearray(), ANSWER_LIMITS.text_bytes
        async with aclosing(read_pieces(response)) as pieces:
            async for piece in pieces:
                *lines, last = piece.split(b"\n")
                for line in lines:
                    yield bytes(rest + line)
                    rest.clear()
                rest += last
                if len(rest) > most:
                    raise self._too_long(f"an event of more than {most} bytes", most)
        yield bytes(rest)

    def _too_long(self, what: str, most: int) -> EngineError:
        return EngineError(
            f"{self._endpoint} sent {what}, but the limit is {most}; request fewer tokens or "
            "log-probs"
        )

    def _parse_event(self, data: bytes) -> Any:
        try:
            event = read_json(data, ANSWER_LIMITS)
        except JsonLimitError as error:
            raise EndpointUnavailableError(
                f"an event of the stream is {self._show(data)!r}, which cannot be parsed: {error}"
            ) from error
        if isinstance(event, dict) and "error" in event:
            raise EndpointUnavailableError(f"the stream ends with an error: {self._show(data)}")
        return event  # pyright: ignore[reportUnknownVariableType]

    async def _read_refusal(self, response: "httpx.Response") -> EngineError | ConfigError:
        """Return why an answer is none."""
        body = bytearray()
        try:
            async with aclosing(read_pieces(response)) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > REFUSAL_BYTES:
                        break
        except self._httpx.DecodingError as error:
            body += f" ({error})".encode()
        status = response.status_code
        text = f"{status} {self._show(body)}"
        if response.has_redirect_location:
            place = self._show(response.headers["location"].encode())
            return EndpointRefusedError(
                f"{self._endpoint} has moved ({status}), and a key follows no redirection; if you "
                f"trust it, set the URL to where this leads: {place}",
                status=status,
            )
        what = WRONG[402] if status == 429 and NO_CREDIT in body else WRONG.get(status)
        if what is not None:
            return EndpointRefusedError(
                f"{self._endpoint} refused access, so {what}: {text}; the key is read from the "
                f"variable {self._endpoint.key_variable}",
                status=status,
            )
        if status not in PASSING and status < 500:
            return EndpointRequestError(f"{self._endpoint} refused a request: {text}")
        return EndpointUnavailableError(
            text, asked_s=parse_wait(response.headers.get("retry-after", ""), now_s=time.time())
        )

    def _show(self, said: bytes | bytearray) -> str:
        """Return the text that bytes begin with, without the key and what no terminal shows."""
        text = said[:REFUSAL_BYTES].decode(errors="replace")
        text = text.replace(self._key, "[the key]") if self._key else text
        return "".join(letter if letter.isprintable() else " " for letter in text)[:SHOWN_CHARS]


def parse_wait(retry_after: str, *, now_s: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, a number or a date; None for none.

    `now_s` is the time since the epoch, in seconds.
    """
    if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now_s)
    except (ValueError, OverflowError):
        return None


def _find_certificate_fault(error: BaseException) -> str | None:
    """Return why a server's certificate was refused; None where it was not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def _find_refused_field(refusal: str, body: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the field of a request that a refusal is about, with its other name; None for none.

    Newer models of OpenAI take `max_completion_tokens` alone, and some servers take no seed, which
    only makes a repetition likelier.
    """
    if "max_tokens" in body and "max_completion_tokens" in refusal:
        return {"max_tokens": "max_completion_tokens"}
    if "seed" in body and re.search(r"""['"]seed['"]""", refusal):
        return {"seed": ""}
    return None

"""A site of yours: your pages, your tasks, your checker.

    agentrl.make(
        "web/Site-v0",
        start_url="http://localhost:8000/",        # or app="my_site:app", any ASGI application
        tasks="my_site:tasks",                     # (split, seed) -> tasks, or a list of prompts
        checker="my_site:check",                   # (task, page, said) -> reward, or None to go on
    )

With `app`, the application is called in this process and no socket is opened. Without it, requests
to the origins are made from this machine, over HTTP, by the environment and not by the browser:
whatever a page asks for elsewhere does not exist.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.http_body import read_pieces
from agentrl.runtime.imports import import_callable
from agentrl.task import Split, Task, split_of
from agentrl_envs.web.browser.policy import is_within, origin_of
from agentrl_envs.web.browser.traffic import MAX_BODY_BYTES
from agentrl_envs.web.episode_site import LivePage, SiteVerdict, WebRequest, WebResponse

if TYPE_CHECKING:
    import httpx

Checked = float | SiteVerdict | None
Checker = Callable[[Task, LivePage, str | None], Checked | Awaitable[Checked]]
"""Is called after every action and with the last word; a number ends the episode with it, None lets
it go on. What ends without a number is worth 0."""

_HOP = ("connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding")
_TIMEOUT_S = 30.0


class CustomSitePack:
    """Tasks on a site of yours."""

    has_gold = False

    def __init__(
        self,
        *,
        start_url: str,
        tasks: str | Sequence[str] | Callable[[Split, int], Iterable[Task]],
        checker: str | Checker,
        origins: Sequence[str] = (),
        app: str | Callable[..., Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Acquire nothing; `ConfigError` for an address that no browser could open.

        Args:
            start_url: Where every episode begins.
            tasks: What there is to do: prompts, which are put into a split by their text; or a
                function of a split and a seed that yields tasks, or its name, `module:function`.
            checker: The checker, or its name, `module:function`.
            origins: Where the agent may go, besides the origin of `start_url`.
            app: An ASGI application, or its name, `module:name`; called for all origins.
            headers: Sent with every request, such as an authorisation the agent is not to see.
        """
        start_origin = origin_of(start_url)
        if start_origin is None:
            raise ConfigError(f"start_url must be an http(s) address, got {start_url!r}")
        if bad := [origin for origin in origins if origin_of(origin) is None]:
            raise ConfigError(f"origins must have the form scheme://host[:port], got {bad}")
        if isinstance(tasks, str):
            tasks = cast("Callable[[Split, int], Iterable[Task]]", import_callable(tasks))
        self._start_url = start_url
        self._origins = tuple(dict.fromkeys([start_origin, *map(str, map(origin_of, origins))]))
        self._tasks = tasks
        self._checker = import_callable(checker) if isinstance(checker, str) else checker
        self._app = import_callable(app) if isinstance(app, str) else app
        self._headers = dict(headers or {})

    def tasks(self, split: Split, seed: int) -> Iterable[Task]:
        if callable(self._tasks):
            yield from self._tasks(split, seed)
            return
        for prompt in self._tasks:
            if split_of(prompt) == split:
                yield Task(prompt=prompt, split=split)

    def world(self, task: Task) -> "CustomSite":
        return CustomSite(
            task=task,
            start_url=self._start_url,
            origins=self._origins,
            checker=cast("Checker", self._checker),
            app=self._app,
            headers=self._headers,
        )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Raise `KeyError`: nobody here knows your site."""
        raise KeyError(task.id)


@dataclass(eq=False, kw_only=True)
class CustomSite:
    """One episode on the site. Its state is the site's own, and is not copied."""

    task: Task
    start_url: str
    origins: tuple[str, ...]
    checker: Checker
    app: Callable[..., Any] | None
    headers: Mapping[str, str]
    reusable: bool = False
    _client: "httpx.AsyncClient | None" = None

    async def answer(self, request: WebRequest) -> WebResponse | None:
        """Ask the site. A site that does not answer is a bad gateway to the page."""
        import httpx

        if not is_within(request.url, self.origins):
            return None
        client = self._open_client()
        sent = {name: value for name, value in request.headers.items() if name not in _HOP}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                client.stream(
                    request.method,
                    request.url,
                    headers={**sent, "accept-encoding": "gzip", **self.headers},
                    content=request.body,
                ) as reply,
            ):
                body = await _read_body(reply)
        except (httpx.HTTPError, OverflowError, TimeoutError) as error:
            body = f"the site did not answer: {type(error).__name__} {error}"[:500].encode()
            return WebResponse(status=502, headers={"content-type": "text/plain"}, body=body)
        client.cookies.clear()  # they are the browser's to keep
        header_items = [
            (name, value) for name, value in reply.headers.multi_items() if name not in _HOP
        ]
        headers: dict[str, str] = {}
        for name, value in header_items:
            headers[name] = f"{headers[name]}\n{value}" if name in headers else value
        return WebResponse(status=reply.status_code, headers=headers, body=body)

    async def begin(self, page: LivePage) -> str:
        return "\n".join(message.text for message in self.task.messages)

    async def judge(self, page: LivePage, said: str | None) -> SiteVerdict:
        verdict = self.checker(self.task, page, said)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if isinstance(verdict, SiteVerdict):
            return verdict
        if verdict is None:
            return SiteVerdict(reward=0.0, done=said is not None)
        return SiteVerdict(reward=float(verdict), done=True)

    def ahead(self) -> None:
        """Return None: what the site shows is the episode's."""
        return

    def copy(self) -> None:
        """Return None: the state is the site's."""
        return

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open_client(self) -> "httpx.AsyncClient":
        if self._client is None:
            import httpx

            transport = None if self.app is None else httpx.ASGITransport(app=self.app)
            self._client = httpx.AsyncClient(
                transport=transport, follow_redirects=False, timeout=_TIMEOUT_S, trust_env=False
            )
        return self._client


async def _read_body(reply: "httpx.Response") -> bytes:
    """Return the body of a site's answer, unpacked. OverflowError where that is over the limit."""
    body = bytearray()
    async with aclosing(read_pieces(reply)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise OverflowError(f"the limit is {MAX_BODY_BYTES} bytes")
    return bytes(body)

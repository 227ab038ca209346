"""A world that is an ASGI application over a state of its own: no socket, no process."""

import copy
from collections.abc import Callable, MutableMapping
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from agentrl.errors import ConfigError, EnvError, blame
from agentrl_envs.web.episode_site import LivePage, SiteVerdict, WebRequest, WebResponse

State = TypeVar("State")
AsgiApp = Callable[[Any, Any, Any], Any]
Check = Callable[[State, str | None], SiteVerdict]
"""Judges the state, and the agent's last word where there is one."""

STATE_KEY = "agentrl.state"
"""Key of the state of an application's episode in the ASGI scope."""
_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding"})


class AsgiSite(Generic[State]):
    """One episode on a site. The application is shared; the state is this episode's alone."""

    reusable = False

    def __init__(
        self,
        app: AsgiApp,
        state: State,
        *,
        goal: str,
        check: Check[State],
        origin: str,
        start_path: str = "/",
    ) -> None:
        """Serve `state` through `app` at `origin`; `copy.deepcopy` must copy the state."""
        parts = urlsplit(origin)
        if not parts.scheme or not parts.netloc or parts.path:
            raise ConfigError(
                f"origin is {origin!r}; it must be a scheme and a host, such as http://shop.invalid"
            )
        self.app = app
        self.state = state
        self.goal = goal
        self.check = check
        self.origins = (origin,)
        self.start_url = urljoin(origin, start_path)

    async def answer(self, request: WebRequest) -> WebResponse | None:
        """Answer out of the state; None for another origin.

        Raises `EnvError` where the application raises.
        """
        parts = urlsplit(request.url)
        if f"{parts.scheme}://{parts.netloc}" not in self.origins:
            return None
        request_headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        with blame(EnvError, f"the site on {request.method} {parts.path}"):
            response = await self._client.request(
                request.method, request.url, headers=request_headers, content=request.body
            )
        headers = {k: v for k, v in response.headers.items() if k not in _HOP_BY_HOP}
        if cookies := response.headers.get_list("set-cookie"):
            headers["set-cookie"] = "\n".join(cookies)
        return WebResponse(status=response.status_code, headers=headers, body=response.content)

    async def begin(self, page: LivePage) -> str:
        return self.goal

    async def judge(self, page: LivePage, said: str | None) -> SiteVerdict:
        return self.check(self.state, said)

    def ahead(self) -> None:
        """Return None: what the site shows is the episode's."""
        return

    def copy(self) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("_client", None)
        other.state = copy.deepcopy(self.state)
        return other

    async def close(self) -> None:
        """Nothing is held."""

    @cached_property
    def _client(self) -> Any:
        import httpx

        async def call_with_state(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            scope[STATE_KEY] = self.state
            await self.app(scope, receive, send)

        # Nothing is open behind a transport in this process, so nobody has to close the client.
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=cast("Any", call_with_state)))


class SiteRefusal(Exception):
    """Nothing was changed; the text is for whoever asked."""

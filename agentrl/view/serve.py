"""The page over HTTP, for runs that are large or go on: tables when they change, stories on demand.

On the loopback device alone, and only for who knows the token in the address.
"""

import hashlib
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.store.reader import GroupIndexRow
from agentrl.view.document import TITLE, build_index, dump, template
from agentrl.view.group_choice import StepRange
from agentrl.view.index import GroupRow
from agentrl.view.live import build_live_state
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import RunMonitor

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
LOOK_S = 1.0
"""Least time between two looks at how a run stands."""
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class LiveRun:
    """A run as it is now; what cannot change any more is read once. May be used by any thread."""

    def __init__(self, source: RunReader, *, steps: StepRange) -> None:
        self._source = source
        self._steps = steps
        self._lock = Lock()
        self._rows: dict[int, tuple[GroupIndexRow, GroupRow, bool]] = {}
        self._seen: tuple[object, ...] = ()
        self._index = ""
        self.tag = ""
        """Of the latest index: another one for another index."""
        self._watch = RunMonitor(source)
        self._looked: tuple[float, str] | None = None

    def index(self) -> str:
        """Return the tables as JSON."""
        with self._lock:
            state = self._state()
            if state != self._seen or not self._index:
                self._index = self._read()
                self.tag = f'"{hashlib.sha256(self._index.encode()).hexdigest()[:32]}"'
                self._seen = state
            return self._index

    def live(self) -> str:
        """Return the state of the run as JSON; many readers share one look."""
        with self._lock:
            now_s = time.monotonic()
            if self._looked is None or now_s - self._looked[0] >= LOOK_S:
                self._looked = (now_s, dump(build_live_state(self._watch.look(now_s=now_s))))
            return self._looked[1]

    def story(self, group: int) -> str | None:
        """Return a group's story as JSON; None where there is none."""
        with self._lock:
            facts = [one for one in self._source.facts() if one.id == group]
            pages = [*self._source.read_pages(facts)]
            return dump(pages[0].story) if pages and pages[0].story is not None else None

    def _state(self) -> tuple[object, ...]:
        store = self._source.store
        size = [
            file.stat().st_size if (file := self._source.folder / name).exists() else 0
            for name in ("metrics.jsonl", "summary.json")
        ]
        return (None if store is None else store.newest, *size)

    def _read(self) -> str:
        facts = [one for one in self._source.facts() if one.step in self._steps]
        for one in facts:
            entry = self._rows.get(one.id)
            if entry is None or entry[0] != one or one.state == "open":
                (page,) = self._source.read_pages([one], stories=False)
                self._rows[one.id] = (one, page.row, page.has_story)
        rows = [self._rows[one.id] for one in facts]
        places = {row.id: row.id for _, row, has_story in rows if has_story}
        return dump(build_index(self._source, [row for _, row, _ in rows], places, []))


def build_app(run: LiveRun, *, token: str, name: str) -> "Starlette":
    """Return the application: the page, its tables, how the run stands, a story by its group."""
    from html import escape

    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def is_known(request: "Request") -> bool:
        query_token = request.query_params.get("token", "")
        return secrets.compare_digest(query_token.encode(), token.encode())

    refused = partial(
        PlainTextResponse, "this address lacks the access token printed at start", status_code=403
    )

    async def page(request: "Request") -> "Response":
        if not is_known(request):
            return refused()
        head, tail = template()
        head = head.replace(TITLE, escape(f"{name} - agentrl"))
        begin = "<script>agentrlBegin({served: true})</script>"
        return HTMLResponse(f"{head}{begin}{tail}", headers=_HEADERS)

    async def index(request: "Request") -> "Response":
        if not is_known(request):
            return refused()
        text = await run_in_threadpool(run.index)
        headers = {**_HEADERS, "ETag": run.tag}
        if request.headers.get("If-None-Match") == run.tag:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type="application/json", headers=headers)

    async def live(request: "Request") -> "Response":
        if not is_known(request):
            return refused()
        text = await run_in_threadpool(run.live)
        return Response(text, media_type="application/json", headers=_HEADERS)

    async def story(request: "Request") -> "Response":
        if not is_known(request):
            return refused()
        text = await run_in_threadpool(run.story, request.path_params["group"])
        if text is None:
            return PlainTextResponse("the tokens of this group are not available", status_code=404)
        return Response(text, media_type="application/json", headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/index", index),
            Route("/live", live),
            Route("/story/{group:int}", story),
        ],
        # A page elsewhere may give its own name our address; it does not get past its own name.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost", "testserver"]),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1),
        ],
    )


def serve(folder: Path, *, steps: StepRange, port: int, announce: Callable[[str], None]) -> None:
    """Serve a run until the process is interrupted; `announce` hears the address.

    Raises `ConfigError` if the port is taken.
    """
    import uvicorn

    token = secrets.token_urlsafe(24)
    with RunReader(folder) as source, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be opened: {error.strerror}; choose another with "
                "--port, or 0 for any"
            ) from error
        listening.listen()  # before it is announced: nobody else can have the port any more
        app = build_app(LiveRun(source, steps=steps), token=token, name=folder.resolve().name)
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        announce(f"http://{HOST}:{listening.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])

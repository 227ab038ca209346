"""The page over HTTP, for runs that are large or go on: tables when they change, stories on demand.

On the loopback device alone, and only for who knows the token in the address.
"""

import hashlib
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.evaluation.reports import REPORT
from agentrl.metrics.writer import FILE as METRICS
from agentrl.store.errors import StoreError
from agentrl.store.reader import GroupIndexRow
from agentrl.view.document import build_index, dump, name_runs
from agentrl.view.group_choice import StepRange
from agentrl.view.index import GroupRow
from agentrl.view.live import build_live_state
from agentrl.view.run_files import SUMMARY, FileFaults
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import RunMonitor
from agentrl.view.shell import begin_script, build_shell

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]

HOST = "127.0.0.1"
LOOK_S = 1.0
"""Least time between two looks at how a run stands."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveRun:
    """A run as it is now; what cannot change any more is read once. May be used by any thread."""

    def __init__(self, source: RunReader, *, steps: StepRange, name: str = "") -> None:
        self.name = name or name_runs([source])[0]
        self._source = source
        self._steps = steps
        self._lock = Lock()
        self._openings = source.openings
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
            self._refresh()
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
            self._refresh()
            facts = [one for one in self._source.facts() if one.id == group]
            decisions = self._source.read_decisions(FileFaults())
            pages = [*self._source.read_pages(facts, decisions=decisions)]
            return dump(pages[0].story) if pages and pages[0].story is not None else None

    def _refresh(self) -> None:
        self._source.refresh()
        if self._openings != self._source.openings:
            self._openings = self._source.openings
            self._rows.clear()
            self._seen = ()

    def _state(self) -> tuple[object, ...]:
        store = self._source.store
        size = [
            file.stat().st_size if (file := self._source.folder / name).exists() else 0
            for name in (METRICS, SUMMARY, REPORT)
        ]
        is_known = self._source.page_builder.vocabulary.is_known
        return (None if store is None else store.newest, is_known, *size)

    def _read(self) -> str:
        facts = [one for one in self._source.facts() if one.step in self._steps]
        for one in facts:
            entry = self._rows.get(one.id)
            if entry is None or entry[0] != one or one.state == "open":
                (page,) = self._source.read_pages([one], decisions=None)
                self._rows[one.id] = (one, page.row, page.has_story)
        rows = [self._rows[one.id] for one in facts]
        places = {row.id: row.id for _, row, has_story in rows if has_story}
        own_rows = [row for _, row, _ in rows]
        index = build_index(self._source, own_rows, places, [], name=self.name, faults=FileFaults())
        return dump(index)


def build_app(runs: Sequence[LiveRun], *, token: str) -> "Starlette":
    """Return the application: the page, its tables, how a run stands, a story by its group.

    `run` in an address is the number of one of the runs, counted from 0.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    answer_text = partial(PlainTextResponse, headers=_HEADERS)
    answer_json = partial(Response, media_type="application/json")

    def guarded(answer: "Callable[[Request, LiveRun], Awaitable[Response]]") -> "Endpoint":
        async def endpoint(request: "Request") -> "Response":
            query = request.query_params
            if not secrets.compare_digest(query.get("token", "").encode(), token.encode()):
                return answer_text(
                    "this address lacks the access token printed at start", status_code=403
                )
            number = query.get("run", "0")
            if number not in map(str, range(len(runs))):
                return answer_text(f"there is no run {number} here", status_code=404)
            try:
                return await answer(request, runs[int(number)])
            except (ConfigError, StoreError) as error:
                return answer_text(str(error), status_code=503)

        return endpoint

    async def page(request: "Request", run: LiveRun) -> "Response":
        title = " and ".join(one.name for one in runs)
        head, tail = build_shell(title, runs=len(runs), is_served=True)
        begin = begin_script(len(runs), is_served=True)
        return HTMLResponse(f"{head}{begin}{tail}", headers=_HEADERS)

    async def index(request: "Request", run: LiveRun) -> "Response":
        text = await run_in_threadpool(run.index)
        headers = {**_HEADERS, "ETag": run.tag}
        if request.headers.get("If-None-Match") == run.tag:
            return Response(status_code=304, headers=headers)
        return answer_json(text, headers=headers)

    async def live(request: "Request", run: LiveRun) -> "Response":
        return answer_json(await run_in_threadpool(run.live), headers=_HEADERS)

    async def story(request: "Request", run: LiveRun) -> "Response":
        text = await run_in_threadpool(run.story, request.path_params["group"])
        if text is None:
            return answer_text("the tokens of this group are not available", status_code=404)
        return answer_json(text, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", guarded(page)),
            Route("/index", guarded(index)),
            Route("/live", guarded(live)),
            Route("/story/{group:int}", guarded(story)),
        ],
        # A page elsewhere may give its own name our address; it does not get past its own name.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost", "testserver"]),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1),
        ],
    )


def serve(
    folders: Sequence[Path], *, steps: StepRange, port: int, announce: Callable[[str], None]
) -> None:
    """Serve runs until the process is interrupted; `announce` hears the address.

    Raises `ConfigError` if the port is taken.
    """
    import uvicorn

    token = secrets.token_urlsafe(24)
    with ExitStack() as opened, socket.socket() as listening:
        sources = [opened.enter_context(RunReader(folder)) for folder in folders]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be opened: {error.strerror}; choose another with "
                "--port, or 0 for any"
            ) from error
        listening.listen()  # before it is announced: nobody else can have the port any more
        names = name_runs(sources)
        lives = [
            LiveRun(source, steps=steps, name=name)
            for source, name in zip(sources, names, strict=True)
        ]
        app = build_app(lives, token=token)
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        announce(f"http://{HOST}:{listening.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])

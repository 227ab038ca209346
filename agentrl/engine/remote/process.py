"""An engine in a process of its own, replaced when it dies; and several of them as one.

The process is given one end of a socket pair and serves whoever has the other: it ends by itself as
soon as that is gone, however its owner ended.
"""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import agentrl
from agentrl.closing import Closing
from agentrl.engine.recipe import EngineRecipe
from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.remote.shared_weights import SharedWeights, path_of, shared
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores
from agentrl.rollout.gate.routing import Router
from agentrl.thread import in_thread

STOP_S = 15.0
"""How long a process has to release its engine before it is killed."""
END_S = 5.0
"""How long one has to end whose engine could not be had."""
LOG_BYTES = 4_000
"""Of what a process has written, shown when it fails."""


class EngineProcess:
    """One process that serves one engine to us. Owned by a `ProcessEngine`."""

    def __init__(
        self, process: asyncio.subprocess.Process, engine: RemoteEngine, log: IO[bytes]
    ) -> None:
        self._process = process
        self._log = log
        self.engine = engine

    @classmethod
    async def start(
        cls, recipe: EngineRecipe, *, python: str, start_s: float, silence_s: float
    ) -> "EngineProcess":
        """Start a process and wait until its engine is ready.

        Raises `ConfigError` where the interpreter or the engine cannot be had, with what it said,
        and `EngineError` when it is not ready in time.
        """
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with ours, theirs, contextlib.ExitStack() as failed:
            failed.callback(log.close)
            process = await _spawn(python, recipe, theirs, log)
            theirs.close()
            try:
                reader, writer = await asyncio.open_unix_connection(sock=ours.dup())
                engine = await RemoteEngine.over(
                    reader,
                    writer,
                    name=f"the engine in process {process.pid}",
                    start_s=start_s,
                    silence_s=silence_s,
                )
            except EngineError as error:
                await _stop(process, within_s=END_S)
                said = _tail(log)
                if process.returncode == CONFIG_ERROR:
                    raise ConfigError(said.rpartition(CONFIG_MARK)[2]) from error
                raise EngineError(f"{error}; it wrote: {said}") from error
            except BaseException:
                await _stop(process, within_s=0)
                raise
            failed.pop_all()
        return cls(process, engine, log)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Return whether it can be asked."""
        return self.engine.is_open and self._process.returncode is None

    async def close(self) -> None:
        """End the engine's requests as aborted, then the process."""
        await self.engine.close()
        await _stop(self._process, within_s=STOP_S)
        self._log.close()

    @property
    def said(self) -> str:
        """Return the end of what it has written."""
        return _tail(self._log)


class ProcessEngine(Closing):
    """An engine in a process of its own. All calls belong to one event loop at a time.

    A process that dies fails what it was doing, as an engine's failure, and the next call waits for
    its replacement, which gets the newest weights. One that dies `max_restarts` times is not
    replaced any more.
    """

    def __init__(
        self,
        recipe: EngineRecipe,
        *,
        python: str = sys.executable,
        start_s: float = 600.0,
        silence_s: float = 60.0,
        max_restarts: int = 10,
    ) -> None:
        """Nothing is started before the first call, or `async with`."""
        self._recipe = recipe
        self._python = python
        self._start_s = start_s
        self._silence_s = silence_s
        self._restarts_left = max_restarts
        self._process: EngineProcess | None = None
        self._starting: asyncio.Task[EngineProcess] | None = None
        self._weights: Path | SharedWeights | None = None
        self._version = 0
        self._paused = False
        self._open = True

    @property
    def version(self) -> int:
        """Version of the weights loaded last."""
        return self._version

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None while there is none."""
        return None if self._process is None else self._process.pid

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn; see `RemoteEngine.generate`."""
        return await (await self._ready()).generate(request)

    async def score(self, request: ScoreRequest) -> Scores:
        """Return what the weights say of tokens; see `RemoteEngine.score`."""
        return await (await self._ready()).score(request)

    async def abort(self, request_id: str) -> None:
        """End a request now: its `generate` returns what it has, `finish="aborted"`."""
        if (process := self._process) is not None and process.is_open:
            with contextlib.suppress(EngineError):  # it died, and the request with it
                await process.engine.abort(request_id)

    async def pause(self) -> None:
        """End every request in flight as aborted and hold new ones back until `resume`."""
        self._paused = True
        if (process := self._process) is not None and process.is_open:
            with contextlib.suppress(EngineError):  # its replacement begins paused
                await process.engine.pause()

    async def resume(self) -> None:
        """Take requests again."""
        self._paused = False
        if (process := self._process) is not None and process.is_open:
            with contextlib.suppress(EngineError):
                await process.engine.resume()

    async def load(self, weights: "Weights | SharedWeights", version: int) -> None:
        """Take new weights: a state dict, which is copied, or a folder of safetensors, which must
        stay: a replacement loads them too. A process that dies over it is replaced, and they are
        loaded there.

        Weights of another model raise `ValueError` and change nothing.
        """
        before = (self._weights, self._version)
        engine = await self._ready()
        given = await in_thread(shared, weights)
        # From here on a replacement begins with the new ones.
        self._weights, self._version = given, version
        try:
            await engine.load(path_of(given), version)
        except EngineError:
            if engine.is_open:
                self._weights, self._version = before
                raise
            await self._ready()
        except BaseException:
            self._weights, self._version = before
            raise

    async def close(self) -> None:
        """End every request as aborted, and the process. Idempotent."""
        self._open = False
        if (starting := self._starting) is not None and not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        if (process := self._process) is not None:
            self._process = None
            await process.close()
        self._weights = None

    async def __aenter__(self) -> "ProcessEngine":
        try:
            await self._ready()
        except BaseException:
            await self.close()
            raise
        return self

    # --- the process ------------------------------------------------------------------------------

    async def _ready(self) -> RemoteEngine:
        """Return the engine of a process that lives, starting one where there is none."""
        if not self._open:
            raise EngineError("the engine is closed; make a new one")
        if self._process is not None and self._process.is_open:
            return self._process.engine
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name="agentrl-engine-start")
        # Who waits may be cancelled; the others still need the process.
        process = await asyncio.shield(self._starting)
        return process.engine

    async def _start(self) -> EngineProcess:
        if self._process is not None:
            if self._restarts_left == 0:
                raise EngineError(
                    f"the engine's process {self._process.pid} has died, as those before it, and "
                    "is not replaced any more (engine.max_restarts); look at what ends it, memory "
                    f"perhaps. It wrote: {self._process.said}"
                )
            self._restarts_left -= 1
            dead, self._process = self._process, None
            await dead.close()
        process = await EngineProcess.start(
            self._recipe, python=self._python, start_s=self._start_s, silence_s=self._silence_s
        )
        try:
            if self._weights is not None:
                await process.engine.load(path_of(self._weights), self._version)
            if self._paused:
                await process.engine.pause()
        except BaseException:
            await process.close()
            raise
        self._process = process
        return process


class Replicas(Router, Closing):
    """Several engines in processes of their own, as one: a `Router` that copies weights once."""

    def __init__(self, engines: list[ProcessEngine]) -> None:
        """Take at least one engine, which this owns."""
        super().__init__(engines)
        self._processes = engines

    async def load(self, weights: Any, version: int) -> None:
        """Load every engine; their caches are gone, and trajectories find new homes."""
        await super().load(await in_thread(shared, weights), version)

    async def __aenter__(self) -> "Replicas":
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self._processes:
                    group.create_task(engine.__aenter__())
        except* (EngineError, ConfigError) as errors:
            await self.close()
            raise errors.exceptions[0] from None
        return self


CONFIG_ERROR = 78
"""How a process ends that cannot make its engine for a reason of configuration (`EX_CONFIG`)."""
CONFIG_MARK = "agentrl.ConfigError: "
"""What it writes before the reason."""


async def _spawn(
    python: str, recipe: EngineRecipe, end: socket.socket, log: IO[bytes]
) -> asyncio.subprocess.Process:
    command = (python, "-m", "agentrl.engine.remote", str(end.fileno()), recipe.to_json())
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[end.fileno()],
        )
    except OSError as error:
        raise ConfigError(
            f"the engine's interpreter {python} cannot be started: {error}; name another one as "
            "engine.python"
        ) from error


def _environment() -> dict[str, str]:
    """Return ours, in which any interpreter finds this very agentrl."""
    roots = [str(Path(agentrl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}


async def _stop(process: asyncio.subprocess.Process, *, within_s: float) -> None:
    """Wait for the end of a process that was told, then kill it."""
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode(errors="replace").strip() or "nothing"

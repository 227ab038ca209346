"""An engine that is replaced when it dies, wherever it is; and several of them as one."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.remote.shared_weights import SharedWeights, share_weights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.remote.weight_check import VersionedWeights, load_checked
from agentrl.engine.replicas import ReplicatedEngine
from agentrl.engine.weights import Weights
from agentrl.errors import EngineError, EngineLost
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores, ScoringEngine
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.threads import run_in_thread


@runtime_checkable
class EngineBackend(Protocol):
    """Server of one engine: a process here, an actor elsewhere."""

    @property
    def name(self) -> str:
        """Name of the server in errors."""
        ...

    @property
    def engine(self) -> ScoringEngine:
        """Return the engine, as it is seen from here."""
        ...

    @property
    def is_open(self) -> bool:
        """Return whether it can be asked."""
        ...

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        """Have the engine take weights; raises as `RemoteEngine.load` does."""
        ...

    async def read_output(self) -> str:
        """Return the end of what it has written, also when it is dead."""
        ...

    async def close(self) -> None:
        """End the engine's requests as aborted, then what serves it."""
        ...


class EngineReplica(ClosingResource):
    """An engine served by something that may die. All calls belong to one event loop at a time.

    A death fails what was being done, as an engine's failure, and the next call waits for the
    replacement, which gets the newest weights. After `max_restarts` deaths there is none any more.
    """

    def __init__(self, *, max_restarts: int) -> None:
        self._restarts_left = max_restarts
        self._served: EngineBackend | None = None
        self._starting: asyncio.Task[EngineBackend] | None = None
        self._held: VersionedWeights | None = None
        self._condemned: EngineBackend | None = None
        """Server that lives and is not to be asked any more."""
        self._went_back = 0
        self._paused = False
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """Requests that wait for a replacement, by their ids."""
        self._open = True
        self.spreader: WeightBroadcaster | None = None
        """Source of weights by broadcast; without one the engine reads them itself."""

    @abstractmethod
    async def start(self) -> EngineBackend:
        """Start what serves the engine, and wait until the engine is ready.

        Raises `ConfigError` where it cannot be had, `EngineError` when it is not ready in time,
        `EngineLost` when it dies meanwhile: then it is started again.
        """

    @property
    def version(self) -> int:
        """Version of the weights loaded last."""
        return 0 if self._held is None else self._held.version

    @property
    def went_back(self) -> int:
        """Number of times an engine has disproved new weights and been given the last good."""
        return self._went_back

    @property
    def served(self) -> EngineBackend | None:
        """Server of the engine, or None while there is none."""
        return self._served

    @property
    def reached(self) -> RemoteEngine | None:
        """Return the engine as it can be sent weights by broadcast now, or None."""
        engine = None if (served := self._alive()) is None else served.engine
        return engine if isinstance(engine, RemoteEngine) else None

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn; see `RemoteEngine.generate`. One that waits for a replacement when it
        is aborted, or the engine paused, ends then, with nothing."""
        if (served := await self._await_server(request.id)) is None:
            return Completion(token_ids=(), logprobs=(), versions=(), finish="aborted")
        return await served.engine.generate(request)

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens with the weights; see `RemoteEngine.score`. A request that waits for a
        replacement ends as in `generate`."""
        if (served := await self._await_server(request.id)) is None:
            return Scores(logprobs=(), version=self.version)
        return await served.engine.score(request)

    async def _await_server(self, request_id: str) -> EngineBackend | None:
        """Wait for a server for a request; return None where it is ended before there is one."""
        if (served := self._alive()) is not None:
            return served
        ended = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        ready = asyncio.ensure_future(self._ready())
        try:
            await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
            return ready.result() if ready.done() else None
        finally:
            self._waiting.pop(request_id, None)
            ready.cancel()

    async def abort(self, request_id: str) -> None:
        if (ended := self._waiting.get(request_id)) is not None and not ended.done():
            ended.set_result(None)
        if (served := self._alive()) is not None:
            with contextlib.suppress(EngineError):  # it died, and the request with it
                await served.engine.abort(request_id)

    async def pause(self) -> None:
        self._paused = True
        for ended in self._waiting.values():
            if not ended.done():
                ended.set_result(None)
        if (served := self._alive()) is not None:
            with contextlib.suppress(EngineError):  # its replacement begins paused
                await served.engine.pause()

    async def resume(self) -> None:
        self._paused = False
        if (served := self._alive()) is not None:
            with contextlib.suppress(EngineError):
                await served.engine.resume()

    async def load(self, weights: "Weights | SharedWeights", version: int) -> None:
        """Take new weights: a state dict, which is copied, or a folder of safetensors, which must
        stay: a replacement loads them too. Where the engine dies over it, its replacement loads
        them.

        Weights of another model raise `ValueError` and change nothing. Those that have a proof
        (`CheckedWeights`) are proven, see `load_checked`. An engine that cannot take them, or prove
        them, is replaced, and when the replacement cannot either, `EngineError`
        (`WeightsUnproven`) is raised, and the next one begins with the last good weights. Nothing
        is proven while paused: nothing would be scored.
        """
        served = await self._ready()
        new = VersionedWeights(await run_in_thread(share_weights, weights), version)
        # From here on a replacement begins with the new ones; one that is there by now has not.
        good, self._held = self._held, new
        served = self._alive() or served
        try:
            await self._take(served, new, good)
        except BaseException:
            self._held = good
            raise

    async def _take(
        self, served: EngineBackend, new: VersionedWeights, good: VersionedWeights | None
    ) -> None:
        """Have the engine take weights, or its replacement if it dies over it or is given up."""
        try:
            await self._give(served, new, good, is_paused=self._paused)
        except EngineError:
            if served.is_open:
                # It lives and cannot take them; perhaps the next one can.
                self._condemned = served
                if self._restarts_left == 0:
                    raise
        else:
            return
        await self._ready()

    async def _give(
        self,
        served: EngineBackend,
        new: VersionedWeights,
        good: VersionedWeights | None,
        *,
        is_paused: bool,
    ) -> None:
        engine, spreader = served.engine, self.spreader
        load = served.load
        if spreader is not None and isinstance(engine, RemoteEngine):
            load = partial(spreader.load, engine)
        if is_paused:
            await load(new.weights, new.version)
        else:
            name, went_back = served.name, self._count
            await load_checked(engine, load, new, good, name=name, went_back=went_back)

    def _count(self) -> None:
        self._went_back += 1

    async def close(self) -> None:
        """End every request as aborted, and what serves the engine. Idempotent."""
        self._open = False
        if (starting := self._starting) is not None and not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        if (served := self._served) is not None:
            self._served = None
            await served.close()
        self._held = None

    async def __aenter__(self) -> Self:
        try:
            await self._ready()
        except BaseException:
            await self.close()
            raise
        return self

    # --- replacement ------------------------------------------------------------------------------

    def _alive(self) -> EngineBackend | None:
        served = self._served
        return served if served is not None and served.is_open and not self._is_given_up() else None

    def _is_given_up(self) -> bool:
        return self._served is not None and self._served is self._condemned

    async def _ready(self) -> EngineBackend:
        if not self._open:
            raise EngineError("the engine is closed; create a new one")
        if (served := self._alive()) is not None:
            return served
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name="agentrl-engine-start")
        # Who waits may be cancelled; the others still need the engine.
        return await asyncio.shield(self._starting)

    async def _start(self) -> EngineBackend:
        if self._served is not None:
            if self._restarts_left == 0:
                ended = "failed to load its weights" if self._is_given_up() else "died"
                raise EngineError(
                    f"the engine's {self._served.name} has {ended} and is not restarted any more "
                    "(engine.max_restarts); check why, for example a lack of memory. Its output: "
                    f"{await self._served.read_output()}"
                )
            self._restarts_left -= 1
            dead, self._served, self._condemned = self._served, None, None
            await dead.close()
        while True:
            try:
                self._served = await self._start_served()
            except EngineLost:
                # It died while it started, which is a death like any other.
                if self._restarts_left == 0:
                    raise
                self._restarts_left -= 1
            else:
                return self._served

    async def _start_served(self) -> EngineBackend:
        served = await self.start()
        weights, is_paused = None, False
        try:
            # Until it is served nobody can tell it anything: what is wanted may change meanwhile.
            while weights is not self._held or is_paused is not self._paused:
                if self._held is not None and weights is not self._held:
                    weights = self._held
                    await self._give(served, weights, None, is_paused=is_paused)
                else:
                    weights, is_paused = self._held, self._paused
                    await (served.engine.pause() if is_paused else served.engine.resume())
        except BaseException:
            await served.close()
            raise
        return served


class EngineReplicas(ReplicatedEngine[EngineReplica]):
    """Several engines that are replaced when they die, as one; weights are copied once."""

    def __init__(
        self, engines: Sequence[EngineReplica], spreader: WeightBroadcaster | None = None
    ) -> None:
        super().__init__(engines)
        self._spreader = spreader
        for engine in self._several:
            engine.spreader = spreader

    async def load(self, weights: Any, version: int) -> None:
        await super().load(await self.prepare(weights), version)

    async def prepare(self, weights: Any) -> Any:
        """Return a copy of the weights, which all engines are given, or have when it returns: by
        broadcast they come to all at once, and wait there to be loaded."""
        if self._spreader is None or not isinstance(weights, Mapping):
            return await run_in_thread(share_weights, weights)
        reached = [engine.reached for engine in self._several]
        state_dict: Mapping[str, Tensor] = weights
        return await self._spreader.spread(state_dict, [engine for engine in reached if engine])

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._spreader is not None:
                await self._spreader.close()

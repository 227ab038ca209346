"""An engine on the other side of a socket, as a policy engine here.

Every call ends: with its answer, or with `EngineLost` when the connection ends or has been silent
for `silence_s`. What a request has sampled when that happens is lost with the engine; the episode
still has the turns before.
"""

import asyncio
import contextlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from agentrl.engine.remote.frames import (
    PROTOCOL,
    EngineFrame,
    FrameStreamClosed,
    proof,
    read_frame,
    read_greeting,
    write_frame,
)
from agentrl.engine.remote.wire import (
    read_completion,
    read_scores,
    request_frame,
    score_frame,
)
from agentrl.engine.request_checks import check_id
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.threads import run_in_thread
from agentrl.weight_sync.adapters import find_adapters, pack_adapters
from agentrl.weight_sync.safetensors import write_safetensors
from agentrl.weight_sync.transfer_group import GroupRendezvous

PIECE_BYTES = 2**24
"""Bytes of weights in one frame. Ten seconds of a slow network."""
LOOPBACK = "127.0.0.1"
CLOSE_S = 10.0
"""Seconds that a server has to end requests in flight."""


async def connect(
    address: str, *, key: bytes, start_s: float = 60.0, silence_s: float = 60.0
) -> "RemoteEngine":
    """Return the engine that listens at `host:port`.

    Raises `ConfigError` for an address or a key that is wrong, `EngineError` where nobody answers.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"an engine address has the form host:port, got {address!r}")
    try:
        async with asyncio.timeout(start_s):
            reader, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError) as error:
        raise EngineError(
            f"no engine answers at {address} ({error!r}); check that it is started"
        ) from error
    return await RemoteEngine.over(
        reader,
        writer,
        key=key,
        name=f"the engine at {address}",
        start_s=start_s,
        silence_s=silence_s,
    )


class RemoteEngine(ClosingResource):
    """One connection to an `EngineServer`. All calls belong to one event loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        name: str,
        version: int,
        base: str | None,
        scores: bool,
        silence_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._name = name
        self._version = version
        self._base = base
        self._scores = scores
        self._silence_s = silence_s
        self._numbers = count(1)
        self._calls: dict[int, asyncio.Future[EngineFrame]] = {}
        self._ids: dict[str, int] = {}
        self._heard_s = asyncio.get_running_loop().time()
        self._broken: str | None = None
        self._kind: type[EngineError] = EngineError
        """Error that requests fail with: lost, unless we have closed it."""
        self._closing = False
        self._tasks = (
            asyncio.create_task(self._listen(), name="agentrl-engine-answers"),
            asyncio.create_task(self._watch(), name="agentrl-engine-pings"),
        )

    @classmethod
    async def over(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        key: bytes = b"",
        name: str = "the engine",
        start_s: float,
        silence_s: float = 60.0,
    ) -> "RemoteEngine":
        """Meet the server at the other end; one that still loads its model says nothing so long.

        Raises `EngineError` when it is gone or late, `ConfigError` when it refuses the key or
        speaks another protocol.
        """
        try:
            async with asyncio.timeout(start_s):
                hello = await read_greeting(reader)
                if hello.head.get("hello") != PROTOCOL:
                    raise ConfigError(
                        f"{name} speaks protocol {hello.head.get('hello')!r}, but this agentrl "
                        f"speaks {PROTOCOL}; use the same version on both sides"
                    )
                write_frame(writer, EngineFrame({"proof": proof(key, hello.head["nonce"])}))
                ready = await read_greeting(reader)
        except TimeoutError as error:
            writer.close()
            raise EngineError(
                f"{name} was not ready within {start_s:g} s; raise engine.start_s if loading its "
                "model takes longer"
            ) from error
        except (FrameStreamClosed, ConfigError, OSError) as error:
            writer.close()
            if isinstance(error, ConfigError):
                raise
            raise EngineError(f"{name} is gone: {error}") from error
        if why := ready.head.get("refused"):
            writer.close()
            raise ConfigError(f"{name} refused the connection: {why}")
        return cls(
            reader,
            writer,
            name=name,
            version=ready.head["version"],
            base=ready.head.get("base"),
            scores=ready.head["scores"],
            silence_s=silence_s,
        )

    @property
    def version(self) -> int:
        """Version of the weights that were loaded when the engine last said something."""
        return self._version

    @property
    def base(self) -> str | None:
        """Return the id of the base that the server had when it last said something."""
        return self._base

    @property
    def is_open(self) -> bool:
        """Return whether it can be asked."""
        return self._broken is None and not self._closing

    @property
    def ends(self) -> tuple[str, str]:
        """Return the addresses of our machine and of its, as the connection has them."""
        names = (self._writer.get_extra_info(key) for key in ("sockname", "peername"))
        # A socket pair's ends have no address.
        here, there = (name[0] if isinstance(name, tuple) else LOOPBACK for name in names)
        return str(here), str(there)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn. Cancelling the caller frees the request and returns nothing.

        Raises `ValueError` for a request that cannot be served, `EngineError` when the engine is
        closed, broken or out of reach.
        """
        return read_completion(await self._ask_named(request.id, request_frame(request)))

    async def score(self, request: ScoreRequest) -> Scores:
        """Score tokens with the weights.

        Raises as `generate` does, and `ConfigError` for an engine that cannot score.
        """
        return read_scores(await self._ask_named(request.id, score_frame(request)))

    async def abort(self, request_id: str) -> None:
        if (number := self._ids.get(request_id)) is not None and self.is_open:
            await self._call("abort", of=number)

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def load(self, weights: Weights, version: int) -> None:
        """Take new weights: a file or folder of safetensors by its path, as the server sees it, or
        a state dict, which is sent; of one with adapters, the base is sent the first time only.

        Requests in flight go on, and their next tokens carry the new version.
        """
        if not isinstance(weights, Mapping):
            await self._call("load", path=_absolute(weights), to=version)
            return
        adapted = find_adapters(weights)
        if adapted is not None and adapted.base.id != self._base:
            await self._send_all(adapted.base.weights, "lay", base=adapted.base.id)
        tensors, metadata = (weights, {}) if adapted is None else pack_adapters(adapted)
        await self._send_all(tensors, "load", said=metadata, to=version)

    async def send(self, file: Path, version: int) -> None:
        """Take new weights: a file of safetensors here, which is sent piece by piece."""
        await self._send_file(file, "load", to=version)

    async def lay(self, file: Path, base: str) -> None:
        """Keep a base for the adapters that come: a file of safetensors, as the server sees it."""
        await self._call("lay", path=_absolute(file), base=base)

    async def send_base(self, file: Path, base: str) -> None:
        """Do what `lay` does, with a file that is here."""
        await self._send_file(file, "lay", base=base)

    async def receive(
        self, meeting: GroupRendezvous, *, size_bytes: int, bucket_bytes: int, keeps: bool
    ) -> None:
        """Have it receive a row of bytes in a group of processes, and hold it until it is loaded,
        or the next comes; it `keeps` the group or leaves it.

        Raises `EngineError` when the group is broken.
        """
        await self._call(
            "receive",
            meeting=asdict(meeting),
            size_bytes=size_bytes,
            bucket_bytes=bucket_bytes,
            keeps=keeps,
        )

    async def load_received(self, name: str, version: int) -> None:
        """Take as new weights what came in the group of that name."""
        await self._call("load", received=name, to=version)

    async def ping(self) -> None:
        """Return as soon as it has said something. Raises `EngineLost` when it is gone."""
        await self._call("ping")

    async def close(self) -> None:
        """End every request as aborted and let the server go. Idempotent."""
        if self._closing:
            return
        if self._broken is None and self._ids:
            for number in self._ids.values():
                write_frame(
                    self._writer,
                    EngineFrame({"call": "abort", "n": next(self._numbers), "of": number}),
                )
            waiting = [self._calls[number] for number in self._ids.values()]
            self._closing = True
            _, silent = await asyncio.wait(waiting, timeout=CLOSE_S)
            for answer in silent:
                answer.set_exception(EngineLost(f"{self._name} was closed before it answered"))
        self._closing = True
        self._fail(f"{self._name} was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    # --- calls ------------------------------------------------------------------------------------

    async def _ask_named(self, id: str, frame: EngineFrame) -> EngineFrame:
        check_id(id, self._ids)
        self._ids[id] = next(self._numbers)
        try:
            return await self._ask(self._ids[id], frame)
        finally:
            self._ids.pop(id, None)

    async def _send_all(
        self,
        weights: Mapping[str, Tensor],
        call: str,
        *,
        said: Mapping[str, str] | None = None,
        **head: Any,
    ) -> None:
        data = memoryview(await run_in_thread(to_safetensors, weights, said))
        await self._send(lambda at: bytes(data[at : at + PIECE_BYTES]), len(data), call, head)

    async def _send_file(self, file: Path, call: str, **head: Any) -> None:
        with file.open("rb") as opened:

            def read(at: int) -> bytes:
                opened.seek(at)
                return opened.read(PIECE_BYTES)

            await self._send(read, opened.seek(0, os.SEEK_END), call, head)

    async def _send(
        self, read: Callable[[int], bytes], size: int, call: str, head: dict[str, Any]
    ) -> None:
        """Send `size` bytes, each piece after the last has arrived, then the call they are for: an
        engine that takes minutes to be sent its weights is heard of all the while."""
        for at in range(0, size, PIECE_BYTES):
            piece = {"call": "piece", "at": at, "of": size}
            await self._ask(next(self._numbers), EngineFrame(piece, await run_in_thread(read, at)))
        await self._call(call, path=None, **head)

    async def _call(self, call: str, **head: Any) -> None:
        await self._ask(next(self._numbers), EngineFrame({"call": call, **head}))

    async def _ask(self, number: int, frame: EngineFrame) -> EngineFrame:
        if not self.is_open:
            raise self._kind(self._broken or f"{self._name} is closed; create a new one")
        answer: asyncio.Future[EngineFrame] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            write_frame(self._writer, EngineFrame({**frame.head, "n": number}, frame.body))
            await self._drain()
            return _raise_error(await answer)
        except asyncio.CancelledError:
            if self.is_open:
                write_frame(self._writer, EngineFrame({"call": "cancel", "n": number}))
            raise
        finally:
            self._calls.pop(number, None)

    async def _drain(self) -> None:
        # A server that reads nothing any more is found by `_watch`, which ends the connection.
        try:
            await self._writer.drain()
        except OSError as error:
            self._break(f"{self._name} is gone ({error})")

    async def _listen(self) -> None:
        try:
            while True:
                frame = await read_frame(self._reader)
                self._heard_s = asyncio.get_running_loop().time()
                self._version = frame.head.get("version", self._version)
                self._base = frame.head.get("base", self._base)
                waiting = self._calls.get(frame.head.get("n", -1))
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
        except FrameStreamClosed as error:
            self._break(f"{self._name} is gone: {error}")

    async def _watch(self) -> None:
        """Say something often enough, and notice when nothing comes back."""
        loop = asyncio.get_running_loop()
        period_s = self._silence_s / 6
        while self._broken is None:
            silent_s = loop.time() - self._heard_s
            if silent_s > self._silence_s:
                self._break(f"{self._name} sent nothing for {silent_s:.0f} s")
                return
            write_frame(self._writer, EngineFrame({"call": "ping", "n": next(self._numbers)}))
            await asyncio.sleep(period_s)

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._kind = EngineLost
        self._fail(why)
        self._writer.transport.abort()

    def _fail(self, why: str) -> None:
        if self._broken is None:
            self._broken = f"{why}; create a new one"
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self._kind(why))


def to_safetensors(weights: Mapping[str, Tensor], said: Mapping[str, str] | None = None) -> bytes:
    """Return a state dict as the bytes of a safetensors file; see `write_safetensors`."""
    file = io.BytesIO()
    write_safetensors(file, weights, said=said)
    return file.getvalue()


def _absolute(path: "str | os.PathLike[str]") -> str:
    return os.path.abspath(path)


def _raise_error(answer: EngineFrame) -> EngineFrame:
    text = answer.head.get("text", "")
    match answer.head.get("error"):
        case None:
            return answer
        case "value":
            raise ValueError(text)
        case "config":
            raise ConfigError(text)
        case _:
            raise EngineError(text)

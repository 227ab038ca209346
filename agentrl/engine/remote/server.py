"""Any policy engine, behind a socket. Everything runs on the loop that the engine runs on.

    who waits          for what                        until
    -----------------  ------------------------------  --------------------------------------------
    a newcomer         the proof that it has the key   `HELLO_S`, and it is turned away
    a connection       its next frame                  `silence_s`, and it is taken for dead
    a connection       its client to read answers      `silence_s`, and it is taken for dead
    a request          the engine                      its own end, or that of its connection

Requests of a connection that ended are cancelled: nobody is left to read what they sample.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.engine.remote.frames import (
    PROTOCOL,
    EngineFrame,
    FrameStreamClosed,
    is_proof,
    new_nonce,
    read_frame,
    read_greeting,
    write_frame,
)
from agentrl.engine.remote.weight_receiver import ReceivedWeights, WeightReceiver
from agentrl.engine.remote.wire import (
    completion_frame,
    read_request,
    read_score,
    scores_frame,
)
from agentrl.engine.spec import EngineSpec
from agentrl.engine.weights import Weights, read_weights
from agentrl.errors import ConfigError, EngineError, RolloutError
from agentrl.policy import PolicyEngine, ScoringEngine
from agentrl.runtime.closing import ClosingResource
from agentrl.runtime.threads import run_in_thread
from agentrl.weight_sync.adapters import MARK, AdapterWeights, BaseWeights, unpack_adapters
from agentrl.weight_sync.safetensors import header_of
from agentrl.weight_sync.shared_memory import SharedMemoryFile
from agentrl.weight_sync.transfer_group import GroupRendezvous

HELLO_S = 30.0
SILENCE_S = 60.0
ERROR_CHARACTERS = 4_000
"""Characters of an error text; an answer's head has limits."""


class EngineServer(ClosingResource):
    """Serves one engine, which it does not own, to any number of clients.

    They share it: pausing and loading it is for all of them, so one run should use it at a time.
    A client that goes takes its pause with it.
    """

    def __init__(
        self, engine: PolicyEngine, *, key: bytes = b"", silence_s: float = SILENCE_S
    ) -> None:
        self.engine = engine
        self.key = key
        self.silence_s = silence_s
        self._numbers = count(1)
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Pauses, loads and resumes are done in the order in which they were asked for.
        self.turn = asyncio.Lock()
        self.base: BaseWeights | None = None
        """Base that adapters are added to, if any are sent; it stays when a client goes."""
        self.pausing: set[int] = set()
        self.receiver = WeightReceiver()

    async def listen(self, host: str, port: int) -> int:
        """Take connections from now on, and return the port (which a `port` of 0 leaves open)."""
        self._server = await asyncio.start_server(self._welcome, host, port)
        return self._server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it is gone."""
        connection = _Connection(self, next(self._numbers), reader, writer)
        try:
            await connection.run()
        except FrameStreamClosed:
            pass
        finally:
            await connection.close()

    async def close(self) -> None:
        """Let every client go. The engine stays open. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        if self._server is not None:
            await self._server.wait_closed()
        self.receiver.close()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer), name="agentrl-engine-client")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)


class _Connection:
    """One client. Its calls are numbered by itself; every one but `cancel` is answered."""

    def __init__(
        self,
        server: EngineServer,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._engine = server.engine
        self._number = number
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._pieces = bytearray()
        """Weights, as far as they have come."""
        self._received: ReceivedWeights | None = None
        self._names: dict[int, str] = {}
        self._do: dict[str, Callable[[EngineFrame], Awaitable[EngineFrame]]] = {
            "generate": self._generate,
            "score": self._score,
            "abort": self._abort,
            "pause": self._pause,
            "resume": self._resume,
            "piece": self._piece,
            "lay": self._lay,
            "receive": self._receive,
            "load": self._load,
            "ping": self._ping,
        }

    async def run(self) -> None:
        await self._greet()
        while True:
            frame = await self._read(self._server.silence_s)
            call, number = frame.head.get("call"), frame.head.get("n")
            if not isinstance(number, int) or (call != "cancel" and number in self._calls):
                raise FrameStreamClosed(f"a call has number {number!r}")
            if call == "cancel":
                if (task := self._calls.get(number)) is not None:
                    task.cancel()
            elif isinstance(call, str) and call in self._do:
                task = asyncio.create_task(self._answer(number, self._do[call], frame))
                self._calls[number] = task
            else:
                raise FrameStreamClosed(f"there is no call {call!r}")

    async def close(self) -> None:
        calls = list(self._calls.values())
        for task in calls:
            task.cancel()
        if calls:
            await asyncio.wait(calls)
        await self._let_go()
        self._writer.close()
        # Closing waits for what is written to be read, and a dead client reads nothing.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    async def _let_go(self) -> None:
        """End the pause that the client leaves behind: nobody else would."""
        server = self._server
        async with server.turn:
            if server.pausing == {self._number}:
                with contextlib.suppress(EngineError):  # one that is broken serves nobody anyway
                    await self._engine.resume()
            server.pausing.discard(self._number)

    async def _greet(self) -> None:
        nonce = new_nonce()
        write_frame(self._writer, EngineFrame({"hello": PROTOCOL, "nonce": nonce}))
        greeting = await self._read(HELLO_S, read_greeting)
        if not is_proof(greeting.head.get("proof"), self._server.key, nonce):
            write_frame(self._writer, EngineFrame({"refused": "the key does not match"}))
            raise FrameStreamClosed("a client without the key")
        scores = isinstance(self._engine, ScoringEngine)
        write_frame(self._writer, EngineFrame({"scores": scores, **self._state()}))

    async def _read(
        self,
        within_s: float,
        read: Callable[[asyncio.StreamReader], Awaitable[EngineFrame]] = read_frame,
    ) -> EngineFrame:
        try:
            async with asyncio.timeout(within_s):
                return await read(self._reader)
        except TimeoutError as error:
            raise FrameStreamClosed(f"nothing was received within {within_s:g} s") from error

    async def _answer(
        self, number: int, do: Callable[[EngineFrame], Awaitable[EngineFrame]], frame: EngineFrame
    ) -> None:
        """Do what was asked and say how it ended: an engine's failure is the caller's to see."""
        try:
            answer = await do(frame)
        except Exception as error:  # noqa: BLE001 - attributed there, where it is raised again
            answer = EngineFrame({"error": _kind(error), "text": _text(error)})
        finally:
            self._calls.pop(number, None)
            self._names.pop(number, None)
        head = {**answer.head, "n": number, **self._state()}
        with contextlib.suppress(OSError, TimeoutError):
            write_frame(self._writer, EngineFrame(head, answer.body))
            async with asyncio.timeout(self._server.silence_s):
                await self._writer.drain()

    def _name(self, frame: EngineFrame) -> str:
        """Return a name for a request that no other client, and no later request, has."""
        number = frame.head["n"]
        self._names[number] = f"{frame.head['id']}#{self._number}.{number}"
        return self._names[number]

    async def _generate(self, frame: EngineFrame) -> EngineFrame:
        request = read_request(frame, self._name(frame))
        return completion_frame(await self._engine.generate(request))

    async def _score(self, frame: EngineFrame) -> EngineFrame:
        engine = self._engine
        if not isinstance(engine, ScoringEngine):
            raise ConfigError(f"{type(engine).__name__} cannot score tokens")
        return scores_frame(await engine.score(read_score(frame, self._name(frame))))

    async def _abort(self, frame: EngineFrame) -> EngineFrame:
        if (name := self._names.get(frame.head["of"])) is not None:
            await self._engine.abort(name)
        return EngineFrame({})

    async def _pause(self, frame: EngineFrame) -> EngineFrame:
        async with self._server.turn:
            self._server.pausing.add(self._number)
            await self._engine.pause()
        return EngineFrame({})

    async def _resume(self, frame: EngineFrame) -> EngineFrame:
        async with self._server.turn:
            self._server.pausing.clear()
            await self._engine.resume()
        return EngineFrame({})

    async def _piece(self, frame: EngineFrame) -> EngineFrame:
        at, size = frame.head["at"], frame.head["of"]
        if at == 0:
            self._pieces.clear()
        if at != len(self._pieces) or at + len(frame.body) > size:
            raise ValueError(
                f"{len(frame.body)} bytes of weights arrived for position {at} of {size}, but "
                f"{len(self._pieces)} are expected next; send them in order, from the first"
            )
        self._pieces += frame.body
        return EngineFrame({})

    async def _receive(self, frame: EngineFrame) -> EngineFrame:
        self._received = None  # before the next one is made room for
        self._received = await self._server.receiver.receive(
            GroupRendezvous(**frame.head["meeting"]),
            size_bytes=frame.head["size_bytes"],
            bucket_bytes=frame.head["bucket_bytes"],
            keeps=frame.head["keeps"],
        )
        return EngineFrame({})

    async def _lay(self, frame: EngineFrame) -> EngineFrame:
        source = self._take_source(frame)
        place = source.path if isinstance(source, SharedMemoryFile) else source
        weights = await run_in_thread(_read, place)
        async with self._server.turn:
            self._server.base = BaseWeights(weights, frame.head["base"])
        return EngineFrame({})

    async def _load(self, frame: EngineFrame) -> EngineFrame:
        source = self._take_source(frame)
        async with self._server.turn:
            place = source.path if isinstance(source, SharedMemoryFile) else source
            weights = await run_in_thread(_unpack_weights, self._server.base, place)
            await self._engine.load(weights, frame.head["to"])
            if not isinstance(weights, AdapterWeights):
                # Nobody sends adapters of it any more.
                self._server.base = None
        return EngineFrame({})

    def _take_source(self, frame: EngineFrame) -> Path | bytes | SharedMemoryFile:
        if (name := frame.head.get("received")) is not None:
            received, self._received = self._received, None
            if received is None or received.name != name:
                raise ValueError(f"no weights named {name!r} have arrived; send them first")
            return received.file
        if (path := frame.head["path"]) is not None:
            return Path(path)
        sent, self._pieces = bytes(self._pieces), bytearray()
        return sent

    def _state(self) -> dict[str, Any]:
        base = self._server.base
        return {"version": self._engine.version, "base": None if base is None else base.id}

    async def _ping(self, frame: EngineFrame) -> EngineFrame:
        return EngineFrame({})


def _read(given: Path | bytes) -> Mapping[str, Tensor]:
    if isinstance(given, Path):
        return read_weights(given)
    from safetensors.torch import load

    return load(given)


def _unpack_weights(base: BaseWeights | None, given: Path | bytes) -> Weights:
    """Return given weights in the form an engine takes; adapters with their base."""
    header = header_of(given)
    if MARK in header:
        return unpack_adapters(_read(given), header, base)
    return given if isinstance(given, Path) else _read(given)


def _kind(error: Exception) -> str:
    match error:
        case ConfigError():
            return "config"
        case RolloutError():
            return "engine"
        case ValueError() | FileNotFoundError() | PermissionError():
            # What a process keeps may be gone, or not to be read any more, as it ends.
            return "value"
        case _:
            return "engine"


def _text(error: Exception) -> str:
    is_expected = isinstance(error, ConfigError | EngineError | ValueError)
    text = str(error) if is_expected else f"{type(error).__name__}: {error}"
    return text[:ERROR_CHARACTERS]


def listening_place(text: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`; `ConfigError` for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ConfigError(f"--listen is {text!r}, expected HOST:PORT such as 127.0.0.1:7440")
    return host, int(port)


async def serve_until_told(
    recipe: EngineSpec,
    host: str,
    port: int,
    *,
    key: bytes,
    ready: Callable[[str], None],
) -> None:
    """Make the engine, listen, say where to `ready`, and end at SIGINT or SIGTERM.

    Raises `ConfigError` for an engine that cannot be had, or a place where nobody may listen.
    """
    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_event.set)
    torch.set_num_threads(recipe.threads)
    async with recipe.open() as engine, EngineServer(engine, key=key) as server:
        try:
            bound = await server.listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error}; choose another --listen"
            ) from error
        ready(f"{host}:{bound}")
        await stop_event.wait()

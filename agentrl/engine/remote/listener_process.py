"""A process with an engine that serves whoever comes over the network and has its key."""

import asyncio
import secrets
from typing import IO

from agentrl.engine.remote.frames import EngineFrame, FrameStreamClosed, read_greeting, write_frame
from agentrl.engine.remote.process import STOP_S, start_process, stop, tail
from agentrl.engine.spec import EngineSpec
from agentrl.errors import EngineError


class ListeningProcess:
    """One process, which ends with its owner. Owned by who starts it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        writer: asyncio.StreamWriter,
        log: IO[bytes],
        *,
        address: str,
        key: bytes,
    ) -> None:
        self._process = process
        self._writer = writer
        self._log = log
        self.address = address
        """Address at which it listens: host:port."""
        self.key = key

    @classmethod
    async def start(
        cls, recipe: EngineSpec, *, host: str, python: str, start_s: float
    ) -> "ListeningProcess":
        """Start a process and wait until its engine listens at a free port of `host`.

        Raises `ConfigError` where the interpreter or the engine cannot be had, with what it said,
        and `EngineError` when it is not ready in time.
        """
        key = secrets.token_bytes(32)
        async with start_process(python, recipe, host=host) as (process, reader, writer, log):
            write_frame(writer, EngineFrame({"key": key.hex()}))
            subject = f"the engine in process {process.pid}"
            try:
                async with asyncio.timeout(start_s):
                    port = (await read_greeting(reader)).head["port"]
            except TimeoutError as error:
                raise EngineError(f"{subject} was not ready within {start_s:g} s") from error
            except FrameStreamClosed as error:
                raise EngineError(f"{subject} is gone: {error}") from error
        return cls(process, writer, log, address=f"{host}:{port}", key=key)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def read_output(self) -> str:
        """Return the end of what it has written."""
        return tail(self._log)

    async def close(self) -> None:
        """Let the process end, which it does at once where nothing is asked of it."""
        self._writer.close()
        await stop(self._process, within_s=STOP_S)
        self._log.close()

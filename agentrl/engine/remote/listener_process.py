"""A process with an engine that serves whoever comes over the network and has its key."""

import asyncio
import contextlib
import secrets
import socket
import tempfile
from typing import IO

from agentrl.engine.remote.frames import EngineFrame, FrameStreamClosed, read_greeting, write_frame
from agentrl.engine.remote.process import STOP_S, explain_failure, spawn, stop, tail
from agentrl.engine.spec import EngineSpec


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
        ours, theirs = socket.socketpair()
        log, key = tempfile.TemporaryFile(), secrets.token_bytes(32)  # noqa: SIM115 - closed with the process
        with ours, theirs, contextlib.ExitStack() as failed:
            failed.callback(log.close)
            process = await spawn(python, recipe, theirs, log, host=host)
            theirs.close()
            try:
                reader, writer = await asyncio.open_unix_connection(sock=ours.dup())
                failed.callback(writer.close)
                write_frame(writer, EngineFrame({"key": key.hex()}))
                async with asyncio.timeout(start_s):
                    port = (await read_greeting(reader)).head["port"]
            except TimeoutError as error:
                why = f"the engine in process {process.pid} was not ready within {start_s:g} s"
                raise await explain_failure(process, log, why) from error
            except FrameStreamClosed as error:
                why = f"the engine in process {process.pid} is gone: {error}"
                raise await explain_failure(process, log, why) from error
            except BaseException:
                await stop(process, within_s=0)
                raise
            failed.pop_all()
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

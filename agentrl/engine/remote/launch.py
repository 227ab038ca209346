"""The process of an engine, started; who holds it needs neither torch nor the model.

The process is given one end of a socket pair and serves whoever has the other: it ends by itself as
soon as that is gone, however its owner ended.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import IO

import agentrl
from agentrl.engine.remote.frames import EngineFrame, FrameStreamClosed, read_greeting, write_frame
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.runtime.child_process import stop, tail
from agentrl.runtime.gpu_placement import VARIABLE

STOP_S = 15.0
"""Seconds that a process has to release its engine before it is killed."""
END_S = 5.0
"""Seconds that a process has to end whose engine could not be had."""


class ListeningProcess:
    """A process with an engine that serves whoever comes over the network and has its key.

    It ends with its owner, who starts it.
    """

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
                raise EngineError(
                    f"{subject} was not ready within {start_s:g} s; raise engine.start_s if "
                    "loading its model takes longer"
                ) from error
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


CONFIG_ERROR = 78
"""Exit status of a process that cannot make its engine due to configuration (`EX_CONFIG`)."""
CONFIG_MARK = "agentrl.ConfigError: "
"""Prefix of the reason in its output."""


@contextlib.asynccontextmanager
async def start_process(
    python: str, recipe: EngineSpec, *, host: str = ""
) -> AsyncGenerator[
    tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter, IO[bytes]]
]:
    """Start the process of an engine, and end it where the block fails; see `_spawn`.

    Yield it with a stream from and to it, and its log. An `EngineError` of the block is raised with
    the reason that the process gave.
    """
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    with ours, theirs, contextlib.ExitStack() as failed:
        failed.callback(log.close)
        process = await _spawn(python, recipe, theirs, log, host=host)
        theirs.close()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours.dup())
            failed.callback(writer.close)
            yield process, reader, writer, log
        except EngineError as error:
            raise await _explain_failure(process, log, str(error)) from error
        except BaseException:
            await stop(process, within_s=0)
            raise
        failed.pop_all()


async def _spawn(
    python: str, recipe: EngineSpec, end: socket.socket, log: IO[bytes], *, host: str = ""
) -> asyncio.subprocess.Process:
    """Start the process of an engine, which has `end` and writes into `log`.

    It serves who has the other end, or, with a `host`, whoever connects there with the key that
    it is told (`ListeningProcess`). Raises `ConfigError` where it cannot be started.
    """
    command = (python, "-m", "agentrl.engine.remote", str(end.fileno()), recipe.to_json(), host)
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            env=_environment(recipe.cuda_devices),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[end.fileno()],
        )
    except OSError as error:
        raise ConfigError(
            f"the engine's interpreter {python} cannot be started: {error}; set engine.python to "
            "another one"
        ) from error


def _environment(cuda_devices: str | None) -> dict[str, str]:
    """Return ours, in which any interpreter finds this very agentrl, and sees its devices only."""
    roots = [str(Path(agentrl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    devices = {} if cuda_devices is None else {VARIABLE: cuda_devices}
    return {**os.environ, **devices, "PYTHONPATH": os.pathsep.join(filter(None, roots))}


async def _explain_failure(
    process: asyncio.subprocess.Process, log: IO[bytes], why: str
) -> ConfigError | EngineError:
    """Return the reason why a process has no engine, when it has ended: its own, if it gave one.

    One that somebody else has killed is lost, and may be started again.
    """
    ended = await stop(process, within_s=END_S)
    output = tail(log)
    if process.returncode == CONFIG_ERROR:
        return ConfigError(output.rpartition(CONFIG_MARK)[2])
    if ended and process.returncode == -signal.SIGKILL:
        return EngineLost(f"{why}; it was killed, possibly for lack of memory")
    return EngineError(f"{why}; its output: {output}")

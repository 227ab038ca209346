"""An engine in a process of its own, and its replacement."""

import asyncio
import sys
from pathlib import Path
from typing import IO

from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.remote.launch import STOP_S, start_process
from agentrl.engine.remote.replicas import EngineReplica
from agentrl.engine.remote.shared_weights import SharedWeights, find_missing_base, path_of
from agentrl.engine.spec import EngineSpec
from agentrl.runtime.child_process import stop, tail


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
        cls, recipe: EngineSpec, *, python: str, start_s: float, silence_s: float
    ) -> "EngineProcess":
        """Start a process and wait until its engine is ready.

        Raises `ConfigError` where the interpreter or the engine cannot be had, with what it said,
        and `EngineError` when it is not ready in time.
        """
        async with start_process(python, recipe) as (process, reader, writer, log):
            engine = await RemoteEngine.over(
                reader,
                writer,
                name=f"the engine in process {process.pid}",
                start_s=start_s,
                silence_s=silence_s,
            )
        return cls(process, engine, log)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def name(self) -> str:
        return f"process {self.pid}"

    @property
    def is_open(self) -> bool:
        return self.engine.is_open and self._process.returncode is None

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        if (base := find_missing_base(weights, self.engine)) is not None:
            await self.engine.lay(base.path, base.id)
        await self.engine.load(path_of(weights), version)

    async def read_output(self) -> str:
        return tail(self._log)

    async def close(self) -> None:
        await self.engine.close()
        await stop(self._process, within_s=STOP_S)
        self._log.close()


class ProcessEngine(EngineReplica):
    """An engine in a process of its own, replaced when it dies; see `EngineReplica`."""

    def __init__(
        self,
        recipe: EngineSpec,
        *,
        python: str = sys.executable,
        start_s: float = 600.0,
        silence_s: float = 60.0,
        max_restarts: int = 10,
    ) -> None:
        super().__init__(max_restarts=max_restarts)
        self._recipe = recipe
        self._python = python
        self._start_s = start_s
        self._silence_s = silence_s

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None while there is none."""
        return self.served.pid if isinstance(self.served, EngineProcess) else None

    async def start(self) -> EngineProcess:
        return await EngineProcess.start(
            self._recipe, python=self._python, start_s=self._start_s, silence_s=self._silence_s
        )

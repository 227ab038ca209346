"""Actor of an engine: it holds the engine's process, and weights for its machine.

It knows nothing of Ray. Requests and answers do not come through it: who has the key talks to the
process itself. The process may have another interpreter, and ends with this one.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.cluster.env_worker import RemoteFailure
from agentrl.engine.remote.launch import ListeningProcess
from agentrl.engine.spec import EngineSpec
from agentrl.errors import ConfigError, EngineError

KEPT = 2
"""Generations of weights: a slow engine may still read the last one."""


@dataclass(frozen=True, slots=True)
class EngineAddressInfo:
    """Address, key and process of an engine that serves."""

    address: str
    key: bytes
    node: str
    pid: int


class EngineHost:
    """One engine, in a process beside this one."""

    def __init__(
        self,
        recipe: EngineSpec,
        where: Callable[[], tuple[str, str]],
        *,
        python: str | None,
        start_s: float,
    ) -> None:
        """`where` tells the address and the name of the machine; no `python` is this one's."""
        self._recipe = recipe
        self._where = where
        self._python = python or sys.executable
        self._start_s = start_s
        self._process: ListeningProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._kept: list[int] = []

    def lacks_folder(self) -> bool:
        """Return whether the model's folder is not on this machine."""
        return not Path(self._recipe.folder).is_dir()

    def unpack(self, files: Mapping[str, Any]) -> None:
        """Take the files of the model's folder: names, and arrays of bytes."""
        self._folder = tempfile.TemporaryDirectory(prefix="agentrl-policy-")
        for name, content in files.items():
            (Path(self._folder.name) / name).write_bytes(memoryview(content))
        self._recipe = replace(self._recipe, folder=self._folder.name)

    async def open(self) -> EngineAddressInfo | RemoteFailure:
        """Start the process, and wait until its engine listens."""
        host, node = self._where()
        try:
            process = await ListeningProcess.start(
                self._recipe, host=host, python=self._python, start_s=self._start_s
            )
        except (ConfigError, EngineError) as error:
            return RemoteFailure.from_error(error)
        finally:
            # It is read, and whoever kills this actor would leave it behind.
            self._forget_folder()
        self._process = process
        return EngineAddressInfo(process.address, process.key, node, process.pid)

    def keep(self, weights: Any) -> str:
        """Keep the bytes of a safetensors file for the engines of this machine; return the path."""
        descriptor = os.memfd_create("agentrl-weights", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(memoryview(weights))
        self._kept.append(descriptor)
        for old in self._kept[:-KEPT]:
            os.close(old)
        self._kept = self._kept[-KEPT:]
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def said(self) -> str:
        """Return the end of what the process has written."""
        return "nothing" if self._process is None else self._process.read_output()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        self._forget_folder()

    def _forget_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

"""Weights and model files for engines on other machines, sent once to each through Ray."""

import asyncio
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from agentrl.engine.remote.shared_weights import SharedWeights, path_of
from agentrl.errors import EngineError
from agentrl.runtime.threads import run_in_thread

Answered = Callable[[Any], Any]
"""Waits for what a call of an actor returns; raises `EngineError` when the actor is gone."""


class NodeWeightCache:
    """The newest weights and the model's folder. Belongs to the engines of a run.

    One engine's actor per machine, the first that asks, carries the weights for all engines there;
    when it is gone, the next one does.
    """

    def __init__(self, *, home: str, folder: Path, await_answer: Answered) -> None:
        """`home` is the machine whose memory the weights are in; `folder` is the model's."""
        self.home = home
        self._folder = folder
        self._answered = await_answer
        self._weights: SharedWeights | None = None
        self._stored: asyncio.Task[Any] | None = None
        self._files: asyncio.Task[Any] | None = None
        self._carried: dict[str, tuple[Any, asyncio.Task[str]]] = {}
        self.sendings = 0
        """How often weights have been sent to a machine."""

    async def folder_to(self, actor: Any) -> None:
        """Send the model's folder to an actor whose machine lacks it, where there is one here."""
        if not self._folder.is_dir() or not await self._answered(actor.lacks_folder.remote()):
            return
        if self._files is None:
            self._files = asyncio.create_task(run_in_thread(_store_folder, self._folder))
        # In a list, since Ray would fetch it here otherwise.
        await self._answered(actor.unpack.remote((await asyncio.shield(self._files))[0]))

    async def path(self, weights: Path | SharedWeights, *, node: str, actor: Any) -> Path:
        """Return the path of the weights on a machine, after sending them if need be.

        Raises `EngineError` when `actor` dies meanwhile.
        """
        if not self.carries(weights, node):
            return path_of(weights)
        while True:
            carrier, carried = self._carrier(weights, node, actor)
            try:
                return Path(await asyncio.shield(carried))
            except EngineError:
                self.forget(node, carrier)
                if carrier is actor:
                    raise

    def carries(self, weights: Path | SharedWeights, node: str) -> TypeGuard[SharedWeights]:
        """Return whether weights have to be sent to a machine."""
        return not isinstance(weights, Path) and node != self.home

    def carrier(self, node: str) -> Any:
        """Return the actor that carries the weights of a machine, or None."""
        return self._carried[node][0] if node in self._carried else None

    def forget(self, node: str, carrier: Any) -> None:
        """Have another actor carry the weights of a machine from now on."""
        if self.carrier(node) is carrier:
            del self._carried[node]

    def _carrier(
        self, weights: SharedWeights, node: str, actor: Any
    ) -> tuple[Any, "asyncio.Task[str]"]:
        if self._weights is not weights or self._stored is None:
            self._weights, self._carried = weights, {}
            self._stored = asyncio.create_task(run_in_thread(_store_weights, weights))
        if node not in self._carried:
            self._carried[node] = actor, asyncio.create_task(self._send(self._stored, actor))
        return self._carried[node]

    async def _send(self, stored: "asyncio.Task[Any]", actor: Any) -> str:
        reference = (await asyncio.shield(stored))[0]
        self.sendings += 1
        return await self._answered(actor.keep.remote(reference))


def _store_weights(weights: SharedWeights) -> list[Any]:
    import ray

    with weights.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # An array over the mapping, so that it is copied once: into the store.
    return [ray.put(np.frombuffer(mapped, dtype=np.uint8))]


def _store_folder(folder: Path) -> list[Any]:
    import ray

    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return [ray.put({name: np.frombuffer(raw, dtype=np.uint8) for name, raw in files.items()})]

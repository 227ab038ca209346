"""Verifiers that are not ours, in processes of their own, which can be killed."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, EnvError, VerifierError
from agentrl_envs.adapters.host import Kind, LibraryHost, LibraryHostPool, LibraryLocation

MOST_WORKERS = 4
VERDICT_S = 45.0
"""For a verdict and the wait for a worker. Less than `rollout.step_s`, so that the verifier is
named; more than the processor time of a verdict, because others compute too."""
VERDICT_CPU_S = 5.0
"""Processor time for one verdict; those of honest formulas take up to two seconds."""
MEMORY_BYTES = 2**29
"""Memory a worker may take on top of what it began with."""
_REASONS = {
    "its process ended with code 124": "took more processor time than a verdict may",
    "its process ended with code 125": "took more memory than a verdict may",
}


class VerdictPool:
    """Workers forked from one process that has imported the library of a kind.

    Started when first asked; a worker that dies, is late or whose caller is cancelled is killed,
    and replaced when the next one is wanted. None of them outlives the process that made the pool.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        packages: Sequence[str] = (),
        workers: int | None = None,
        verdict_cpu_s: float = VERDICT_CPU_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Start nothing yet; there are at most `workers`, by default as many as there are cores.

        `packages` are further modules that the workers import from where they are here.
        """
        self._kind = kind
        self._limits = {"verdict_cpu_s": verdict_cpu_s, "memory_bytes": memory_bytes}
        names = ("agentrl", "agentrl_envs", "agentrl_sandbox", *packages)
        roots = dict.fromkeys(str(find_root(name)) for name in names)
        self._hosts = LibraryHostPool(
            LibraryLocation(kind=kind, python=sys.executable, path=tuple(roots))
        )
        self._room = asyncio.Semaphore(workers or min(MOST_WORKERS, os.cpu_count() or 1))
        self._idle: list[tuple[LibraryHost, int]] = []

    async def ask(self, params: Mapping[str, Any], where: str) -> float:
        """Return the verdict of a worker's `score`.

        Raises `VerifierError`, beginning with `where`, for one that gives none.
        """
        try:
            async with asyncio.timeout(VERDICT_S), self._room:
                return await self._ask(params)
        except TimeoutError as error:
            raise VerifierError(f"{where} gave no verdict within {VERDICT_S:g} s") from error
        except EnvError as error:
            reason = self._read_reason(error)
            raise VerifierError(f"{where}: {_REASONS.get(reason, reason)}") from error

    def _read_reason(self, error: EnvError) -> str:
        return str(error).removeprefix(f"{self._kind}: score: ")

    async def close(self) -> None:
        """End every process. Idempotent; asked again, it starts anew."""
        self._idle.clear()
        await self._hosts.close()

    async def _ask(self, params: Mapping[str, Any]) -> float:
        while True:
            host, worker = await self._take_worker()
            try:
                score = await host.ask("score", params, timeout_s=VERDICT_S, session=worker)
            except EnvError as error:
                # It ended while it was idle: no answer is to blame.
                if self._read_reason(error) == f"there is no session {worker}":
                    continue
                await host.kill(worker)
                raise
            self._idle.append((host, worker))
            return float(score)

    async def _take_worker(self) -> tuple[LibraryHost, int]:
        while self._idle:
            host, worker = self._idle.pop()
            if host.is_open:
                return host, worker
        host = await self._hosts.host()
        worker = host.new_session()
        await host.ask("open", self._limits, timeout_s=VERDICT_S, session=worker)
        return host, worker


def find_root(package: str) -> Path:
    """Return the folder on the import path that holds a package. Raises `ConfigError`."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"there is no package {package!r} on the import path; install it")
    return Path(next(iter(spec.submodule_search_locations))).parent

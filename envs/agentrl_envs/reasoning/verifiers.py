"""reasoning-gym's verifiers in processes of their own, which can be killed."""

import asyncio
import os
import sys
from pathlib import Path

import agentrl
import agentrl_envs
import agentrl_sandbox
from agentrl.errors import EnvError, VerifierError
from agentrl.runtime.scope import shared
from agentrl.task import Task
from agentrl_envs.adapters.host import LibraryHost, LibraryHostPool, LibraryLocation
from agentrl_envs.reasoning.family import ReasoningFamily

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


class VerifierPool:
    """Workers forked from one process that has imported reasoning-gym.

    Started when first asked; a worker that dies, is late or whose caller is cancelled is killed,
    and replaced when the next one is wanted. None of them outlives the process that made the pool.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        verdict_cpu_s: float = VERDICT_CPU_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Start nothing yet; there are at most `workers`, by default as many as there are cores."""
        self._limits = {"verdict_cpu_s": verdict_cpu_s, "memory_bytes": memory_bytes}
        packages = (agentrl, agentrl_envs, agentrl_sandbox)
        roots = dict.fromkeys(str(Path(package.__path__[0]).parent) for package in packages)
        self._hosts = LibraryHostPool(
            LibraryLocation(kind="reasoning", python=sys.executable, path=tuple(roots))
        )
        self._room = asyncio.Semaphore(workers or min(MOST_WORKERS, os.cpu_count() or 1))
        self._idle: list[tuple[LibraryHost, int]] = []

    @classmethod
    async def find_shared(cls) -> "VerifierPool | None":
        """Return the pool that a run's environments share; None outside of a run."""

        async def make() -> VerifierPool:
            return cls()

        return await shared("verifiers", make)

    async def judge(self, family: ReasoningFamily, task: Task, answer: str) -> float:
        """Return a verifier's verdict; raise `VerifierError` for one that gives none."""
        where = f"the verifier of {family.name!r} on an answer of {len(answer)} characters"
        try:
            async with asyncio.timeout(VERDICT_S), self._room:
                return await self._judge(family, task, answer)
        except TimeoutError as error:
            raise VerifierError(f"{where} gave no verdict within {VERDICT_S:g} s") from error
        except EnvError as error:
            reason = str(error).removeprefix("reasoning: score: ")
            raise VerifierError(f"{where}: {_REASONS.get(reason, reason)}") from error

    async def close(self) -> None:
        """End every process. Idempotent; asked again, it starts anew."""
        self._idle.clear()
        await self._hosts.close()

    async def _judge(self, family: ReasoningFamily, task: Task, answer: str) -> float:
        params = {
            "settings": family.settings,
            "question": task.prompt,
            "reference": task.answer,
            "entry": task.data["entry"],
            "answer": answer,
        }
        while True:
            host, worker = await self._take_worker()
            try:
                score = await host.ask("score", params, timeout_s=VERDICT_S, session=worker)
            except EnvError as error:
                # It ended while it was idle: no answer is to blame.
                if f"there is no session {worker}" in str(error):
                    continue
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

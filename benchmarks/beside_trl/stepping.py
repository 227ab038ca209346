"""The contender's end of the pipe: it takes a step when it is told to, and reports it.

Imports nothing of either contender.
"""

import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.beside_trl.setup import StepRecord
from benchmarks.measure import tree_cpu_s

GO = "go"


@dataclass(slots=True)
class Stepping:
    """Waits before every step, and measures it. Owned by the process that trains."""

    pipe: "Connection[Any, Any]"
    tokens: int = 0
    rewards: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    _began: tuple[float, float] | None = None
    _part_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @contextmanager
    def part(self) -> Generator[None]:
        """Measure a part of the step: CPU and wall seconds."""
        cpu_s, wall_s = _now_s()
        yield
        ended_cpu_s, ended_wall_s = _now_s()
        self._part_s[0] += ended_cpu_s - cpu_s
        self._part_s[1] += ended_wall_s - wall_s

    def boundary(self, *, part_is_training: bool) -> None:
        """End a step, if one was begun, report it, and wait until the next may begin."""
        if self._began is not None:
            cpu_s, wall_s = (now - then for now, then in zip(_now_s(), self._began, strict=True))
            part_cpu_s, part_wall_s = self._part_s
            record = StepRecord(
                tokens=self.tokens,
                reward=sum(self.rewards) / len(self.rewards),
                cpu_s=cpu_s,
                wall_s=wall_s,
                rollout_cpu_s=cpu_s - part_cpu_s if part_is_training else part_cpu_s,
                rollout_wall_s=wall_s - part_wall_s if part_is_training else part_wall_s,
                prompt_ids=self.prompt_ids,
                rewards=self.rewards,
                advantages=self.advantages,
                peak_bytes=read_peak_bytes(),
            )
            self.pipe.send(asdict(record))
        self._part_s = [0.0, 0.0]
        try:
            self.pipe.recv()
        except EOFError:
            os._exit(0)  # enough was measured, and nobody wants what was trained
        self._began = _now_s()


def read_peak_bytes() -> int:
    """Return the most memory that this program had resident.

    Not `ru_maxrss`: who starts a program hands its own peak on to it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)
    return 1024 * int(kibibytes)


def _now_s() -> tuple[float, float]:
    return tree_cpu_s(), time.perf_counter()

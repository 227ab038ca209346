"""Both contenders in processes of their own, which take their steps in turns: A B A B."""

import os
import statistics
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.beside_trl.setup import Setup, StepRecord
from benchmarks.beside_trl.stepping import GO
from benchmarks.measure import Measurement, calibrate

ROOT = Path(__file__).parents[2]
ANSWER_S = 3600.0
"""Deadline of a step, or of a contender's start; a step of 135 M parameters takes TRL minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How a contender is started."""

    python: Path
    module: str
    preload: Path | None
    """An allocator for the whole process; the same for both."""
    limit_tokens: int | None = None
    """Of agentrl: most tokens in one forward pass, if not its default."""

    def environ(self, threads: int) -> dict[str, str]:
        """Return the environment of its process."""
        extra = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        preload = {"LD_PRELOAD": str(self.preload)} if self.preload else {}
        offline = {"HF_HUB_OFFLINE": "1"}
        return {**os.environ, **extra, **quiet, **preload, **offline, "PYTHONPATH": str(ROOT)}


@contextmanager
def started(program: Program, told: Mapping[str, Any], *, threads: int) -> Generator["Peer"]:
    """Start a contender, tell it what to do, and end it with the block."""
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [program.python, "-m", program.module, str(theirs.fileno())],
        cwd=ROOT,
        env=program.environ(threads),
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    try:
        ours.send(dict(told))
        yield Peer(program.module, process, ours)
    finally:
        ours.close()
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Peer:
    """A contender's process, seen from here."""

    name: str
    process: "subprocess.Popen[bytes]"
    pipe: "Connection[Any, Any]"

    def answer(self) -> Any:
        """Return what it sends next."""
        if not self.pipe.poll(ANSWER_S):
            raise TimeoutError(f"{self.name} said nothing for {ANSWER_S:g} s; measure less")
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError(
                f"{self.name} ended with exit code {self.process.wait()} before its time; its own "
                "output says why"
            ) from None

    def step(self) -> StepRecord:
        """Let it take one training step."""
        self.pipe.send(GO)
        return StepRecord(**self.answer())


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of every contender, taken one after the other."""

    records: Mapping[str, StepRecord]
    noisy: bool
    """Whether the machine changed its speed, or was busy, meanwhile."""


def race(programs: Mapping[str, Program], setup: Setup) -> Generator[Turn]:
    """Yield step after step, each taken by every contender; who begins alternates."""
    with ExitStack() as stack:
        told = {"what": "steps", "setup": asdict(setup)}
        peers = {
            name: stack.enter_context(
                started(
                    program, told | {"limit_tokens": program.limit_tokens}, threads=setup.threads
                )
            )
            for name, program in programs.items()
        }
        order = list(peers)
        for _ in range(setup.steps):
            before = calibrate()
            records = {name: peers[name].step() for name in order}
            order.reverse()
            yield Turn(records, noisy=before.disturbed(calibrate()))


def measurements(turns: Sequence[Turn], name: str, *, part: str = "step") -> list[Measurement]:
    """Return what a contender did in each turn: a whole `step`, its `rollout` or its `training`."""
    return [_measurement(turn.records[name], part, noisy=turn.noisy) for turn in turns]


def _measurement(record: StepRecord, part: str, *, noisy: bool) -> Measurement:
    rollout_cpu_s, rollout_wall_s = record.rollout_cpu_s, record.rollout_wall_s
    cpu_s, wall_s = {
        "step": (record.cpu_s, record.wall_s),
        "rollout": (rollout_cpu_s, rollout_wall_s),
        "training": (record.cpu_s - rollout_cpu_s, record.wall_s - rollout_wall_s),
    }[part]
    return Measurement(work=record.tokens, cpu_s=cpu_s, wall_s=wall_s, noisy=noisy)


def reached(rewards: Sequence[float], goal: float, *, over: int) -> int | None:
    """Return after how many steps the mean of the last `over` rewards was at least `goal`."""
    for end in range(over, len(rewards) + 1):
        if statistics.fmean(rewards[end - over : end]) >= goal:
            return end
    return None

"""One run of one contender: what it did, its wall seconds, the CPU seconds of its process tree."""

import gc
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

Run = Callable[[], float]
"""The measured part. Returns how much work it did, in the unit of the benchmark: tokens, steps."""

CALIBRATION_TOLERANCE = 0.1
"""A run is noisy when the kernel changed its speed, or waited for a core, by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something that can be measured."""

    set_up: Callable[[], Run]
    """Makes everything ready, and warm, and returns what is measured. Called before every run."""
    own_process: bool = False
    """Measure in a fresh process: `set_up` must then be a function of a module's top level, or a
    `partial` of one."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of the own process, such as `OMP_NUM_THREADS`."""
    timeout_s: float = 600.0
    """Deadline of an own process, set-up included."""

    def __post_init__(self) -> None:
        if self.environ and not self.own_process:
            raise ValueError(
                f"environ {dict(self.environ)} needs own_process=True: this process has started"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run."""

    work: float
    wall_s: float
    cpu_s: float
    """User and system seconds of the process and everything below it."""
    noisy: bool = False
    """The machine was busy or changed its speed around the run."""

    @property
    def work_per_cpu_s(self) -> float:
        """Return the rate that a busy neighbour disturbs least."""
        return self.work / self.cpu_s

    @property
    def work_per_wall_s(self) -> float:
        """Return the rate a user sees."""
        return self.work / self.wall_s


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast the machine is right now."""

    wall_s: float
    cpu_s: float

    def disturbed(self, after: "Calibration") -> bool:
        """Return whether the kernel had to wait for a core, or the machine changed its speed."""
        waited = max(c.wall_s / c.cpu_s for c in (self, after)) - 1
        slow, fast = max(self.cpu_s, after.cpu_s), min(self.cpu_s, after.cpu_s)
        return waited > CALIBRATION_TOLERANCE or slow / fast - 1 > CALIBRATION_TOLERANCE


def calibrate() -> Calibration:
    """Time a fixed kernel: matrix products for the arithmetic, a loop for the interpreter."""
    matrix = np.ones((256, 256), dtype=np.float32)
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(40):
        np.matmul(matrix, matrix)
    sum(i * i for i in range(200_000))
    return Calibration(time.perf_counter() - wall, time.thread_time() - cpu)


def measure(contender: Contender) -> Measurement:
    """Run `contender` once, in this process or in one of its own."""
    if not contender.own_process:
        return _measure_here(contender.set_up)
    return _measure_in_process(contender)


def tree_cpu_s() -> float:
    """Return the user and system seconds of this process and everything below it, dead or alive.

    Children that were waited for are in the kernel's own account; living ones are read from
    `/proc` in clock ticks. A process that left the tree (a daemon) is not counted.
    """
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(part.ru_utime + part.ru_stime for part in usage)
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for pid, parent, used in _processes():
        ticks[pid] = used
        children.setdefault(parent, []).append(pid)
    below = list(children.get(os.getpid(), ()))
    for pid in below:
        below += children.get(pid, ())
    return own + sum(ticks[pid] for pid in below) / os.sysconf("SC_CLK_TCK")


def _processes() -> Generator[tuple[int, int, int]]:
    """Yield (pid, parent, ticks used by it and its waited-for children) of every process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is not ours
        # The command name is in brackets and may hold anything, brackets too.
        fields = text[text.rindex(")") + 2 :].split()
        yield int(stat.parent.name), int(fields[1]), sum(int(f) for f in fields[11:15])


def _measure_here(set_up: Callable[[], Run]) -> Measurement:
    run = set_up()
    calibrate()  # the first one pays for what numpy loads lazily
    before = calibrate()
    with _only_own_garbage():
        wall, cpu = time.perf_counter(), tree_cpu_s()
        work = run()
        wall, cpu = time.perf_counter() - wall, tree_cpu_s() - cpu
    return Measurement(work=work, wall_s=wall, cpu_s=cpu, noisy=before.disturbed(calibrate()))


@contextmanager
def _only_own_garbage() -> Generator[None]:
    """Keep the garbage collector from going through what is there already.

    Otherwise a run pays, now and then, for the modules and objects of everybody's set-up.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_in_process(contender: Contender) -> Measurement:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(contender.set_up, theirs))
    with _environment(contender.environ):
        process.start()
    theirs.close()
    try:
        if not ours.poll(contender.timeout_s):
            raise TimeoutError(
                f"{_name(contender.set_up)} was not done after {contender.timeout_s} s; "
                "raise the contender's timeout_s or measure less"
            )
        return ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"{_name(contender.set_up)} ended with exit code {process.exitcode} "
            "and no measurement; its own output says why"
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()


def _name(set_up: Callable[[], Run]) -> str:
    return getattr(set_up, "__qualname__", repr(set_up))


def _answer(set_up: Callable[[], Run], pipe: "Connection[Measurement, object]") -> None:
    with pipe:
        pipe.send(_measure_here(set_up))


@contextmanager
def _environment(extra: Mapping[str, str]) -> Generator[None]:
    """Set variables for the processes started inside: a spawned process inherits ours."""
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

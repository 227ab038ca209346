"""CPU time of all of a session's processes, by looking at them now and then.

The kernel limits each process, and adds up only those that somebody waits for. A chain in which
every process starts the next one and ends would compute for ever.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentrl_sandbox.inside.processes import read_proc_file

LOOK_S = 0.25
"""Between two looks at a session that has started processes."""
REST_S = 1.0
"""Between two looks at one that has not."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MANY = 2**30


ProcessKey = tuple[int, int]
"""A process for good: its number, and when it started, in clock ticks."""


class ProcessSample(NamedTuple):
    """One process at one moment."""

    key: ProcessKey
    parent: int
    share: float
    """Of a processor that it has: 0 when it sleeps, less than 1 when it has to wait its turn."""
    cpu_s: float


def charge_s(
    before: Mapping[ProcessKey, float],
    samples: Iterable[ProcessSample],
    *,
    elapsed_s: float,
    others_passed: bool,
) -> float:
    """Return the CPU time that processes used between two looks, seconds.

    Of those seen twice, and of new ones, it is what the kernel says. Where others came and went in
    between, a new one that is running stands for them: it is charged its share of the whole time,
    which on average is what was used.
    """
    total_s = 0.0
    for sample in samples:
        if sample.key in before:
            total_s += max(0.0, sample.cpu_s - before[sample.key])
        else:
            total_s += max(sample.cpu_s, elapsed_s * sample.share if others_passed else 0.0)
    return total_s


@dataclass
class CpuMeter:
    """CPU time of the processes of one session."""

    used_s: float = 0.0
    seen: Mapping[ProcessKey, float] = field(default_factory=dict[ProcessKey, float])
    """CPU time of each process at the last look."""

    def add(
        self, samples: Sequence[ProcessSample], *, elapsed_s: float, others_passed: bool
    ) -> None:
        """Take in all processes of the session as they are now."""
        self.used_s += charge_s(
            self.seen, samples, elapsed_s=elapsed_s, others_passed=others_passed
        )
        self.seen = {sample.key: sample.cpu_s for sample in samples}


def sample_processes() -> list[ProcessSample]:
    """Return a sample of every process that can be seen, but of this one."""
    pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - {os.getpid()}
    # The newest first: it may be about to end.
    samples = (_sample(pid) for pid in sorted(pids, reverse=True))
    return [sample for sample in samples if sample]


def newest_pid() -> int:
    """Return the number that the last process or thread to start here was given."""
    return int(read_proc_file("/proc/loadavg").split()[4])


def count_started(before: int, now: int) -> int:
    """Return the least number of processes and threads started between two newest numbers."""
    return now - before if now >= before else _MANY  # they begin again at the end


def _sample(pid: int) -> ProcessSample | None:
    try:
        text = read_proc_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # What follows the program's name, which may hold anything: the state is field 3 of proc(5).
    fields = text.rpartition(") ")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    share = _share(pid) if fields[0] == "R" else 0.0
    return ProcessSample((pid, int(fields[19])), int(fields[1]), share, ticks / _TICKS_PER_S)


def _share(pid: int) -> float:
    """Return which part of the time it was ready to run a process has run."""
    try:
        ran_ns, waited_ns = map(int, read_proc_file(f"/proc/{pid}/schedstat").split()[:2])
    except (OSError, ValueError):  # gone, or a kernel that does not count it
        return 1.0
    return ran_ns / (ran_ns + waited_ns) if ran_ns else 0.0

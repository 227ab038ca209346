"""Time for which sleeping programs sleep on by themselves, as the kernel tells it."""

import math
import os
import platform
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

# Numbers of system calls are those of x86-64; elsewhere no thread is understood.
_IS_KNOWN_MACHINE = platform.machine() == "x86_64"
_MILLISECONDS: Mapping[int, int] = {7: 2, 232: 3, 281: 3}
"""poll, epoll_wait and epoll_pwait: the argument with the milliseconds, negative for no end."""
_POINTERS: Mapping[int, int] = {23: 4, 35: 0, 128: 2, 270: 4, 271: 2, 441: 3}
"""select, nanosleep, rt_sigtimedwait, pselect6, ppoll and epoll_pwait2: that with its address."""
_SELECT, _FUTEX, _CLOCK_NANOSLEEP = 23, 202, 230
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_REALTIME, _FUTEX_COMMANDS = 0, 9, 256, 0x7F
_ENDLESS = frozenset({0, 1, 19, 20, 34, 43, 45, 46, 47, 61, 130, 247, 288})
"""read, write, pause, accept, recv and send, wait, sigsuspend: they end with what others do."""
_PAIR = struct.Struct("@qq")
_TIMERFD = "anon_inode:[timerfd]"


def find_next_timer_s(pids: Iterable[int]) -> float:
    """Return the seconds after which one of these processes may go on without being woken.

    It is infinite where all wait for others, and 0.0 where a thread runs, or waits in a way that
    is not understood or may not be looked at.
    """
    soonest_s = math.inf
    for pid in pids:
        try:
            waits_s = [read_wait_s(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
            soonest_s = min([soonest_s, *waits_s, *_read_timers_s(pid)])
        except (OSError, ValueError, struct.error):
            if os.path.exists(f"/proc/{pid}"):
                return 0.0  # or a thread or a file of it ended while we looked
    return soonest_s


def read_wait_s(pid: int, thread: int) -> float:
    """Return the seconds that a thread sleeps at most, infinite without an end."""
    with open(f"/proc/{pid}/task/{thread}/syscall") as file:
        words = file.read().split()

    def read_pair(address: int) -> tuple[int, int]:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return _PAIR.unpack(memory.read(_PAIR.size))

    if not _IS_KNOWN_MACHINE or len(words) < 7:  # it runs, or is in no call
        return 0.0
    return compute_wait_s(int(words[0]), [int(word, 16) for word in words[1:7]], read_pair)


def compute_wait_s(
    call: int, arguments: Sequence[int], read_pair: Callable[[int], tuple[int, int]]
) -> float:
    """Return the seconds that a system call sleeps at most; 0.0 for one that is not known.

    `read_pair` reads a time at an address: seconds, and nanoseconds or microseconds.
    """
    if call in _ENDLESS:
        return math.inf
    if call in _MILLISECONDS:
        milliseconds = arguments[_MILLISECONDS[call]] & 0xFFFFFFFF
        return math.inf if milliseconds >= 2**31 else milliseconds / 1e3
    if call in _POINTERS:
        address = arguments[_POINTERS[call]]
        if address == 0:
            return math.inf
        seconds, parts = read_pair(address)
        return seconds + parts / (1e6 if call == _SELECT else 1e9)
    if call == _CLOCK_NANOSLEEP:
        clock, is_absolute, address = arguments[:3]
        return _read_clock_s(read_pair(address), clock if is_absolute & 1 else None)
    if call == _FUTEX:
        operation, address = arguments[1], arguments[3]
        command = operation & _FUTEX_COMMANDS
        if command not in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET):
            return 0.0
        if address == 0:
            return math.inf
        clock = time.CLOCK_REALTIME if operation & _FUTEX_REALTIME else time.CLOCK_MONOTONIC
        is_relative = command == _FUTEX_WAIT
        return _read_clock_s(read_pair(address), None if is_relative else clock)
    return 0.0


def _read_clock_s(pair: tuple[int, int], clock: int | None) -> float:
    """Return a time of a clock as seconds from now; None is a time from now already."""
    seconds = pair[0] + pair[1] / 1e9
    return seconds if clock is None else max(0.0, seconds - time.clock_gettime(clock))


def _read_timers_s(pid: int) -> Iterable[float]:
    """Yield the seconds to the timers that a process has as files, and 0.0 for one of POSIX."""
    with open(f"/proc/{pid}/timers") as file:
        if file.read(1):
            yield 0.0
    for name in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{name}") == _TIMERFD:
            with open(f"/proc/{pid}/fdinfo/{name}") as file:
                yield parse_timer_s(file.read())


def parse_timer_s(text: str) -> float:
    """Return the seconds to a timer of `timerfd_create`, infinite for one that is not set."""
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if name == "it_value":
            seconds, nanoseconds = map(int, value.strip("()").split(", "))
            return seconds + nanoseconds / 1e9 if seconds or nanoseconds else math.inf
    return 0.0

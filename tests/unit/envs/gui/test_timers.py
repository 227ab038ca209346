"""Time that a sleeping thread sleeps at most, by the system call it is in.

Mutants seen caught: a negative number of milliseconds is a short time; a null address is read; the
microseconds of select are nanoseconds; an absolute time is taken from now; a call that is not known
sleeps for ever; a locked futex is a wait; a timer that is not set is due.
"""

import math
import time
from collections.abc import Sequence

import pytest

from agentrl_envs.gui.inside.timers import compute_wait_s, parse_timer_s

HALF = (2, 500_000_000)
ADDRESS = 0x7FFF0000


def wait_s(call: int, *arguments: int, pair: tuple[int, int] = HALF) -> float:
    def read_pair(address: int) -> tuple[int, int]:
        assert address == ADDRESS
        return pair

    return compute_wait_s(call, [*arguments, 0, 0, 0, 0, 0, 0][:6], read_pair)


@pytest.mark.parametrize(
    ("call", "arguments", "seconds"),
    [
        (7, [1, 2, 150], 0.15),
        (7, [1, 2, 0xFFFFFFFF], math.inf),
        (232, [1, 2, 3, 0x49122], 299.298),
        (281, [1, 2, 3, 0xFFFFFFFFFFFFFFFF], math.inf),
        (271, [1, 2, ADDRESS], 2.5),
        (271, [1, 2, 0], math.inf),
        (270, [1, 2, 3, 4, ADDRESS], 2.5),
        (441, [1, 2, 3, ADDRESS], 2.5),
        (35, [ADDRESS], 2.5),
        (128, [1, 2, ADDRESS], 2.5),
        (230, [time.CLOCK_MONOTONIC, 0, ADDRESS], 2.5),
        (202, [1, 0x80, 3, ADDRESS], 2.5),
        (202, [1, 0x80, 3, 0], math.inf),
        (202, [1, 0x86, 3, ADDRESS], 0.0),
        (0, [1, 2, 3], math.inf),
        (61, [1, 2, 3], math.inf),
        (9999, [1, 2, 3], 0.0),
        (219, [1, 2, 3], 0.0),
    ],
)
def test_a_call_sleeps_as_long_as_its_arguments_say(
    call: int, arguments: Sequence[int], seconds: float
) -> None:
    assert wait_s(call, *arguments) == pytest.approx(seconds)


def test_select_counts_microseconds() -> None:
    assert wait_s(23, 1, 2, 3, 4, ADDRESS, pair=(1, 500_000)) == 1.5


@pytest.mark.parametrize(
    ("clock", "call", "arguments"),
    [
        (time.CLOCK_MONOTONIC, 230, [time.CLOCK_MONOTONIC, 1, ADDRESS]),
        (time.CLOCK_REALTIME, 230, [time.CLOCK_REALTIME, 1, ADDRESS]),
        (time.CLOCK_MONOTONIC, 202, [1, 0x89, 3, ADDRESS]),
        (time.CLOCK_REALTIME, 202, [1, 0x189, 3, ADDRESS]),
    ],
)
def test_a_time_of_a_clock_is_counted_from_now(
    clock: int, call: int, arguments: Sequence[int]
) -> None:
    later = int(time.clock_gettime(clock)) + 100
    assert 98 < wait_s(call, *arguments, pair=(later, 0)) <= 101
    assert wait_s(call, *arguments, pair=(later - 200, 0)) == 0.0


def test_a_timer_in_a_file_is_as_far_as_its_file_says() -> None:
    text = "pos:\t0\nclockid: 1\nticks: 0\nit_value: ({}, {})\nit_interval: (0, 0)\n"
    assert parse_timer_s(text.format(1, 250_000_000)) == 1.25
    assert parse_timer_s(text.format(0, 0)) == math.inf
    assert parse_timer_s("pos:\t0\n") == 0.0

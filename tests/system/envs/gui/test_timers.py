"""Timers of real processes, as the kernel tells them, and a desktop that waits for them.

Mutants seen caught: the timers in files are left out; what runs sleeps for ever; a thread besides
the first is left out; a desktop rests while a timer of a program is near; it waits `still_s` where
nothing can happen.
"""

import math
import platform
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import pytest
import pytest_asyncio

from agentrl.env import call
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.inside.timers import find_next_timer_s
from agentrl_envs.gui.tasks import template_pack
from tests.support.desktops import desktop_of, processes_of

LONG_S = 1000.0
STILL_S = 5.0
WAITS = {
    "poll": f"select.poll().poll({LONG_S * 1e3:g})",
    "epoll": f"select.epoll().poll({LONG_S})",
    "select": f"select.select([], [], [], {LONG_S})",
    "sleep": f"time.sleep({LONG_S})",
    "lock": f"threading.Event().wait({LONG_S})",
    "another thread": f"threading.Timer({LONG_S}, print).start()\nsignal.pause()",
    "signal": f"signal.sigtimedwait([signal.SIGUSR1], {LONG_S})",
}
ENDLESS = {
    "pause": "signal.pause()",
    "read": "os.read(os.pipe()[0], 1)",
    "poll": "select.poll().poll()",
    "lock": "threading.Lock().acquire() and threading.Event().wait()",
}
TIMERFD = f"""
timer = libc.timerfd_create(1, 0)
libc.timerfd_settime(timer, 0, struct.pack("@qqqq", 0, 0, {LONG_S:g}, 0), None)
signal.pause()
"""
BEGIN = """
import ctypes, os, select, signal, struct, threading, time
libc = ctypes.CDLL(None)
print(flush=True)
"""

needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64"
)


@contextmanager
def sleeping(program: str) -> Generator[int]:
    """Yield the pid of a program that is about to sleep."""
    command = [sys.executable, "-c", BEGIN + program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


def await_timer(pid: int, soonest_s: float, latest_s: float) -> float:
    """Return the next timer of a process, once it is as expected, or at last."""
    end_s = time.monotonic() + 30
    while not soonest_s <= (next_s := find_next_timer_s([pid])) <= latest_s:
        if time.monotonic() > end_s:
            break
        time.sleep(0.01)
    return next_s


@needs_x86
@pytest.mark.parametrize("way", WAITS)
def test_a_timer_is_read_however_it_is_waited_for(way: str) -> None:
    with sleeping(WAITS[way]) as pid:
        assert LONG_S - 60 <= await_timer(pid, LONG_S - 60, LONG_S) <= LONG_S


@needs_x86
@pytest.mark.parametrize("way", ENDLESS)
def test_who_waits_for_others_has_no_timer(way: str) -> None:
    with sleeping(ENDLESS[way]) as pid:
        assert await_timer(pid, math.inf, math.inf) == math.inf


@needs_x86
def test_a_timer_in_a_file_is_read() -> None:
    with sleeping(TIMERFD) as pid:
        assert LONG_S - 60 <= await_timer(pid, LONG_S - 60, LONG_S) <= LONG_S


def test_who_runs_may_go_on_at_once() -> None:
    with sleeping("while True: pass") as pid:
        time.sleep(0.2)
        assert find_next_timer_s([pid]) == 0.0
    assert find_next_timer_s([pid]) == math.inf


@pytest_asyncio.fixture
async def env() -> AsyncGenerator[GuiEnv]:
    settings = DesktopSettings(
        desktops=1, warm=0, call_s=120, start_s=60, settle_s=20, still_s=STILL_S
    )
    pool = DesktopPool(settings)
    env = GuiEnv(pack=template_pack(templates=["press"]), desktop=pool, max_turns=None)
    yield env
    await env.close()
    await pool.close()


@needs_x86
@pytest.mark.gui
async def test_a_desktop_rests_as_soon_as_nothing_can_happen(env: GuiEnv) -> None:
    await env.reset(options={"task": next(iter(env.tasks("train")))})
    start_s = time.monotonic()
    for number in range(4):
        await env.step(call("computer", action="move", coordinate=[5 + number, 700]))
    assert time.monotonic() - start_s < 2 * STILL_S


@needs_x86
@pytest.mark.gui
async def test_a_desktop_waits_for_a_timer_that_is_near(env: GuiEnv) -> None:
    await env.reset(options={"task": next(iter(env.tasks("train")))})
    await desktop_of(env).ask("launch", command=["sleep", str(STILL_S / 4)], within_s=60)
    await env.step(call("computer", action="move", coordinate=[5, 700]))
    assert processes_of(env, "sleep") == []

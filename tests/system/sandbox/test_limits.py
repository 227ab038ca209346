"""Every limit ends in a result that names it, and the session and its neighbours go on."""

import asyncio
import re
from bisect import bisect
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.inside.cpu_time import CpuMeter, ProcessSample, charge_s
from agentrl_sandbox.reaping.owner import LeaseOwner
from tests.support.pools import LONGER_S, opened, sizes
from tests.support.watchdog import watched

LIMITS = Limits(
    wall_s=60,
    cpu_s=60,
    memory_bytes=256 * 2**20,
    processes=16,
    open_files=64,
    file_bytes=2**20,
    disk_bytes=4 * 2**20,
    output_bytes=1000,
)
ISOLATED = SandboxSettings(limits=LIMITS)
WRAPPED = SandboxSettings(backend="bubblewrap", limits=LIMITS)
BARE = SandboxSettings(backend="process", allow_unisolated=True, limits=LIMITS)
BACKENDS = [
    pytest.param(ISOLATED, id="namespaces", marks=pytest.mark.namespaces),
    pytest.param(WRAPPED, id="bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param(BARE, id="process"),
]


@pytest.fixture(params=BACKENDS)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[ForkServerPool]:
    async with opened(request.param) as pool:
        yield pool


@pytest.fixture
async def session(pool: ForkServerPool) -> SandboxSession:
    return await pool.open()


async def usable(session: SandboxSession) -> bool:
    return (await session.exec("6 * 7")).value == "42"


async def test_a_deadline_ends_the_whole_tree_of_processes(session: SandboxSession) -> None:
    """Children that left the group, ignore signals, or were orphaned on purpose: all of them."""
    code = """
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
def daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                open(name, "a").write("x"); time.sleep(0.01)
        os._exit(0)
daemon("one"); daemon("two")
while True: time.sleep(1)
"""
    for timeout_s in LONGER_S:
        result = await session.exec(code, timeout_s=timeout_s)
        assert result.status == "timeout"
        assert f"{timeout_s:g} s" in (result.error or "")
        written = await sizes(session)
        if written.keys() >= {"one", "two"} and all(written.values()):
            break
    else:
        pytest.fail("the code did not get that far")
    await asyncio.sleep(0.1)
    assert await sizes(session) == written
    assert await usable(session)


async def test_processes_that_have_ended_are_no_processes(session: SandboxSession) -> None:
    """Kills: what commands leave in the background, counted after its end: 16 of them, and no
    command could start another one."""
    for _ in range(LIMITS.processes + 4):
        result = await session.run(["sh", "-c", "(exec sleep 0.01 &); exec echo done"])
        assert (result.status, result.stdout, result.stderr) == ("ok", "done\n", "")
        await asyncio.sleep(0.05)


async def test_what_was_printed_before_the_deadline_is_kept(session: SandboxSession) -> None:
    for timeout_s in LONGER_S:
        result = await session.exec("print('so far')\nwhile True: pass", timeout_s=timeout_s)
        if result.stdout:
            break
    else:
        pytest.fail("nothing was printed")
    assert (result.status, result.stdout) == ("timeout", "so far\n")
    assert (await session.exec("print('later')")).stdout == "later\n"


async def test_a_timeout_costs_names_and_keeps_files(session: SandboxSession) -> None:
    await session.exec("x = 1; open('kept', 'w').write('yes')")
    await session.exec("while True: pass", timeout_s=0.2)
    assert "NameError" in ((await session.exec("x")).error or "")
    assert await session.read("kept") == b"yes"


async def test_memory(session: SandboxSession) -> None:
    result = await session.exec("hoard = []\nwhile True: hoard.append(bytearray(2**20))")
    assert result.status == "oom"
    assert "MemoryError" in (result.error or "")
    assert await usable(session)


async def test_a_fork_bomb_is_contained(pool: ForkServerPool) -> None:
    bomber, bystander = await pool.open(), await pool.open()
    code = """
import os, time
made = 0
while True:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    made += 1
    open("made", "w").write(str(made))
"""
    result = await bomber.exec(code)
    assert result.status == "limit", result
    assert await usable(bystander)
    # Without namespaces the keeper may end what is left of it between the cells, and says so once.
    assert await usable(bomber) or await usable(bomber)


@pytest.mark.namespaces
async def test_the_kernel_counts_processes_of_one_session_only() -> None:
    hold = "import os, time\nfor _ in range(10):\n  if os.fork() == 0: time.sleep(600); os._exit(0)"
    bomb = "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(600); os._exit(0)"
    async with opened(ISOLATED) as pool:
        one, other = await pool.open(), await pool.open()
        assert (await one.exec(hold)).ok
        assert (await other.exec(hold)).ok
        result = await one.exec(bomb)
        assert result.status == "limit"
        assert "Resource temporarily unavailable" in (result.error or "")
        assert (await one.exec("len([p for p in os.listdir('/proc') if p.isdecimal()])")).value == (
            str(LIMITS.processes + 1)  # and the keeper, which is not the session's
        )
        assert (await other.exec("os.fork() and 1")).value == "1"


async def test_threads_count_too_or_are_bounded_by_memory(session: SandboxSession) -> None:
    code = """
import threading, time
for _ in range(5000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
    result = await session.exec(code)
    assert result.status in ("limit", "oom"), result
    await session.close()


async def test_cpu_time_of_the_session() -> None:
    settings = SandboxSettings(backend="process", allow_unisolated=True, limits=CPU)
    async with opened(settings) as pool:
        session = await pool.open()
        result = await session.exec("while True: pass")
        assert result.status == "limit"
        assert "1 s of CPU time" in (result.error or "")
        again = await session.exec("1")
        assert (again.status, again.value) == ("limit", None)


CPU = Limits(cpu_s=1.0, wall_s=60.0)


# Computes for ever, in processes that each end after a while and that nobody waits for.
CHAIN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def chain(link_s):
    if os.fork(): return
    used_s = 0.0
    while True:
        end_s = time.process_time() + link_s
        while time.process_time() < end_s: pass
        used_s += link_s
        open("used", "w").write(str(used_s))
        if os.fork(): os._exit(0)
"""


@pytest.mark.parametrize(
    ("how", "link_s"),
    [
        pytest.param(ISOLATED, 0.02, id="namespaces-short", marks=pytest.mark.namespaces),
        pytest.param(ISOLATED, 0.3, id="namespaces-long", marks=pytest.mark.namespaces),
        pytest.param(WRAPPED, 0.3, id="bubblewrap-long", marks=pytest.mark.bubblewrap),
        pytest.param(BARE, 0.3, id="process-long"),
    ],
)
async def test_a_chain_of_processes_shares_the_cpu_time_of_its_session(
    how: SandboxSettings, link_s: float
) -> None:
    """Kills: adding up only what is waited for; counting what is seen, where most is not."""
    async with opened(replace(how, limits=replace(LIMITS, cpu_s=1))) as pool:
        session, other = await pool.open(), await pool.open()
        await session.exec(CHAIN)
        assert (await session.exec(f"chain({link_s})")).ok
        while (result := await session.exec("time.sleep(0.1)")).ok:
            used = await session.read("used") if "used" in await sizes(session) else b""
            assert float(used or 0) < 4, "the chain computes on"
        assert (result.status, "1 s of CPU time" in (result.error or "")) == ("limit", True)
        used = await session.read("used")
        assert (await session.run(["true"])).status == "limit"
        assert (await other.exec("1")).value == "1"
        assert await session.read("used") == used


def sample(pid: int, share: float, cpu_s: float) -> ProcessSample:
    return ProcessSample((pid, 0), 1, share, cpu_s)


def test_cpu_time_between_two_looks() -> None:
    """Worked out by hand: one seen twice, a new one that sleeps, a new one with half a core."""
    samples = [sample(1, 1.0, 1.5), sample(2, 0.0, 0.25), sample(3, 0.5, 0.0)]
    before = {(1, 0): 1.0, (9, 0): 7.0}
    assert charge_s(before, samples, elapsed_s=2.0, others_passed=False) == 0.75
    assert charge_s(before, samples, elapsed_s=2.0, others_passed=True) == 1.75


@given(st.lists(st.floats(0.01, 0.2), min_size=400, max_size=400), st.randoms())
def test_a_chain_is_charged_what_it_uses(links: list[float], random: Random) -> None:
    """Kills: counting only what is seen of each, or a whole look for every process.

    Of processes that follow each other one is seen at each look; the others have come and gone.
    """
    total_s, ends = sum(links), list(accumulate(links))
    meter, last_s = CpuMeter(), 0.0
    while last_s < total_s:
        now_s = min(last_s + random.uniform(0.2, 0.3), total_s)
        link = min(bisect(ends, now_s), len(links) - 1)
        cpu_s = now_s - (ends[link] - links[link])
        elapsed_s = now_s - last_s
        meter.add([sample(link + 2, 1.0, cpu_s)], elapsed_s=elapsed_s, others_passed=True)
        last_s = now_s
    assert meter.used_s == pytest.approx(total_s, rel=0.05)


WRITER = """
import os, time
end_s, count = time.monotonic() + 1.0, 0
os.set_blocking(1, False)
while time.monotonic() < end_s:
    try: count += os.write(1, b"x" * 2**16)
    except BlockingIOError: time.sleep(0.001)
open("count", "w").write(str(count))
"""


@pytest.mark.namespaces
async def test_who_goes_on_writing_when_its_command_has_ended_is_read_slowly() -> None:
    """Kills: reading as fast as somebody writes, which took a third of a core for nobody."""
    async with opened(ISOLATED) as pool:
        await _write_on(await pool.open())


async def _write_on(session: SandboxSession) -> None:
    await session.write("writer.py", WRITER.encode())
    result = await session.run(["sh", "-c", "exec 2>&-; python3 writer.py & echo started"])
    assert "started" in result.stdout
    while "count" not in await sizes(session):
        await session.exec("import time; time.sleep(0.1)")
    assert int(await session.read("count")) < 64 * 2**20


async def test_one_file_and_many_open_files(session: SandboxSession) -> None:
    code = f"with open('big', 'wb') as file: file.write(bytes({LIMITS.file_bytes + 1}))"
    result = await session.exec(code)
    assert result.status == "limit"
    assert "File too large" in (result.error or "")
    result = await session.exec("files = [open('small', 'w') for _ in range(100)]")
    assert result.status == "limit"
    assert "Too many open files" in (result.error or "")
    assert await usable(session)
    with pytest.raises(OSError, match="file_bytes=1048576"):
        await session.write("big", bytes(LIMITS.file_bytes + 1))
    await session.exec("for n in range(3):\n  open('long', 'ab').write(bytes(2**19))")
    assert len(await session.read("long")) == LIMITS.file_bytes


async def test_the_directory_as_a_whole(session: SandboxSession) -> None:
    code = "for n in range(8): open(f'{n}', 'wb').write(bytes(2**20))"
    result = await session.exec(code)
    assert result.status == "limit", result
    assert await usable(session) or (await session.exec("1")).status == "limit"
    await session.close()


@watched
async def test_output_is_cut_in_the_middle_and_the_flood_costs_no_memory(
    session: SandboxSession,
) -> None:
    code = "print('head')\nfor _ in range(10_000): print('a' * 1000)\nprint('tail')"
    result = await session.exec(code)
    assert result.truncated
    assert result.stdout.startswith("head\n")
    assert result.stdout.endswith("a\ntail\n")
    assert len(result.stdout) < 1.2 * LIMITS.output_bytes
    # A kill comes at any moment, also while output is cropped.
    printed = [await killed_flood(session, ms / 1000) for ms in range(50, 60)]
    assert any(printed) or any([await killed_flood(session, late_s) for late_s in LONGER_S])
    result = await session.exec("import os\nwhile True: os.write(1, b'x' * 65536)")
    assert (result.status, result.truncated) == ("limit", True)


async def killed_flood(session: SandboxSession, timeout_s: float) -> bool:
    """Return whether it printed before its deadline; if it did, head and tail are there."""
    result = await session.exec("while True: print('x' * 65536)", timeout_s=timeout_s)
    assert (result.status, result.truncated) == ("timeout", bool(result.stdout))
    expected = r"x{500}\n\.\.\. \d+ bytes or more left out \.\.\.\n[x\n]{500}"
    assert not result.stdout or re.fullmatch(expected, result.stdout)
    return bool(result.stdout)


async def test_a_crash_is_named(session: SandboxSession) -> None:
    result = await session.exec("import ctypes; print('before'); ctypes.string_at(0)")
    assert (result.status, result.stdout) == ("crash", "before\n")
    assert "SIGSEGV" in (result.error or "")
    assert await usable(session)
    assert "exit status 3" in ((await session.exec("import os; os._exit(3)")).error or "")


async def test_a_death_between_cells_is_told_with_the_next_one(session: SandboxSession) -> None:
    code = """
import os, threading, time
def die():
    while not os.path.exists("go"): time.sleep(0.01)
    os._exit(7)
threading.Thread(target=die).start()
"""
    assert (await session.exec(code)).ok
    await session.write("go", b"")
    await asyncio.sleep(0.3)
    result = await session.exec("time.sleep(600)")  # where it dies late, in the middle of this one
    assert result.status == "crash"
    assert "exit status 7" in (result.error or "")
    assert await usable(session)


async def test_a_cell_that_forks_and_returns_answers_once(session: SandboxSession) -> None:
    result = await session.exec("import os\npid = os.fork()\nprint('x')\npid == 0")
    assert (result.ok, result.value) == (True, "False")
    assert [(await session.exec(f"{n}")).value for n in range(5)] == list("01234")


@pytest.mark.parametrize("settings", BACKENDS)
async def test_nothing_is_left_on_the_host(settings: SandboxSettings) -> None:
    import tempfile

    # Other processes have theirs there.
    ours = f"agentrl-sandbox-{LeaseOwner.current().text}-*"

    def places() -> set[str]:
        return {p.name for p in Path(tempfile.gettempdir()).glob(ours)}

    before = places()
    async with opened(settings) as pool:
        session = await pool.open()
        await session.exec("import os; os.mkdir('deep'); os.chmod('deep', 0)")
    assert places() == before

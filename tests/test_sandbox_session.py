"""Commands, listings, and what follows when an interpreter is lost.

Mutants seen caught: see the docstrings.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from agentrl.errors import ForkUnsupported, SandboxError
from agentrl.sandbox import AfterTimeout, Backend, Limits, Pressure, Sandbox, SandboxSettings
from agentrl_sandbox import ForkServerPool, open_pool
from agentrl_sandbox.cgroup import session_bounds

BACKENDS = [
    pytest.param("bubblewrap", id="bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param("process", id="process"),
]
LIMITS = Limits(memory_bytes=256 * 2**20, disk_bytes=8 * 2**20, output_bytes=4096)
LOSSES = {
    "while True: pass": "timeout",
    "import os; os._exit(3)": "crash",
    "import os; os.kill(os.getpid(), 11)": "crash",
    "b = bytearray(2**40)": "oom",
    "import os; os.write(3, b'x' * 4096)": "violation",
    "import os; os.close(3); import time; time.sleep(5)": "violation",
}


def settings(backend: Backend, after_timeout: AfterTimeout = "fresh") -> SandboxSettings:
    return SandboxSettings(
        backend=backend,
        allow_unisolated=backend == "process",
        after_timeout=after_timeout,
        limits=LIMITS,
    )


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture
async def session(backend: Backend) -> AsyncIterator[Sandbox]:
    pool = open_pool(settings(backend))
    yield await pool.open()
    await pool.close()


@pytest.mark.parametrize("code", LOSSES)
async def test_a_restored_session_is_as_it_was_before_the_cell(backend: Backend, code: str) -> None:
    """Kills: a spare that is never promoted, one made after the cell, names of a fresh one."""
    pool = open_pool(settings(backend, "restore"))
    session = await pool.open()
    await session.exec(
        "import os, random\nnames = ['kept']\nos.makedirs('below'); os.chdir('below')"
    )
    await session.exec("random.seed(7)")
    expected = (await session.exec("state = random.getstate(); random.random()")).value
    await session.exec("random.setstate(state)")
    lost = await session.exec(
        f"names.append('lost'); open('file', 'w').close()\n{code}", timeout_s=0.5
    )
    assert lost.status == LOSSES[code], lost
    assert "names are as before the cell" in (lost.error or "")
    assert (
        await session.exec("names, os.path.basename(os.getcwd())")
    ).value == "(['kept'], 'below')"
    assert (await session.exec("random.random()")).value == expected
    assert await session.read("below/file") == b""
    assert (await session.exec("names.append('again'); len(names)")).value == "2"
    again = await session.exec(code, timeout_s=0.5)
    assert again.status == LOSSES[code], again
    assert (await session.exec("names")).value == "['kept', 'again']"
    await pool.close()


async def test_threads_cost_a_session_its_restoring_and_nothing_else(backend: Backend) -> None:
    pool = open_pool(settings(backend, "restore"))
    session = await pool.open()
    await session.exec("import threading; stop = threading.Event()")
    await session.exec("thread = threading.Thread(target=stop.wait, daemon=True); thread.start()")
    lost = await session.exec("while True: pass", timeout_s=0.3)
    assert (lost.status, "names are gone" in (lost.error or "")) == ("timeout", True)
    assert "NameError" in ((await session.exec("stop")).error or "")
    await pool.close()


@pytest.mark.parametrize("code", LOSSES)
async def test_an_ended_session_says_so_for_good(backend: Backend, code: str) -> None:
    """Kills: an ended session that runs on, one that raises as if the sandbox were broken."""
    pool = open_pool(settings(backend, "end"))
    session = await pool.open()
    lost = await session.exec(code, timeout_s=0.3)
    assert lost.status == LOSSES[code]
    for _ in range(2):
        refused = await session.exec("print('alive')")
        assert (refused.status, refused.stdout) == (LOSSES[code], "")
        assert "has ended" in (refused.error or "")
    with pytest.raises(ForkUnsupported, match="has ended"):
        await session.fork()
    await session.close()
    assert (await (await pool.open()).exec("1")).value == "1"
    await pool.close()


async def test_a_cell_that_is_cancelled_is_taken_back(backend: Backend) -> None:
    pool = open_pool(settings(backend, "restore"))
    session = await pool.open()
    await session.exec("names = ['kept']")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.exec("names.append('lost')\nwhile True: pass")
        assert (await session.exec("names")).value == "['kept']"
    await pool.close()


async def test_who_stops_waiting_for_a_cancelled_cell_takes_nobody_along(backend: Backend) -> None:
    """Kills: the end of an interpreter that is cancelled with whoever waits for it."""
    pool = open_pool(settings(backend, "restore"))
    session = await pool.open()
    await session.exec("names = ['kept']")
    running = asyncio.create_task(session.exec("names.append('lost')\nwhile True: pass"))
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.wait([running])
    waiting = asyncio.create_task(session.exec("names.append('late')"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await session.exec("names")).value == "['kept']"
    await pool.close()


async def test_a_fork_of_a_session_without_an_interpreter_has_its_files(session: Sandbox) -> None:
    await session.write("kept", b"1")
    await session.exec("import os; os._exit(0)")
    copy = await session.fork()
    assert await copy.read("kept") == b"1"
    await copy.write("kept", b"2")
    assert await session.read("kept") == b"1"
    assert (await copy.exec("open('kept').read()")).value == "'2'"


async def test_commands_see_what_cells_left_and_the_other_way_round(session: Sandbox) -> None:
    await session.exec("open('from-cell', 'w').write('cell')")
    done = await session.run(["sh", "-c", "cat from-cell; echo command > from-command; pwd"])
    assert (done.ok, done.stdout) == (True, f"cell{(await session.run(['pwd'])).stdout}")
    assert (await session.exec("open('from-command').read()")).value == r"'command\n'"
    copy = await session.fork()
    await copy.run(["sh", "-c", "echo copy > from-command"])
    assert (await copy.exec("open('from-command').read()")).value == r"'copy\n'"
    assert (await session.run(["cat", "from-command"])).stdout == "command\n"


async def test_how_a_command_ends_is_told(session: Sandbox) -> None:
    """Kills: exit codes of signals not as a shell counts them, output cut without saying so."""
    assert (await session.run(["sh", "-c", "exit 7"])).exit_code == 7
    assert (await session.run(["sh", "-c", "kill -TERM $$"])).exit_code == 128 + 15
    flood = await session.run(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo end"])
    assert (flood.exit_code, flood.truncated) == (0, True)
    assert flood.stdout.endswith("end\n")
    assert len(flood.stdout) < 2 * LIMITS.output_bytes
    missing = await session.run(["no-such-program"])
    assert (missing.status, missing.exit_code) == ("error", None)
    outside = await session.run(["pwd"], cwd="../..")
    assert outside.status == "error", outside
    assert (await session.run(["cat"], stdin=b"a\0b" * 100_000)).truncated
    env = await session.run(["sh", "-c", 'echo "$A-$HOME"'], env={"A": "b c"})
    assert env.stdout.startswith("b c-/")


async def test_a_late_command_goes_with_all_it_started(session: Sandbox) -> None:
    """Kills: only the command itself is killed; its grandchildren keep the pipe or live on."""
    await session.exec("x = 1")
    start_s = time.monotonic()
    tree = "(sleep 60.5 & setsid sleep 60.5 & wait) & sleep 60.5"
    late = await session.run(["sh", "-c", f"echo before; {tree}"], timeout_s=0.5)
    assert (late.status, late.stdout, late.exit_code) == ("timeout", "before\n", None)
    assert time.monotonic() - start_s < 10
    left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 60.5'"
    assert (await session.run(["sh", "-c", left])).stdout == "0\n"
    assert (await session.exec("x")).value == "1"


async def test_a_cancelled_command_is_stopped(session: Sandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await session.run(["sh", "-c", "while :; do echo x >> grows; done"])
    before = len(await session.read("grows"))
    await asyncio.sleep(0.2)
    assert len(await session.read("grows")) == before


@pytest.mark.bubblewrap
async def test_background_programs_of_commands_live_on_and_end_with_the_session() -> None:
    """Kills: strays of one session killed with those of another, or of the interpreter."""
    pool = open_pool(settings("bubblewrap"))
    session = await pool.open()
    serve = "nohup sh -c 'while :; do date >> log; sleep 0.05; done' > /dev/null 2>&1 &"
    assert (await session.run(["sh", "-c", serve])).ok
    copy = await session.fork()
    await copy.close()
    assert (await session.exec("while True: pass", timeout_s=0.3)).status == "timeout"
    before = len(await session.read("log"))
    await asyncio.sleep(0.5)
    assert len(await session.read("log")) > before
    await pool.close()


async def test_a_directory_is_listed(session: Sandbox) -> None:
    await session.exec("import os; os.makedirs('d/e'); os.symlink('d', 'l'); os.mkfifo('p')")
    await session.exec("open('d/f', 'w').write('abc')")
    kinds = {(entry.name, entry.kind, entry.size_bytes) for entry in await session.entries()}
    assert kinds >= {("d", "directory", 0), ("l", "link", 0), ("p", "other", 0)}
    assert [(e.name, e.size_bytes) for e in await session.entries("d")] == [("e", 0), ("f", 3)]
    for path, error in {
        "nothing": FileNotFoundError,
        "l": PermissionError,
        "../..": PermissionError,
        "/etc": PermissionError,
        "d/f": NotADirectoryError,
    }.items():
        with pytest.raises(error):
            await session.entries(path)


async def test_what_does_not_fit_waits_and_is_told_why(backend: Backend) -> None:
    pressure = Pressure(sessions=2, wait_s=0.3)
    pool = ForkServerPool(
        SandboxSettings(backend=backend, allow_unisolated=backend == "process", pressure=pressure)
    )
    one, other = await pool.open(), await pool.open()
    with pytest.raises(SandboxError, match=r"sandbox\.pressure\.sessions"):
        await pool.open()
    with pytest.raises(SandboxError, match=r"sandbox\.pressure\.sessions"):
        await one.fork()
    waiting = asyncio.create_task(one.fork())
    await other.close()
    copy = await waiting
    assert (await copy.exec("1")).value == "1"
    await pool.close()


async def test_sessions_are_spread_over_the_supervisors(backend: Backend) -> None:
    """Kills: one supervisor for all, whose end would take every session along."""
    pool = ForkServerPool(
        SandboxSettings(backend=backend, allow_unisolated=backend == "process", supervisors=2)
    )
    sessions = [await pool.open() for _ in range(4)]
    assert pool.loads() == [2, 2]
    await sessions[0].close()
    sessions[0] = await pool.open()
    assert pool.loads() == [2, 2]
    await pool.close()


@pytest.mark.bubblewrap
@pytest.mark.cgroup
async def test_a_tree_that_takes_too_much_memory_loses_processes(session_limit: int) -> None:
    """Kills: a session without a cgroup of its own: each of these stays below its own limit."""
    pool = open_pool(settings("bubblewrap"))
    session = await pool.open()
    await session.exec("import subprocess, sys; kept = 1")
    await asyncio.sleep(0.3)  # the session is moved beside its first cells
    hog = "b = bytearray(100 * 2**20); print(flush=True); import time; time.sleep(2)"
    code = f"""
children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", {hog!r}]) for _ in range(8)]
sorted(child.wait() for child in children)
"""
    result = await session.exec(code, timeout_s=9)
    codes = eval(result.value or "[]")
    assert result.status == "oom" or codes.count(-9) >= 8 - session_limit // (100 * 2**20), result
    assert (await session.exec("1")).ok
    await pool.close()


@pytest.fixture
def session_limit() -> int:
    return session_bounds(LIMITS).memory_bytes or 0

"""Commands, listings, and what follows when an interpreter is lost.

Mutants seen caught: see the docstrings.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import ForkUnsupported, SandboxError
from agentrl.sandbox import AfterTimeout, Backend, Limits, Pressure, Sandbox, SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox.cgroup import session_bounds
from agentrl_sandbox.inside.processes import descendants
from agentrl_sandbox.reaping.owner import LeaseOwner
from tests.support.pools import LONGER_S, opened, sizes

BACKENDS = [
    pytest.param("namespaces", id="namespaces", marks=pytest.mark.namespaces),
    pytest.param("bubblewrap", id="bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param("process", id="process"),
]
LIMITS = Limits(wall_s=60.0, memory_bytes=256 * 2**20, disk_bytes=8 * 2**20, output_bytes=4096)
ENDLESS = "while True: pass"
LOSSES = {
    ENDLESS: "timeout",
    "import os; os._exit(3)": "crash",
    "import os; os.kill(os.getpid(), 11)": "crash",
    "b = bytearray(2**40)": "oom",
    "import os; os.write(3, b'x' * 4096)": "violation",
    "import os; os.close(3); import time; time.sleep(600)": "violation",
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
    async with opened(settings(backend)) as pool:
        yield await pool.open()


@pytest.mark.parametrize("code", LOSSES)
async def test_a_restored_session_is_as_it_was_before_the_cell(backend: Backend, code: str) -> None:
    """Kills: a spare that is never promoted, one made after the cell, names of a fresh one."""
    async with opened(settings(backend, "restore")) as pool:
        session = await pool.open()
        await session.exec(
            "import os, random\nnames = ['kept']\nos.makedirs('below'); os.chdir('below')"
        )
        await session.exec("random.seed(7)")
        expected = (await session.exec("state = random.getstate(); random.random()")).value
        await session.exec("random.setstate(state)")
        for timeout_s in LONGER_S if code == ENDLESS else LONGER_S[-1:]:
            lost = await session.exec(
                f"names.append('lost'); open('file', 'w').close()\n{code}", timeout_s=timeout_s
            )
            if "file" in await sizes(session, "below"):
                break
        else:
            pytest.fail("the code did not get that far")
        assert lost.status == LOSSES[code], lost
        assert "variables are as before the cell" in (lost.error or "")
        assert (
            await session.exec("names, os.path.basename(os.getcwd())")
        ).value == "(['kept'], 'below')"
        assert (await session.exec("random.random()")).value == expected
        assert await session.read("below/file") == b""
        assert (await session.exec("names.append('again'); len(names)")).value == "2"
        again = await session.exec(code, timeout_s=0.5 if code == ENDLESS else None)
        assert again.status == LOSSES[code], again
        assert (await session.exec("names")).value == "['kept', 'again']"


async def test_threads_cost_a_session_its_restoring_and_nothing_else(backend: Backend) -> None:
    async with opened(settings(backend, "restore")) as pool:
        session = await pool.open()
        await session.exec("import threading; stop = threading.Event()")
        thread = "thread = threading.Thread(target=stop.wait, daemon=True); thread.start()"
        await session.exec(thread)
        lost = await session.exec(ENDLESS, timeout_s=0.3)
        assert (lost.status, "variables are lost" in (lost.error or "")) == ("timeout", True)
        assert "NameError" in ((await session.exec("stop")).error or "")


@pytest.mark.parametrize("code", LOSSES)
async def test_an_ended_session_says_so_for_good(backend: Backend, code: str) -> None:
    """Kills: an ended session that runs on, one that raises as if the sandbox were broken."""
    async with opened(settings(backend, "end")) as pool:
        session = await pool.open()
        lost = await session.exec(code, timeout_s=0.3 if code == ENDLESS else None)
        assert lost.status == LOSSES[code]
        for _ in range(2):
            refused = await session.exec("print('alive')")
            assert (refused.status, refused.stdout) == (LOSSES[code], "")
            assert "has ended" in (refused.error or "")
        with pytest.raises(ForkUnsupported, match="has ended"):
            await session.fork()
        await session.close()
        assert (await (await pool.open()).exec("1")).value == "1"


async def test_a_cell_that_is_cancelled_is_taken_back(backend: Backend) -> None:
    async with opened(settings(backend, "restore")) as pool:
        session = await pool.open()
        await session.exec("names = ['kept']")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await session.exec("names.append('lost')\nwhile True: pass")
            assert (await session.exec("names")).value == "['kept']"


async def test_who_stops_waiting_for_a_cancelled_cell_takes_nobody_along(backend: Backend) -> None:
    """Kills: the end of an interpreter that is cancelled with whoever waits for it."""
    async with opened(settings(backend, "restore")) as pool:
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
    nap = f"600.{os.getpid()}"
    tree = f"(sleep {nap} & setsid sleep {nap} & wait) & sleep {nap}"
    for timeout_s in LONGER_S:
        late = await session.run(["sh", "-c", f"echo before; {tree}"], timeout_s=timeout_s)
        if late.stdout:
            break
    else:
        pytest.fail("nothing was printed")
    assert (late.status, late.stdout, late.exit_code) == ("timeout", "before\n", None)
    left = f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep {nap}'"
    assert (await session.run(["sh", "-c", left])).stdout == "0\n"
    assert (await session.exec("x")).value == "1"


async def test_a_cancelled_command_is_stopped(session: Sandbox) -> None:
    for after_s in LONGER_S:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await session.run(["sh", "-c", "while :; do echo x >> grows; done"])
        if before := (await sizes(session)).get("grows"):
            break
    else:
        pytest.fail("the command did not get that far")
    await asyncio.sleep(0.2)
    assert len(await session.read("grows")) == before


@pytest.mark.namespaces
async def test_background_programs_of_commands_live_on_and_end_with_the_session() -> None:
    """Kills: strays of one session killed with those of another, or of the interpreter."""
    async with opened(settings("namespaces")) as pool:
        session = await pool.open()
        serve = "nohup sh -c 'while :; do date >> log; sleep 0.05; done' > /dev/null 2>&1 &"
        assert (await session.run(["sh", "-c", serve])).ok
        await until_longer(session, 0)
        copy = await session.fork()
        await copy.close()
        assert (await session.exec(ENDLESS, timeout_s=0.3)).status == "timeout"
        await until_longer(session, (await sizes(session))["log"] + 100)


async def until_longer(session: Sandbox, than: int) -> None:
    """Wait until a log has grown."""
    async with asyncio.timeout(60):
        while (await sizes(session)).get("log", 0) <= than:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


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
    impatient = Pressure(sessions=2, wait_s=0.3)
    async with opened(replace(settings(backend), pressure=impatient)) as pool:
        one, _ = await pool.open(), await pool.open()
        with pytest.raises(SandboxError, match=r"sandbox\.pressure\.sessions"):
            await pool.open()
        with pytest.raises(SandboxError, match=r"sandbox\.pressure\.sessions"):
            await one.fork()
    async with opened(replace(settings(backend), pressure=Pressure(sessions=2))) as pool:
        one, other = await pool.open(), await pool.open()
        waiting = asyncio.create_task(one.fork())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await other.close()
        copy = await waiting
        assert (await copy.exec("1")).value == "1"


def loads(pool: ForkServerPool) -> list[int]:
    """Return the number of opened sessions of each supervisor."""
    return [slot.load() for slot in pool._slots]  # pyright: ignore[reportPrivateUsage]


async def test_sessions_are_spread_over_the_supervisors(backend: Backend) -> None:
    """Kills: one supervisor for all, whose end would take every session along."""
    async with opened(replace(settings(backend), supervisors=2)) as pool:
        sessions = [await pool.open() for _ in range(4)]
        assert loads(pool) == [2, 2]
        await sessions[0].close()
        sessions[0] = await pool.open()
        assert loads(pool) == [2, 2]


@pytest.mark.namespaces
@pytest.mark.cgroup
async def test_a_tree_that_takes_too_much_memory_loses_processes(session_limit: int) -> None:
    """Kills: a session without a cgroup of its own: each of these stays below its own limit."""
    async with opened(settings("namespaces")) as pool:
        session = await pool.open()
        await session.exec("import subprocess, sys; kept = 1")
        await until_moved()
        hog = "import sys; b = bytearray(100 * 2**20); print(flush=True); sys.stdin.read()"
        code = f"""
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
command = [sys.executable, "-I", "-S", "-c", {hog!r}]
children = [subprocess.Popen(command, **pipes) for _ in range(8)]
for child in children: child.stdout.readline()
sorted(child.communicate() and child.returncode for child in children)
"""
        result = await session.exec(code)
        codes = eval(result.value or "[]")
        least = 8 - session_limit // (100 * 2**20)
        assert result.status == "oom" or codes.count(-9) >= least, result
        assert (await session.exec("1")).ok


async def until_moved() -> None:
    """Wait until a keeper and its interpreter are in the cgroup of their session."""
    async with asyncio.timeout(60):
        while sum(map(in_session, descendants(os.getpid()))) < 2:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


def in_session(pid: int) -> bool:
    """Return whether the memory of a process counts for a session of ours."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cgroup").read_text()
        place = rf"^(\d+:memory:|0::).*/agentrl-{LeaseOwner.current().text}-.*/session-"
        return re.search(place, text, re.MULTILINE) is not None
    return False


@pytest.fixture
def session_limit() -> int:
    return session_bounds(LIMITS).memory_bytes or 0


async def test_cells_and_commands_share_the_slots_of_the_pool(backend: Backend) -> None:
    """`sandbox.pressure.cells`. Mutant: a cell takes no slot."""
    pressure = Pressure(cells=1, wait_s=0.3)
    async with opened(replace(settings(backend), pressure=pressure)) as pool:
        busy, other = await pool.open(), await pool.open()
        running = asyncio.create_task(busy.exec("import time; time.sleep(2)"))
        await asyncio.sleep(0.5)
        for call in (other.exec("1"), other.run(["true"])):
            with pytest.raises(SandboxError, match=r"sandbox\.pressure\.cells=1"):
                await call
        assert (await running).status == "ok"
        assert (await other.exec("1")).value == "1"


FILL = """
import asyncio
from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxSettings
from tests.support.pools import opened

async def main():
    async with opened(SandboxSettings(backend="process", allow_unisolated=True)) as pool:
        session = await pool.open()
        await session.write("small", b"x")
        try:
            await session.write("large", bytes(2**22))
        except SandboxError as error:
            print(error)
        await session.close()

asyncio.run(main())
"""


@pytest.mark.namespaces
def test_a_full_disk_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    """Where sessions have bare directories on it; a limit of their own is theirs."""
    mount = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} -c "$1"'
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", FILL],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    text = "'large' could not be handled (write): [Errno 28] No space left on device"
    assert ran.stdout.strip() == text

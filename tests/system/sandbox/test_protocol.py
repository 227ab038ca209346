"""Frames, forgeries, late replies, and the deaths of supervisor and host."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Limits, SandboxSettings
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox import session_forks as family_module
from agentrl_sandbox.inside.frames import (
    HEADER,
    ChannelFrame,
    ChannelFrameReader,
    FrameError,
    encode,
)
from agentrl_sandbox.inside.output import ClippedOutput, OutputCapture, open_for_append
from agentrl_sandbox.inside.processes import descendants
from tests.support.pools import LONGER_S, opened, sizes
from tests.support.processes import parent_of, runs
from tests.support.watchdog import watched

LIMITS = Limits(wall_s=60.0)
BARE = SandboxSettings(backend="process", allow_unisolated=True, limits=LIMITS)
BACKENDS = [
    pytest.param(SandboxSettings(limits=LIMITS), id="namespaces", marks=pytest.mark.namespaces),
    pytest.param(
        SandboxSettings(backend="bubblewrap", limits=LIMITS),
        id="bubblewrap",
        marks=pytest.mark.bubblewrap,
    ),
    pytest.param(BARE, id="process"),
]
BODIES = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20), max_size=4)


@pytest.fixture(params=BACKENDS)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[ForkServerPool]:
    async with opened(request.param) as pool:
        yield pool


@pytest.fixture
async def session(pool: ForkServerPool) -> SandboxSession:
    return await pool.open()


@given(st.lists(st.tuples(BODIES, st.binary(max_size=50)), max_size=5), st.data())
def test_frames_survive_any_cut(
    sent: list[tuple[dict[str, object], bytes]], data: st.DataObject
) -> None:
    """Kills: consuming too much or too little of the buffer, dropping the blob."""
    stream = b"".join(encode(body, blob) for body, blob in sent)
    reader, got, at = ChannelFrameReader(), list[ChannelFrame](), 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        got += reader.feed(stream[at : at + size])
        at += size
    assert [(frame.body, frame.blob) for frame in got] == sent


@given(st.binary(max_size=200))
def test_garbage_is_a_frame_error_or_waits_for_more(garbage: bytes) -> None:
    reader = ChannelFrameReader(json_bytes_max=100, blob_bytes_max=100)
    try:
        for frame in reader.feed(garbage):
            assert isinstance(frame.body, dict)
    except FrameError:
        return


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(2**31, 0),
        HEADER.pack(0, 2**31),
        HEADER.pack(4, 0) + b"null",
        HEADER.pack(200_000, 0) + b"[" * 200_000,
        HEADER.pack(2, 0) + b"\xff\xff",
    ],
)
def test_a_broken_frame_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(FrameError):
        ChannelFrameReader().feed(data)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 60))
def test_clipped_output_keeps_head_and_tail(pieces: list[bytes], limit: int) -> None:
    """Kills: keeping a middle, losing order across pieces, a wrong count of what is left out."""
    clipped = ClippedOutput(limit)
    for piece in pieces:
        clipped.add(piece.replace(b"\n", b".").decode("latin-1").encode("ascii", "replace"))
    whole = "".join(
        p.replace(b"\n", b".").decode("latin-1").encode("ascii", "replace").decode() for p in pieces
    )
    half = limit // 2
    if len(whole) <= 2 * half:
        assert (clipped.text(), clipped.truncated) == (whole, False)
        return
    head, note, tail = clipped.text().split("\n")
    assert (head, tail) == (whole[:half], whole[-half:])
    assert note == f"... {len(whole) - 2 * half} bytes left out ..."


@given(st.lists(st.integers(1, 90), max_size=20), st.integers(2, 61), st.integers(4, 200))
def test_captured_output_keeps_head_and_tail(sizes: list[int], limit: int, file: int) -> None:
    """Kills: a crop that forgets what it left out, twice counts it, or takes the wrong part."""
    fd, whole = os.memfd_create("out"), b""
    into = open_for_append(fd)
    capture = OutputCapture(fd, limit, file_bytes=file)
    for number, size in enumerate(sizes):
        piece = bytes([65 + number]) * min(size, capture.piece_bytes)
        whole += piece
        capture.wrote(os.write(into, piece))
        assert os.fstat(fd).st_size <= 2 * capture.piece_bytes + limit + 2
    text, truncated = capture.take()
    expected = ClippedOutput(limit)
    expected.add(whole)
    assert (text, truncated) == (expected.text(), expected.truncated)
    assert capture.take() == ("", False)
    os.close(into)
    os.close(fd)


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", None])
def test_a_kill_in_the_middle_of_a_crop_loses_neither_head_nor_tail(
    call: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: emptying the file before what is kept is written, cropping down to the limit."""
    fd = os.memfd_create("out")
    into = open_for_append(fd)
    whole = bytes(range(65, 91)) * 4
    writer = OutputCapture(fd, 10, file_bytes=40)
    with monkeypatch.context() as patch:
        if call:
            patch.setattr(os, call, Mock(side_effect=SystemExit))
        with contextlib.suppress(SystemExit):
            writer.wrote(os.write(into, whole))
    text, truncated = OutputCapture(fd, 10).take(dead=True)
    left_out = 1 if call is None else len(whole) - 10
    assert text == f"ABCDE\n... {left_out} bytes or more left out ...\nVWXYZ"
    assert truncated
    os.close(into)
    os.close(fd)


FORGE = """
import json, os, struct, sys
def send(body, fd=3):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    os.write(fd, struct.pack(">II", len(text), 0) + text)
def nonce():
    frame = sys._getframe()
    while "request" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["request"]["nonce"]
lie = {"status": "ok", "value": "ALL TESTS PASSED", "error": None, "truncated": False}
lie |= {"stdout": "", "stderr": "", "images": []}
def wait_to_go():
    import time
    while not os.path.exists("go"): time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "attack",
    [
        "send({'nonce': '0' * 16, **lie})",
        "send(lie)",
        "send(b'[' * 100_000)",
        "send(b'null')",
        "os.write(3, struct.pack('>II', 2**31, 0))",
        "os.write(3, struct.pack('>II', 10, 2**30))",
        "send({**lie, 'nonce': nonce(), 'images': [-1]})",
        "send({**lie, 'nonce': nonce(), 'stdout': 'x' * 2**17})",
        "send({'nonce': nonce(), 'status': ['ok']})",
        "send(b'{\"nonce\": \"' + nonce().encode() + b'\", \"status\": ' + b'[' * 940 + b']' * 940"
        " + b'}')",
        "send({**lie, 'nonce': nonce(), 'images': [0] * 5})",
        "lie.update(nonce=nonce(), images=[0] * 300_000)\n"
        "send(json.dumps(lie, separators=(',', ':')).encode())",
        "send({**lie, 'nonce': nonce(), 'value': '\\ud800'})",
        "send(b'1' * 700_000)",
        "send({'nonce': nonce(), 'status': 'timeout'})",
        "os.close(3)",
    ],
)
@watched
async def test_a_forged_message_ends_the_interpreter_and_nothing_else(
    session: SandboxSession, attack: str
) -> None:
    await session.write("forge.py", FORGE.encode())
    load = "exec(open('forge.py').read())"
    assert (await session.exec(load)).ok
    result = await session.exec(f"{attack}\nimport time; time.sleep(600)")
    assert result.status in ("violation", "crash"), result
    assert result.value is None
    assert [(await session.exec(f"{n}")).value for n in range(5)] == list("01234")


async def test_a_stolen_nonce_buys_one_lie_and_no_later_reply(session: SandboxSession) -> None:
    """The code may lie about its own cell; it cannot shift the replies of the cells after it."""
    await session.exec(FORGE)
    result = await session.exec("send({'nonce': nonce(), **lie})\nwait_to_go()")
    assert result.value == "ALL TESTS PASSED"
    await session.write("go", b"")
    await asyncio.sleep(0.4)  # the true reply arrives, which nobody expects any more
    result = await session.exec("'honest'")
    assert (result.status, result.value) == ("violation", None)
    assert [(await session.exec(f"{n}")).value for n in range(5)] == list("01234")


async def test_a_message_between_cells_is_a_violation_told_with_the_next(
    session: SandboxSession,
) -> None:
    await session.exec(FORGE)
    late = "threading.Thread(target=lambda: (wait_to_go(), send(lie))).start()"
    assert (await session.exec(f"import threading, time\n{late}")).ok
    await session.write("go", b"")
    await asyncio.sleep(0.3)
    # Where it comes late, it comes in the middle of this one.
    assert (await session.exec("time.sleep(600)")).status == "violation"
    assert (await session.exec("1")).value == "1"


async def test_a_cancelled_cell_is_stopped_and_its_reply_discarded(session: SandboxSession) -> None:
    for after_s in LONGER_S:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await session.exec("open('ran', 'w').close()\nwhile True: pass")
        assert [(await session.exec(f"{n}")).value for n in range(5)] == list("01234")
        if "ran" in await sizes(session):
            return
    pytest.fail("the code did not get that far")


async def test_a_cancelled_short_cell_leaves_a_late_reply_that_nobody_gets(
    session: SandboxSession,
) -> None:
    for number in range(20):
        task = asyncio.create_task(session.exec(f"'late {number}'"))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        result = await session.exec(f"'right {number}'")
        assert result.value == f"'right {number}'", result


async def test_cells_of_one_session_queue_and_sessions_run_at_once(pool: ForkServerPool) -> None:
    sessions = await asyncio.gather(*(pool.open() for _ in range(8)))
    asked = [(s, n) for n in range(10) for s in sessions]
    results = await asyncio.gather(*(s.exec(f"{n}") for s, n in asked))
    assert [result.value for result in results] == [f"{n}" for _, n in asked]
    busy: list[asyncio.Task[ExecResult]] = []
    for session in sessions:
        assert (await session.exec("1 + 1")).value == "2"
        assert not any(task.done() for task in busy)
        busy.append(asyncio.create_task(session.exec("import time; time.sleep(600)")))
        await asyncio.sleep(0.01)
    for task in busy:
        task.cancel()
    await asyncio.wait(busy)


async def test_half_a_message_is_waited_for_until_the_deadline(session: SandboxSession) -> None:
    await session.exec(FORGE)
    half = "os.write(3, struct.pack('>II', 10, 2**20))"
    assert (await session.exec(half, timeout_s=0.5)).status == "timeout"
    assert (await session.exec("1")).value == "1"


async def test_a_keeper_that_hangs_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(BARE) as pool:
        session = await pool.open()
        keeper = int((await session.exec("import os; os.getppid()")).value or 0)
        monkeypatch.setattr(family_module, "GRACE_S", 0.2)
        os.kill(keeper, signal.SIGSTOP)
        try:
            with pytest.raises(SandboxError, match=r"did not answer within 0\.2 s"):
                await session.read("file")
            with pytest.raises(SandboxError):
                await session.exec("1")
        finally:
            os.kill(keeper, signal.SIGCONT)
        await session.close()


async def test_a_dead_supervisor_fails_what_is_in_flight_and_the_next_open_starts_another(
    pool: ForkServerPool,
) -> None:
    others = descendants(os.getpid())
    session = await pool.open()
    ours = descendants(os.getpid()) - others
    (supervisor,) = [pid for pid in ours if parent_of(pid) == os.getpid()]
    below = descendants(supervisor)
    flying = asyncio.create_task(session.exec("while True: pass"))
    await asyncio.sleep(0.1)
    os.kill(supervisor, signal.SIGKILL)
    async with asyncio.timeout(60):
        with pytest.raises(SandboxError):
            await flying
    await asyncio.to_thread(wait_until, lambda: gone(below))
    with pytest.raises(SandboxError):
        await session.exec("1")
    await session.close()
    fresh = await pool.open()
    assert (await fresh.exec("1 + 1")).value == "2"


HOST = """
import asyncio, sys
from agentrl.sandbox import SandboxSettings
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl_sandbox import ForkServerPool
from tests.support.processes import parent_of, runs

async def main():
    pool = ForkServerPool(SandboxSettings(backend=sys.argv[1], allow_unisolated=True))
    sessions = [await pool.open() for _ in range(3)]
    sessions.append(await sessions[0].fork())
    daemon = "import os, time\\nif os.fork() == 0:\\n os.setsid()\\n while True: time.sleep(1)"
    await asyncio.gather(*(session.exec(daemon) for session in sessions))
    busy = asyncio.create_task(sessions[1].exec("while True: pass"))
    await asyncio.sleep(0.1)
    print("ready", flush=True)
    await busy

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("namespaces", marks=pytest.mark.namespaces),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        "process",
    ],
)
def test_nothing_outlives_a_host_that_is_killed(backend: str, tmp_path: Path, root: Path) -> None:
    paths = os.pathsep.join(str(root / part) for part in (".", "envs", "tools", "sandbox"))
    with subprocess.Popen(
        [sys.executable, "-c", HOST, backend],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
    ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        below = descendants(host.pid)
        assert len(below) > 8
        host.kill()
    wait_until(lambda: gone(below) and not any(tmp_path.iterdir()))


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def gone(pids: set[int]) -> bool:
    return not any(runs(pid) for pid in pids)


def test_nothing_of_the_protocol_unpickles() -> None:
    package = Path(family_module.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py")]
    assert len(sources) > 10
    assert not any("import pickle" in source for source in sources)
    assert json.loads(encode({"a": 1})[HEADER.size :]) == {"a": 1}


async def test_closing_a_session_fails_its_running_cell_at_once(pool: ForkServerPool) -> None:
    session, other = await pool.open(), await pool.open()
    copy = await session.fork()  # so that the keeper goes on
    running = asyncio.create_task(session.exec("while True: pass"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        await session.close()
        with pytest.raises(SandboxError, match="closed"):
            await running
    assert (await copy.exec("1")).value == "1"
    assert (await other.exec("1")).value == "1"


async def test_lone_surrogates_never_reach_the_host(session: SandboxSession) -> None:
    result = await session.exec("raise ValueError('\\ud800')")
    assert (result.error or "").encode()
    code = "class A:\n    def __repr__(self): return '\\ud800'\nA()"
    assert (await session.exec(code)).value == "?"
    assert (await session.exec("print('\\ud800')")).stdout == "\\ud800\n"


async def test_opening_can_be_cancelled_at_any_moment() -> None:
    before = ProcessHoldings.take()
    async with opened(BARE) as pool:
        for after_s in (0, 0.01, *(step / 200 for step in range(10, 30)), 0.2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(after_s):
                    await pool.open()
        session = await pool.open()
        assert (await session.exec("1")).value == "1"
    await check_no_leak(before)

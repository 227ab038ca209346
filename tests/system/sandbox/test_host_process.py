"""Programs of the host that are talked to in lines."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl_sandbox.host_process import STDERR_BYTES, HostProcess, LineTooLong
from tests.support.processes import runs

ENV = {"PATH": "/usr/bin:/bin"}


@asynccontextmanager
async def started(script: str, *, line_bytes: int = 2**16) -> AsyncGenerator[HostProcess]:
    process = await HostProcess.start(["sh", "-c", script], env=ENV, line_bytes=line_bytes)
    try:
        yield process
    finally:
        await process.close()


async def test_lines_go_there_and_back_until_the_end() -> None:
    async with started("read one; echo got $one; echo no line | tr -d '\\n'") as process:
        await process.write(b"word")
        assert await process.read() == b"got word"
        assert await process.read() is None
        assert await process.read() is None
        assert await process.wait_end(30.0)
        assert process.returncode == 0


async def test_a_line_has_a_limit() -> None:
    async with started("head -c 5000 /dev/zero; sleep 100", line_bytes=1000) as process:
        with pytest.raises(LineTooLong, match="more than 1000 bytes"):
            await process.read()


async def test_the_last_words_are_kept_and_no_more() -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo END >&2"
    async with started(script) as process:
        assert await process.read() is None
        assert await process.wait_end(30.0)
        async with asyncio.timeout(30):
            while not process.last_words.endswith("END"):  # noqa: ASYNC110 - a pipe is read
                await asyncio.sleep(0.01)
        assert len(process.last_words) <= STDERR_BYTES


async def test_it_ends_by_itself_when_its_input_does() -> None:
    async with started("trap 'exit 9' TERM; cat; exit 4") as process:
        await process.close(grace_s=60.0)
    assert process.returncode == 4
    with contextlib.suppress(BrokenPipeError):
        await process.write(b"more")
        raise AssertionError("a closed program was written to")


async def test_what_it_started_ends_with_it_in_whatever_session() -> None:
    script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; trap '' TERM; sleep 1000"
    async with started(script) as process:
        lines = [await process.read() for _ in range(2)]
        pids = [process.pid, *(int(line or b"0") for line in lines)]
        assert all(map(runs, pids))
    assert not any(map(runs, pids))
    assert process.returncode == -signal.SIGKILL


async def test_closing_goes_on_when_the_caller_is_cancelled() -> None:
    process = await HostProcess.start(["sleep", "1000"], env=ENV)
    closing = asyncio.create_task(process.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not runs(process.pid)


async def test_a_program_that_cannot_be_started_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no program 'nothing-of-that-name'"):
        await HostProcess.start(["nothing-of-that-name"], env=ENV)
    with pytest.raises(ConfigError, match="is empty"):
        await HostProcess.start([], env=ENV)
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="cannot be started"):
        await HostProcess.start([str(script)], env=ENV)

"""A line that blocks the event loop is named, once for each limit: each test has its own.

Mutants seen caught: frames outside of the loop looked at; a cancelled task looked at never, or one
that is not cancelled interrupted, too; no beats; told more than once; a watch that goes on behind
its block; a stop explained never, at every look, or where nothing is stopped; a process that ends
before it was told to, or while its loop goes on.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.runtime.loop_watch import watch_loop

HERE = os.path.relpath(__file__)


async def block(seconds: float) -> None:
    """Keep the loop."""
    time.sleep(seconds)  # noqa: ASYNC251


async def test_a_line_that_blocks_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(limit_s=0.2):
        for _ in range(2):
            await asyncio.sleep(0.1)
            await block(0.6)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        f"{HERE}:{block.__code__.co_firstlineno + 2}, in block blocks all "
        "episodes, for 0.2 s so far: an `async def` must not block"
    )


async def test_what_waits_as_it_should_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    with watch_loop(limit_s=0.21):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(time.sleep, 0.5)
        await block(0.1)
    await block(0.5)  # it is over
    assert not caplog.records


async def test_a_loop_that_others_block_blames_nobody_who_called_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Frames outside of the loop, such as `call` here, are not what blocks it."""

    async def main() -> None:
        with watch_loop(limit_s=0.22):
            asyncio.get_running_loop().call_soon(time.sleep, 0.6)
            await asyncio.sleep(0.1)

    def call() -> None:
        asyncio.run(main())

    await asyncio.to_thread(call)
    assert not caplog.records


@contextmanager
def begun(program: Path) -> Generator["subprocess.Popen[str]"]:
    """Start a program that a Ctrl-C reaches, wait for its first line, and kill it at the end."""
    running = subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        yield running
    finally:
        running.kill()


@pytest.mark.parametrize("blocks", [True, False])
def test_one_ctrl_c_ends_what_blocks_and_waits_for_what_does_not(
    blocks: bool, tmp_path: Path
) -> None:
    wait = "time.sleep(60)" if blocks else "await asyncio.sleep(60)"
    program = tmp_path / "blocking.py"
    program.write_text(
        textwrap.dedent(f"""
            import asyncio, time
            from agentrl.runtime.loop_watch import watch_loop

            async def step():
                try:
                    {wait}
                except asyncio.CancelledError:
                    await asyncio.sleep(1.5)  # what is to be finished
                    print("finished")
                    raise

            async def main():
                with watch_loop(limit_s=0.3):
                    print("begun", flush=True)
                    await step()

            asyncio.run(main())
        """)
    )
    with begun(program) as running:
        running.send_signal(signal.SIGINT)
        said, told = running.communicate(timeout=30)
    assert "KeyboardInterrupt" in told
    assert ("blocks all episodes" in told) is blocks
    assert told.count("Ctrl-C twice more does not wait") == 1
    assert said == ("" if blocks else "finished\n")


QUERY = "with recursive t(x) as (select 1 union all select x + 1 from t) select count(*) from t"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("wait", "hears"),
    [("await asyncio.sleep(60)", True), ("await late()", True), (f"query({QUERY!r})", False)],
)
def test_a_stop_ends_what_blocks_in_code_that_hears_no_signal(
    number: signal.Signals, wait: str, hears: bool, tmp_path: Path
) -> None:
    """Of SQLite, say: Python's handlers run once it returns, which it does not."""
    program = tmp_path / "query.py"
    program.write_text(
        textwrap.dedent(f"""
            import asyncio, signal, sqlite3, time
            from agentrl.runtime.loop_watch import watch_loop

            base = sqlite3.connect(":memory:")
            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))

            def query(text):
                base.execute(text).fetchone()

            async def late():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(1.5)
                    time.sleep(60)  # a second Ctrl-C ends this one

            async def step():
                try:
                    {wait}
                finally:
                    print("left", flush=True)

            async def main():
                with watch_loop(limit_s=0.3):
                    print("begun", flush=True)
                    await step()

            asyncio.run(main())
        """)
    )
    with begun(program) as running:
        time.sleep(1.0)
        assert running.poll() is None, "nobody has asked for a stop"
        running.send_signal(number)
        said, told = running.communicate(timeout=30)
    wanted = f"query does not return, and hears no signal: the process ends now, by {number.name}"
    assert (wanted in told) is not hears
    assert (running.returncode == 128 + number) is not hears
    assert (said == "left\n") is hears

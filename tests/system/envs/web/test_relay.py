"""What a browser says is bounded before the driver reads it; a driver that ends is no end of a run.

Mutants seen caught: no limit of events; a limit that is one off; a budget that is never filled
again; the session left out of what stands for a message.
"""

import gzip
import json
import os
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import call
from agentrl.errors import EnvError
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.browser.relay import (
    BURST_BYTES,
    BURST_EVENTS,
    EVENTS_PER_S,
    MAX_EVENT_BYTES,
    MAX_REPLY_BYTES,
    MessageGate,
)
from tests.support.processes import children, command_line
from tests.support.watchdog import watched_loop
from tests.support.web_pages import PagesPack
from tests.system.envs.web.test_site import get, listening, world


class Clock:
    """A time that goes on when it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def message(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\0"


def event(session: str = "A1", size: int = 0) -> bytes:
    return message(method="X.y", params={"x": "x" * size}, sessionId=session)


def crash(session: str = "A1") -> bytes:
    return message(method="Inspector.targetCrashed", params={}, sessionId=session)


@given(st.lists(st.binary(max_size=40).filter(lambda part: b"\0" not in part)), st.data())
def test_what_is_within_the_limits_goes_on_as_it_came(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(part + b"\0" for part in parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    gate = MessageGate()
    assert b"".join(gate.feed(piece) for piece in pieces) == stream


def test_an_event_over_the_limit_is_the_crash_of_its_page() -> None:
    gate = MessageGate()
    fits = event(size=MAX_EVENT_BYTES - len(event()) + 1)
    assert len(fits) == MAX_EVENT_BYTES + 1
    assert gate.feed(fits) == fits
    assert gate.feed(event(size=MAX_EVENT_BYTES)) == crash()
    assert gate.feed(event()) == b"", "no more is heard of that page"
    assert gate.feed(event("B2")) == event("B2")
    assert gate.feed(message(id=7, result={}, sessionId="A1")) != b"", "answers still come"


def test_an_answer_over_the_limit_is_an_error() -> None:
    gate = MessageGate()
    answer = message(id=12, result={"x": "x" * MAX_REPLY_BYTES}, sessionId="A1")
    passed = b"".join(gate.feed(answer[at : at + 2**20]) for at in range(0, len(answer), 2**20))
    told = json.loads(passed.removesuffix(b"\0"))
    assert (told["id"], told["sessionId"]) == (12, "A1")
    assert told["error"]["message"] == "the answer is over the limit"
    assert gate.feed(event()) == event(), "the page goes on"


def test_events_are_counted_for_each_page_and_come_free_again() -> None:
    clock = Clock()
    gate = MessageGate(clock)
    assert gate.feed(event() * BURST_EVENTS) == event() * BURST_EVENTS
    clock.now_s = 1.0
    assert gate.feed(event() * EVENTS_PER_S) == event() * EVENTS_PER_S
    assert gate.feed(event() * 3) == crash()
    assert gate.feed(event("B2")) == event("B2")


def test_bytes_of_events_are_counted_too() -> None:
    gate = MessageGate(Clock())
    one = event(size=MAX_EVENT_BYTES // 2)
    count = BURST_BYTES // len(one)
    assert gate.feed(one * count) == one * count
    assert gate.feed(one) == crash()


GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s"


@pytest.mark.parametrize("packing", [b"gzip", b"br"])
async def test_a_packed_answer_is_unpacked_up_to_a_limit(packing: bytes) -> None:
    bomb = gzip.compress(bytes(100 * 2**20))
    assert len(bomb) < 2**17
    async with listening(GZIP % (packing, len(bomb), bomb)) as (url, _):
        site = world(start_url=url, app=None)
        async with watched_loop():
            answer = await site.answer(get(url))
        await site.close()
    assert answer is not None
    assert answer.status == 502
    assert b"limit is" in answer.body or b"only gzip" in answer.body


async def test_a_small_packed_answer_is_the_pages() -> None:
    data = gzip.compress(b"hello")
    async with listening(GZIP % (b"gzip", len(data), data)) as (url, _):
        site = world(start_url=url, app=None)
        answer = await site.answer(get(url))
        await site.close()
    assert answer is not None
    assert (answer.status, answer.body) == (200, b"hello")
    assert "content-encoding" not in answer.headers


@pytest.mark.chromium
async def test_a_driver_that_ends_takes_its_episodes_and_nothing_else() -> None:
    pool = await BrowserPool.open(BrowserSettings(call_s=30, warm=0))
    env = WebEnv(pack=PagesPack(), browser=pool)
    try:
        await env.reset(seed=0)
        before = drivers()
        assert len(before) == 1
        os.kill(before[0], signal.SIGKILL)
        with pytest.raises(EnvError):
            await env.step(call("goto", url="/other"))
        for _ in range(3):
            try:
                await env.reset(seed=0)
                break
            except EnvError:
                await pool.rest()
        assert "Nothing here" in (await env.step(call("goto", url="/other")))[0].messages[0].text
        assert drivers()
        assert drivers() != before
    finally:
        await env.close()
        await pool.close()


def drivers() -> list[int]:
    return [pid for pid in children(os.getpid()) if b"run-driver" in command_line(pid)]

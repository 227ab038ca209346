"""Engines that fail: who gets no new work, who is probed, and where what failed goes.

Mutants seen caught: one failure more than the rule's; failures of before that delay a probe; a
probe never noted, never let go, or beside another; an answer that leaves it down; a due engine that
gets nothing; a wrong request counted; nobody asked while none is up; what failed tried there again;
a home that is down kept.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.health import EngineHealth, EngineHealthRule
from agentrl.engine.router import EngineRouter
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError
from agentrl.policy import Completion, GenerateRequest
from agentrl.simulate.clock import run_virtual

RULE = EngineHealthRule(failures=2, probe_after_s=10.0)


def test_it_goes_down_after_failures_in_a_row_and_one_request_probes_it() -> None:
    health = EngineHealth().on_failure("a", RULE, 0.0).on_answer().on_failure("b", RULE, 1.0)
    assert health.state(1.0) == "up"
    health = health.on_failure("c", RULE, 2.0)
    assert (health.state(11.9), health.state(12.0)) == ("down", "due")
    assert health.on_request("early", 11.9) == health
    probed = health.on_request("p", 12.0)
    assert probed.state(99.0) == "probing"
    assert probed.on_request("q", 99.0) == probed
    assert probed.on_failure("p", RULE, 20.0).state(29.9) == "down"
    assert probed.on_failure("p", RULE, 20.0).state(30.0) == "due"
    assert probed.on_failure("older", RULE, 20.0).state(20.0) == "probing"
    assert probed.on_end("other").state(20.0) == "probing"
    assert probed.on_end("p").state(20.0) == "due"
    assert probed.on_answer() == EngineHealth()


def test_failures_of_before_delay_no_probe() -> None:
    health = (
        EngineHealth()
        .on_failure("a", RULE, 0.0)
        .on_failure("b", RULE, 0.0)
        .on_failure("late", RULE, 9.0)
    )
    assert health.state(10.0) == "due"


EVENTS = st.lists(
    st.tuples(st.sampled_from(("ask", "answer", "fail", "let go", "wait")), st.integers(0, 4)),
    max_size=60,
)


@settings(max_examples=300)
@given(EVENTS, st.integers(1, 4))
def test_in_any_order_at_most_one_probe_flies_and_every_engine_can_come_back(
    events: Sequence[tuple[str, int]], failures: int
) -> None:
    rule = EngineHealthRule(failures=failures, probe_after_s=5.0)
    health, now_s, row = EngineHealth(), 0.0, 0
    flying: list[str] = []
    for number, (event, which) in enumerate(events):
        if event == "wait":
            now_s += which
        elif event == "ask" and health.state(now_s) in ("up", "due"):
            was, name = health.state(now_s), str(number)
            health = health.on_request(name, now_s)
            flying.append(name)
            assert health.state(now_s) == ("up" if was == "up" else "probing")
        elif event != "ask" and flying:
            name = flying.pop(which % len(flying))
            if event == "answer":
                health, row = health.on_answer(), 0
            elif event == "fail":
                health, row = health.on_failure(name, rule, now_s), row + 1
            else:
                health = health.on_end(name)
        assert (health.state(now_s) == "up") == (row < failures)
        # Who probes it is in flight, so that its end brings the engine up, down or due.
        assert not health.probe or health.probe in flying
    if health.state(now_s) == "down":
        assert health.state(now_s + rule.probe_after_s) == "due"


class Failing(ScriptedEngine):
    """Fails while `broken`, as slowly as it answers."""

    def __init__(self) -> None:
        super().__init__(lambda request: (5, 0), token_s=1.0)
        self.broken = False
        self.asked: list[str] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.append(request.id)
        if self.broken:
            await asyncio.sleep(1.0)
            raise EngineError("the card is gone")
        return await super().generate(request)


def ask(name: str) -> GenerateRequest:
    return GenerateRequest(id=f"{name}/0/0", prompt=(1, 2, 3), max_new_tokens=4)


def test_a_failing_engine_gets_no_new_work_until_a_probe_is_answered() -> None:
    async def main() -> None:
        bad, good = Failing(), Failing()
        router = EngineRouter([bad, good], health=RULE)
        bad.broken = True
        for name in "ab":
            with pytest.raises(EngineError, match="card is gone"):
                await router.generate(ask(name))
        assert router.up == (False, True)
        for name in "cd":
            await router.generate(ask(name))
        assert len(bad.asked) == 2
        await asyncio.sleep(10)
        probe = asyncio.create_task(router.generate(ask("probe")))
        await asyncio.sleep(0)
        await router.generate(ask("e"))
        assert [*bad.asked[2:], good.asked[-1]] == ["probe/0/0", "e/0/0"]
        with pytest.raises(EngineError):
            await probe
        bad.broken = False
        await router.generate(ask("f"))
        assert len(bad.asked) == 3
        await asyncio.sleep(10)
        await router.generate(ask("g"))
        assert router.up == (True, True)
        assert router.loads == (0, 0)
        await router.close()

    run_virtual(main())


def test_what_failed_is_tried_elsewhere_at_once() -> None:
    async def main() -> None:
        bad, good = Failing(), Failing()
        router = EngineRouter([bad, good])
        bad.broken = True
        with pytest.raises(EngineError):
            await router.generate(ask("a"))
        assert router.up == (True, True)
        await router.generate(replace(ask("a")))
        assert good.asked == ["a/0/0"]
        await router.generate(ask("a"))
        assert good.asked == ["a/0/0"] * 2
        await router.close()

    run_virtual(main())


def test_while_none_is_up_all_are_asked() -> None:
    async def main() -> None:
        engines = [Failing(), Failing()]
        router = EngineRouter(engines, health=EngineHealthRule(failures=1))
        for engine in engines:
            engine.broken = True
        for name in "abc":
            with pytest.raises(EngineError):
                await router.generate(ask(name))
        assert sum(len(engine.asked) for engine in engines) == 3
        await router.close()

    run_virtual(main())


def test_a_wrong_request_and_a_cancelled_one_say_nothing() -> None:
    async def main() -> None:
        engine: Any = Failing()
        router = EngineRouter([engine], health=EngineHealthRule(failures=1, probe_after_s=0.0))

        async def refuse(request: GenerateRequest) -> Completion:
            raise ValueError("too long")

        answer, engine.generate = engine.generate, refuse
        with pytest.raises(ValueError, match="too long"):
            await router.generate(ask("a"))
        engine.generate = answer
        waits = asyncio.create_task(router.generate(ask("b")))
        await asyncio.sleep(0.5)
        waits.cancel()
        await asyncio.wait([waits])
        assert router.up == (True,)
        await router.close()

    run_virtual(main())


def test_a_probe_that_was_cancelled_leaves_its_place_to_the_next_request() -> None:
    async def main() -> None:
        bad, good = Failing(), Failing()
        router = EngineRouter([bad, good], health=EngineHealthRule(failures=1, probe_after_s=0.0))
        bad.broken = True
        with pytest.raises(EngineError):
            await router.generate(ask("a"))
        probe = asyncio.create_task(router.generate(ask("b")))
        await asyncio.sleep(0.5)
        probe.cancel()
        await asyncio.wait([probe])
        bad.broken = False
        await router.generate(ask("c"))
        assert bad.asked == ["a/0/0", "b/0/0", "c/0/0"]
        assert router.up == (True, True)
        await router.close()

    run_virtual(main())

"""The scripted engine, and the check that it and the real one pass while broken ones do not."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import CheckError, EngineError
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.testing.engine import check_engine
from tests.support.engine_models import VOCABULARY, shared


def reply(request: GenerateRequest) -> Sequence[int]:
    """Return a long reply that differs by seed; greedy ones do not."""
    greedy = request.sampling.temperature == 0
    start = request.prompt[0] if not greedy else 0
    return [(start + 3 * i) % 100 for i in range(40)]


def ask(prompt: tuple[int, ...] = (1, 2), **changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {"id": "1", "prompt": prompt, "max_new_tokens": 10, **changes}
    return GenerateRequest(**given)


async def test_it_plays_a_mapping() -> None:
    engine = ScriptedEngine({(1, 2): (7, 8, 9)}, logprob=-0.5, version=4)
    done = await engine.generate(ask())
    assert done == Completion(
        token_ids=(7, 8, 9), logprobs=(-0.5,) * 3, versions=(4,) * 3, finish="stop"
    )
    assert (await engine.generate(ask(max_new_tokens=2))).finish == "length"
    stopped = await engine.generate(ask(stop_token_ids=frozenset({8})))
    assert (stopped.token_ids, stopped.finish) == ((7, 8), "stop")
    assert [request.max_new_tokens for request in engine.requests] == [10, 2, 10]
    with pytest.raises(EngineError, match=r"no reply to prompt \(5,\)"):
        await engine.generate(ask((5,)))


async def test_an_aborted_reply_is_continued_by_its_own_request() -> None:
    engine = ScriptedEngine({(1, 2): range(20)})
    running = asyncio.create_task(engine.generate(ask(max_new_tokens=30)))
    for _ in range(6):
        await asyncio.sleep(0)
    await engine.load("weights", 1)
    for _ in range(3):
        await asyncio.sleep(0)
    await engine.pause()
    part = await running
    assert part.finish == "aborted"
    assert set(part.versions) == {0, 1}
    await engine.resume()
    rest = await engine.generate(ask((1, 2, *part.token_ids), max_new_tokens=30))
    assert part.token_ids + rest.token_ids == tuple(range(20))
    assert engine.loads == [("weights", 1)]


async def test_what_another_engine_began_is_for_the_reply_to_continue() -> None:
    """As after a kill: what was said is in the prompt and in no engine's memory."""
    prompt = (1, 2)

    def count_on(request: GenerateRequest) -> Sequence[int]:
        return range(20)[len(request.prompt) - len(prompt) :]

    begun = await ScriptedEngine(count_on).generate(ask(prompt, max_new_tokens=6))
    goes_on = ask((*prompt, *begun.token_ids), max_new_tokens=30)
    rest = await ScriptedEngine(count_on).generate(goes_on)
    assert begun.token_ids + rest.token_ids == tuple(range(20))


async def test_logprobs_may_be_a_function() -> None:
    engine = ScriptedEngine(
        {(1,): (5, 6)}, logprob=lambda _request, place, token: -1.0 * place - token
    )
    assert (await engine.generate(ask((1,)))).logprobs == (-5.0, -7.0)
    greedy = ask((1,), sampling=Sampling(temperature=0.0))
    assert (await engine.generate(greedy)).logprobs == (0.0, 0.0)


async def test_the_scripted_engine_passes_the_check() -> None:
    engine = ScriptedEngine(reply, context_tokens=64)
    proven = await check_engine(engine, vocab_size=100, context_tokens=64, weights="any")
    assert "tokens carry the version that sampled them" in proven
    assert len(proven) >= 20


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_the_local_engine_passes_the_check(name: str) -> None:
    engine = LocalEngine(shared(name), slots=4, context_tokens=64)
    weights = shared(name).state_dict()
    await check_engine(engine, vocab_size=VOCABULARY, context_tokens=64, weights=weights)


class Broken(ScriptedEngine):
    """A scripted engine with a defect; `after` spoils what it returns."""

    def __init__(self, defect: str) -> None:
        super().__init__(reply, context_tokens=64)
        self._defect = defect
        self._count = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self._count += 1
        if self._defect == "keeps no room" and len(request.prompt) == 64:
            request = replace(request, prompt=request.prompt[:4])
        if self._defect == "ignores stop tokens":
            request = replace(request, stop_token_ids=frozenset())
        done = await super().generate(request)
        return self._spoiled(done)

    def _spoiled(self, done: Completion) -> Completion:
        match self._defect:
            case "positive log-probs":
                return replace(done, logprobs=tuple(-x for x in done.logprobs))
            case "tokens by count":
                shifted = tuple((t + self._count) % 100 for t in done.token_ids)
                return replace(done, token_ids=shifted)
            case "old versions":
                return replace(done, versions=tuple(v - 1 for v in done.versions))
            case "drops the partial tokens" if done.finish == "aborted":
                return Completion(token_ids=(9,), logprobs=(-1,), versions=(0,), finish="aborted")
            case "over budget":
                one = (done.token_ids[0],)
                return replace(
                    done,
                    token_ids=done.token_ids + one,
                    logprobs=(*done.logprobs, -1.0),
                    versions=(*done.versions, 0),
                )
            case _:
                return done

    async def pause(self) -> None:
        await super().pause()
        if self._defect == "does not hold":
            await super().resume()

    async def load(self, weights: Any, version: int) -> None:
        if self._defect != "forgets the version":
            await super().load(weights, version)

    async def abort(self, request_id: str) -> None:
        if self._defect == "unknown id raises" and request_id not in self._turns:
            raise KeyError(request_id)
        await super().abort(request_id)

    async def close(self) -> None:
        await super().close()
        if self._defect == "serves after close":
            self._open = True


@pytest.mark.parametrize(
    ("defect", "promise"),
    [
        ("positive log-probs", "at most 0"),
        ("tokens by count", "same request, same tokens"),
        ("old versions", "tokens carry the engine's version"),
        ("drops the partial tokens", "abort returns what there is"),
        ("over budget", "the budget is used and kept"),
        ("keeps no room", "leaves no room is refused"),
        ("ignores stop tokens", "a stop token ends"),
        ("does not hold", "holds new requests back"),
        ("forgets the version", "load changes the version"),
        ("serves after close", "a closed engine refuses"),
    ],
)
async def test_the_check_names_the_broken_promise(defect: str, promise: str) -> None:
    with pytest.raises(CheckError, match=promise):
        await check_engine(Broken(defect), vocab_size=100, context_tokens=64, weights="any")


async def test_the_check_ends_when_the_engine_hangs() -> None:
    engine = ScriptedEngine(reply, token_s=60.0)
    with pytest.raises(CheckError, match="every call ends"):
        await check_engine(engine, vocab_size=100, timeout_s=0.05)

"""Engines that begin and close together.

Mutants seen caught: what had begun stays open where another cannot; where the caller is cancelled;
the first error comes in a group; scores that weigh nothing, are forgotten, or cannot be aborted.
"""

import asyncio
from typing import Any, Self

import pytest

from agentrl.engine.replicas import ReplicatedEngine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineLost
from agentrl.policy import ScoreRequest, Scores


class Begun(ScriptedEngine):
    """Begins, or fails, or takes for ever; says whether it is open."""

    def __init__(self, error: Exception | None = None, *, stuck: bool = False) -> None:
        super().__init__({})
        self._error, self._stuck = error, stuck
        self.opened, self.closes = asyncio.Event(), 0

    async def score(self, request: Any) -> Any:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        self.opened.set()
        if self._stuck:
            await asyncio.Event().wait()
        return self

    async def close(self) -> None:
        self.closes += 1
        await super().close()


async def test_they_begin_and_close_with_the_block() -> None:
    engines = [Begun(), Begun()]
    async with ReplicatedEngine(engines) as several:
        assert all(engine.opened.is_set() for engine in engines)
        assert several.version == 0
    assert [engine.closes for engine in engines] == [1, 1]


@pytest.mark.parametrize("error", [EngineLost("gone"), ConfigError("no"), OSError("full")])
async def test_one_that_cannot_begin_closes_all_and_is_named_itself(error: Exception) -> None:
    engines = [Begun(), Begun(error), Begun(stuck=True)]
    with pytest.raises(type(error), match=str(error)):
        async with ReplicatedEngine(engines):
            pass
    assert [engine.closes for engine in engines] == [1, 1, 1]


async def test_a_beginning_that_is_cancelled_closes_what_had_begun() -> None:
    engines = [Begun(), Begun(stuck=True)]
    beginning = asyncio.create_task(ReplicatedEngine(engines).__aenter__())
    for engine in engines:
        await engine.opened.wait()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert [engine.closes for engine in engines] == [1, 1]


class Scoring(Begun):
    """Scores when it is let, or ends a request without."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, asyncio.Future[tuple[float, ...]]] = {}

    async def score(self, request: ScoreRequest) -> Scores:
        self.asked[request.id] = asyncio.get_running_loop().create_future()
        return Scores(logprobs=await self.asked[request.id], version=0)

    async def abort(self, request_id: str) -> None:
        self.asked[request_id].set_result(())


def scored(id: str) -> ScoreRequest:
    return ScoreRequest(id=id, prompt=(1, 2), token_ids=(3,))


async def test_scores_are_spread_and_what_follows_goes_where_they_were() -> None:
    engines = [Scoring(), Scoring()]
    async with ReplicatedEngine(engines) as several:
        names = [f"task/0/{number}/0/0" for number in range(4)]
        tasks = [asyncio.create_task(several.score(scored(name))) for name in names]
        await asyncio.sleep(0)
        assert [[*engine.asked] for engine in engines] == [names[::2], names[1::2]]
        await several.abort(names[1])
        for name in (names[0], names[2], names[3]):
            engine = engines[0 if name in engines[0].asked else 1]
            engine.asked[name].set_result((-1.0,))
        assert [(await task).logprobs for task in tasks] == [(-1.0,), (), (-1.0,), (-1.0,)]
        assert several.loads == (0, 0)
        assert [several.best(f"task/0/{n}/0/1", 3) for n in range(4)] == [0, 1, 0, 1]

"""What happens to an engine while its replacement comes up, and who closes several of them.

Mutants seen caught: a replacement is told the weights of when it began; pausing that ended
meanwhile; weights go to the engine from before they were
copied; one engine that breaks as it is closed, and the others are not waited for.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.engine.remote import EngineReplica, replicas
from agentrl.engine.remote.shared_weights import SharedWeights, share_weights
from agentrl.engine.router import EngineRouter
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError, EngineLost
from agentrl.policy import Completion, GenerateRequest, ScoreRequest
from agentrl.runtime.threads import run_in_thread

DEADLINE_S = 60.0
WEIGHTS = {"w": torch.zeros(2)}
ASKED = GenerateRequest(id="a/0/0", prompt=(1, 2), max_new_tokens=1)


class Slow:
    """What serves an engine that pauses, and takes weights, when it is let."""

    def __init__(self) -> None:
        self.engine: Any = self
        self.name = "double"
        self.is_open = True
        self.loads: list[int] = []
        self.is_paused = False
        self.doing = asyncio.Event()
        self.may = asyncio.Event()
        self.may.set()

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        await self._let()
        self.loads.append(version)

    async def pause(self) -> None:
        await self._let()
        self.is_paused = True

    async def resume(self) -> None:
        await self._let()
        self.is_paused = False

    async def generate(self, request: GenerateRequest) -> Completion:
        return Completion(token_ids=(5,), logprobs=(-1.0,), versions=(0,), finish="stop")

    async def read_output(self) -> str:
        return "nothing"

    async def close(self) -> None:
        self.is_open = False

    async def _let(self) -> None:
        self.doing.set()
        await self.may.wait()
        if not self.is_open:
            raise EngineLost("it died")


class Replacing(EngineReplica):
    """Its first engine does as it is told; those after it wait to be let."""

    def __init__(self) -> None:
        super().__init__(max_restarts=3)
        self.made: list[Slow] = []
        self.first = Slow()
        self.comes = asyncio.Event()

    async def start(self) -> Slow:
        double = Slow() if self.made else self.first
        if self.made:
            double.may.clear()
        self.made.append(double)
        if len(self.made) > 1:
            self.comes.set()
        return double


async def coming_up(engine: Replacing) -> Slow:
    """Let the first engine die, and return its replacement as it waits to be let."""
    engine.made[0].is_open = False
    await engine.comes.wait()
    second = engine.made[1]
    await second.doing.wait()
    return second


async def test_a_replacement_that_is_paused_while_all_goes_on_goes_on_too() -> None:
    async with asyncio.timeout(DEADLINE_S), Replacing() as engine:
        await engine.pause()
        engine.made[0].is_open = False
        starting = asyncio.create_task(engine.load(WEIGHTS, 1))
        second = await coming_up(engine)
        await engine.resume()
        second.may.set()
        await starting
        assert not second.is_paused


class SlowCopy:
    """Copies weights as soon as it is let."""

    def __init__(self) -> None:
        self.begins, self.may = threading.Event(), threading.Event()
        self.may.set()

    def __call__(self, weights: Any) -> Path | SharedWeights:
        self.begins.set()
        assert self.may.wait(DEADLINE_S)
        return share_weights(weights)

    async def is_held(self, engine: Replacing) -> asyncio.Task[None]:
        """Let version 2 be loaded, and return when its weights are about to be copied."""
        self.begins.clear()
        self.may.clear()
        loading = asyncio.create_task(engine.load(WEIGHTS, 2))
        await run_in_thread(self.begins.wait, DEADLINE_S)
        return loading

    async def lose_engine(
        self, engine: Replacing
    ) -> tuple[asyncio.Task[None], asyncio.Task[Completion], Slow]:
        """Let the engine die as its next weights are copied and a request comes."""
        await engine.load(WEIGHTS, 1)
        loading = await self.is_held(engine)
        engine.made[0].is_open = False
        asking = asyncio.create_task(engine.generate(ASKED))
        return loading, asking, await coming_up(engine)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> SlowCopy:
    copies = SlowCopy()
    monkeypatch.setattr(replicas, "share_weights", copies)
    return copies


async def test_a_replacement_has_the_weights_that_came_while_it_took_older_ones(
    copying: SlowCopy,
) -> None:
    async with asyncio.timeout(DEADLINE_S), Replacing() as engine:
        loading, asking, second = await copying.lose_engine(engine)
        copying.may.set()
        while engine.version < 2:  # noqa: ASYNC110 - there is nothing else to wait on
            await asyncio.sleep(0)
        second.may.set()
        await asyncio.gather(loading, asking)
        assert second.loads == [1, 2]


async def test_a_replacement_that_was_there_before_the_weights_has_them(copying: SlowCopy) -> None:
    async with asyncio.timeout(DEADLINE_S), Replacing() as engine:
        loading, asking, second = await copying.lose_engine(engine)
        second.may.set()
        await asking
        copying.may.set()
        await loading
        assert second.loads == [1, 2]


async def test_a_request_that_waits_for_a_replacement_ends_with_a_pause() -> None:
    """A gate that closes waits for whatever is in flight."""
    async with asyncio.timeout(DEADLINE_S), Replacing() as engine:
        await engine.load(WEIGHTS, 1)
        engine.made[0].is_open = False
        asked = ScoreRequest(id="a/0/1", prompt=(1,), token_ids=(2,))
        sampling = asyncio.create_task(engine.generate(ASKED))
        scoring = asyncio.create_task(engine.score(asked))
        await engine.comes.wait()
        await engine.pause()
        completion, scores = await sampling, await scoring
        assert completion.finish == "aborted"
        assert (scores.logprobs, scores.version) == ((), 1)
        engine.made[1].may.set()


class Refusing(Slow):
    """Lives, and takes no weights."""

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        raise EngineError("out of memory")


async def test_an_engine_that_lives_and_cannot_take_weights_is_replaced() -> None:
    engine = Replacing()
    first = Refusing()
    engine.first = first
    async with asyncio.timeout(DEADLINE_S), engine:
        loading = asyncio.create_task(engine.load(WEIGHTS, 1))
        await engine.comes.wait()
        engine.made[1].may.set()
        await loading
        assert not first.is_open
        assert (engine.made[1].loads, engine.version) == ([1], 1)


class Breaking(ScriptedEngine):
    """Breaks as it is closed."""

    async def close(self) -> None:
        raise RuntimeError("it broke")


class Lingering(ScriptedEngine):
    """Takes a while to close."""

    def __init__(self) -> None:
        super().__init__(lambda request: (5,))
        self.is_closed = False

    async def close(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        self.is_closed = True


async def test_all_engines_are_closed_also_where_one_breaks_over_it() -> None:
    slow = Lingering()
    router = EngineRouter([Breaking(lambda request: (5,)), slow])
    with pytest.raises(RuntimeError, match="it broke"):
        await router.close()
    assert slow.is_closed

"""Simulated environments and the chat between them and the engine, all played from one trace."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentrl.chat.renderer import TokenSegment
from agentrl.env import Action, BaseEnv, Info, Observation, Step, ToolSchema
from agentrl.message import Message
from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost
from agentrl.policy import GenerateRequest
from agentrl.task import Split, Task

STUCK_S = 1e7
"""Seconds of a step that hangs: until its deadline."""


class TraceReplay:
    """Knows which trajectory costs what. One for all environments of a simulation.

    A trajectory is chosen by its seed, so every mode plays the same ones. Which attempts fail is
    drawn anew for each, as a retry has its own luck.
    """

    def __init__(
        self,
        trace: LatencyTrace,
        *,
        granule_tokens: int = 1,
        failure_rate: float | None = None,
        hang_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        """Take what to play; `hang_fraction` of the failures hang until a deadline."""
        self._trace = trace
        self._granule = granule_tokens
        self._failure_rate = trace.failure_rate if failure_rate is None else failure_rate
        self._hang_fraction = hang_fraction
        self._random = Random(seed)
        self.busy_s = 0.0
        """Seconds environments have worked, all together."""
        self.held_s = 0.0
        """Seconds they have had an episode, all together, up to the last `hold`."""
        self._held, self._at_s = 0, 0.0

    def hold(self, change: int = 0) -> None:
        """Bring `held_s` up to the present; from now on `change` more environments are held."""
        now_s = asyncio.get_running_loop().time()
        self.held_s += self._held * (now_s - self._at_s)
        self._held, self._at_s = self._held + change, now_s

    def cost(self, seed: int) -> TrajectoryCost:
        """Return the cost of a seed's trajectory."""
        return self._trace.trajectories[seed % len(self._trace.trajectories)]

    def granules(self, tokens: int) -> int:
        """Return the number of simulated tokens that stand for so many real ones."""
        return max(1, round(tokens / self._granule))

    def tokens_left(self, request: GenerateRequest) -> int:
        """Return the number of simulated tokens the policy has yet to sample in this turn."""
        turn, offset = request.id.rsplit("/", 2)[1:]
        return self.granules(self.cost(request.seed).turns[int(turn)].tokens) - int(offset)

    def make_env(self) -> "SimulatedEnv":
        """Make an environment, which knows already when it will break."""
        fails = self._random.random() < self._failure_rate
        hangs = fails and self._random.random() < self._hang_fraction
        return SimulatedEnv(self, breaks_at=self._random.random() if fails else None, hangs=hangs)

    def tasks(self) -> Iterable[Task]:
        """Yield endless tasks."""
        for index in range(2**31):
            yield Task(prompt="work", id=f"task-{index}")


class SimulatedEnv(BaseEnv):
    """Takes the time its trajectory's steps took."""

    def __init__(self, world: TraceReplay, *, breaks_at: float | None, hangs: bool) -> None:
        self._world = world
        self._breaks_at = breaks_at
        self._hangs = hangs
        self._cost: TrajectoryCost | None = None
        self._turn = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return self._world.tasks()

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._release()
        self._cost, self._turn = self._world.cost(seed or 0), 0
        self._world.hold(1)
        await self._work(self._cost.reset_s)
        return Observation((Message("user", "x" * self._cost.prompt_tokens),), tools=()), {}

    async def step(self, action: Action) -> Step:
        assert self._cost is not None
        turn = self._cost.turns[self._turn]
        if (
            self._breaks_at is not None
            and self._turn >= self._breaks_at * len(self._cost.turns) - 1
        ):
            if self._hangs:
                await asyncio.sleep(STUCK_S)
            raise RuntimeError("the simulated environment failed")
        await self._work(turn.step_s)
        self._turn += 1
        ended = self._turn == len(self._cost.turns)
        reply = Observation((Message("tool", "x" * turn.reply_tokens),))
        return reply, float(ended), ended, False, {}

    async def close(self) -> None:
        self._release()

    def _release(self) -> None:
        if self._cost is not None:
            self._cost = None
            self._world.hold(-1)

    async def _work(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)
            self._world.busy_s += seconds


@dataclass(frozen=True, slots=True)
class FillerChat:
    """Messages to as many filler tokens as their text has letters."""

    world: TraceReplay

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return frozenset()

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Sequence[TokenSegment]:
        return (TokenSegment("prompt", self._filler(messages)),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        return (TokenSegment("tool", self._filler(messages)),)

    def parse(self, token_ids: Sequence[int]) -> Action:
        return Action("")

    def _filler(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (0,) * self.world.granules(sum(len(message.text) for message in messages))

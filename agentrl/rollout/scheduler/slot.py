"""Slot of one trajectory: an engine behind the scheduler, and its environment, watched.

An episode plays against these and never notices that it was parked: its requests wait here for the
gate outside every deadline, and its clock stands still meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentrl.env import Action, Env, Info, Observation, Step
from agentrl.errors import EngineLost
from agentrl.events.kinds import ForkPoint, GroupRequest
from agentrl.events.log import RolloutEmitter
from agentrl.events.state import ResumePoint
from agentrl.policy import Completion, GenerateRequest, PolicyEngine
from agentrl.rollout.env_wrapper import EnvWrapper
from agentrl.rollout.episode import StoppedTrajectory
from agentrl.rollout.scheduler.segments import (
    SegmentBudget,
    SegmentUse,
    find_segment_use,
    segment_verdict,
)
from agentrl.rollout.scheduler.topology import RolloutKey
from agentrl.rollout.scheduler.watchdog import Phase
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree

_NEXT = 8
"""Tasks that an environment is told of in advance."""


class TurnSampler(Protocol):
    """Samples in the place of the engine behind the gate, with one request of it per call."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn, or the beginning of it as aborted."""
        ...


class SlotScheduler(Protocol):
    """The side of the runner that a slot talks to."""

    @property
    def engine(self) -> PolicyEngine:
        """The engine behind the gate."""
        ...

    def upcoming(self, most: int) -> Sequence[Task]:
        """Return the tasks of the trajectories that begin next, of so many at most."""
        ...

    async def pass_gate(self) -> None:
        """Wait until requests are taken."""
        ...

    async def wait_next_segment(self, slot: "RolloutSlot") -> None:
        """Wait until parked trajectories go on."""
        ...

    def fork(
        self,
        slot: "RolloutSlot",
        play: "Callable[[RolloutSlot], Awaitable[Leaf]]",
        fork: ForkPoint | None = None,
    ) -> "RolloutSlot":
        """Add a branch of a trajectory, which plays once it has its place; return its slot."""
        ...

    def inherit_version(self, slot: "RolloutSlot", oldest: int) -> None:
        """Note the version of the oldest sampled token that a branch has begun with."""
        ...

    def restart_rollout(self, slot: "RolloutSlot") -> int:
        """Note that a trajectory begins from its prompt; return the version it begins at."""
        ...

    def enter_request(self) -> None:
        """Note that a request is in flight."""
        ...

    def leave_request(self, slot: "RolloutSlot", completion: Completion | None) -> None:
        """Note that a request has ended, and with what."""
        ...

    def note_turn(self, slot: "RolloutSlot") -> None:
        """Note that a turn is complete and on the tree."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class RolloutSlot:
    """One attempt at one trajectory. Owned by the runner, which reads what it is doing."""

    attempt: RolloutKey
    tree: Tree
    seed: int
    turn_s: float
    """Deadline of one turn, the time at the gate not counted."""
    fork_s: float
    scheduler: SlotScheduler
    now: Callable[[], float]
    segment: SegmentBudget | None = None
    order: GroupRequest | None = None
    """Order of its group; None is the run's own numbers."""
    events: RolloutEmitter
    stand: ResumePoint | None = None
    """Point it resumes at, if it was kept and not begun again."""
    asks_again: int = 0
    """Number of its requests that may still be lost with an engine; then it fails."""
    sampler: TurnSampler | None = None

    phase: Phase = "start"
    since_s: float = 0.0
    tokens: int = 0
    turns: int = 0
    _use: SegmentUse = field(default_factory=SegmentUse)
    _parked_s: float = 0.0
    _turn_used_s: float = 0.0
    _continues: bool = False
    _turn_is_open: bool = False
    _finish: str = ""

    def resume_at(self, stand: ResumePoint) -> None:
        """Let the trajectory go on where it was kept: what it has used itself counts."""
        self.stand = stand
        sampled = sampled_turns(self.tree, stand.node, fork=stand.fork)
        self.tokens = sum(sampled.values())
        complete = [tokens for turn, tokens in sorted(sampled.items()) if turn < stand.turn]
        self.turns = len(complete)
        if self.segment is not None:
            self._use = find_segment_use(complete, self.segment, begun=sampled.get(stand.turn, 0))
            if segment_verdict(self._use, self.segment) == "waits" and self._is_outdated(stand):
                self._use = self._use.next()

    def _is_outdated(self, stand: ResumePoint) -> bool:
        """Return whether there are newer weights than those that sampled the last tokens."""
        path = () if stand.node is None else self.tree.path(stand.node)
        newest = max((version for node in path for version in node.versions), default=0)
        return newest < self.scheduler.engine.version

    def restart(self, *, differs: bool) -> None:
        """Let the trajectory begin again: its world could not be brought back.

        `differs` when the world answered otherwise than it had.
        """
        self.stand, self.tokens, self.turns, self._use = None, 0, 0, SegmentUse()
        self.events.begin_again(differs=differs, version=self.scheduler.restart_rollout(self))

    def clock(self) -> float:
        """Return the seconds of this trajectory: those at the gate do not count."""
        return self.now() - self._parked_s

    @property
    def engine(self) -> "SlotEngine":
        """The policy engine of this trajectory."""
        return SlotEngine(self)

    def watch_env(self, env: Env) -> "MonitoredEnv":
        """Return `env` with everything it does noted here; a watched one changes slots."""
        return MonitoredEnv(env.inner if isinstance(env, MonitoredEnv) else env, self)

    @contextmanager
    def doing(self, phase: Phase) -> Generator[None]:
        """Note what the block is."""
        before, self.phase, self.since_s = self.phase, phase, self.now()
        try:
            yield
        finally:
            self.phase, self.since_s = before, self.now()

    def continue_turn(self) -> None:
        """Note that a turn goes on after its first tokens, unless the policy has ended it there."""
        self._continues = self._continues or self._finish == "length"

    def end_turn(self) -> None:
        """Note that a turn is over: whatever ended it, the next tokens are of another one."""
        self._continues, self._finish = False, ""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample behind the gate; what is lost with its engine is asked for again.

        Raises `StoppedTrajectory` after the last segment.
        """
        while True:
            try:
                return await self._generate(request)
            except EngineLost:
                if self.asks_again == 0:
                    raise
                self.asks_again -= 1

    async def _generate(self, request: GenerateRequest) -> Completion:
        if self._turn_is_open and not self._continues:
            self._turn_is_open = False
            self.turns += 1
            self._use = self._use.add(tokens=0, turns=1)
            self.scheduler.note_turn(self)
        await self.wait(self.scheduler.pass_gate)
        room = await self._room()
        segment_request = request if room is None else _cap_request(request, room)
        began = self.now()
        used_s = self._turn_used_s if self._continues else 0.0
        completion: Completion | None = None
        self.scheduler.enter_request()
        try:
            with self.doing("generate"):
                async with asyncio.timeout(self.turn_s - used_s):
                    completion = await (self.sampler or self.scheduler.engine).generate(
                        segment_request
                    )
        finally:
            self.scheduler.leave_request(self, completion)
        assert completion is not None
        if completion.finish == "length" and segment_request is not request:
            # The segment ended, not the turn: the episode asks for the rest.
            completion = replace(completion, finish="aborted")
        self._turn_used_s = used_s + self.now() - began
        self._note(completion)
        return completion

    def _note(self, completion: Completion) -> None:
        self.tokens += len(completion.token_ids)
        self._use = self._use.add(tokens=len(completion.token_ids), turns=0)
        self._finish = completion.finish
        self._continues = completion.finish == "aborted"
        self._turn_is_open = True

    async def _room(self) -> int | None:
        if self.segment is None:
            return None
        match segment_verdict(self._use, self.segment):
            case "waits":
                await self.wait(lambda: self.scheduler.wait_next_segment(self), "segment")
                self._use = self._use.next()
                await self.wait(self.scheduler.pass_gate)
            case "truncated":
                raise StoppedTrajectory("tokens", "its last segment is spent")
            case "goes_on":
                pass
        return self.segment.tokens - self._use.tokens

    async def wait(self, waits: Callable[[], Awaitable[object]], phase: Phase = "gate") -> None:
        """Wait for somebody else; no deadline and no clock of the trajectory runs meanwhile."""
        began = self.now()
        with self.doing(phase):
            await waits()
        self._parked_s += self.now() - began


@dataclass(frozen=True, slots=True)
class SlotEngine:
    """A policy engine for one trajectory; only sampling goes through the gate."""

    slot: RolloutSlot

    @property
    def version(self) -> int:
        return self.slot.scheduler.engine.version

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.slot.generate(request)

    async def abort(self, request_id: str) -> None:
        await self.slot.scheduler.engine.abort(request_id)

    async def pause(self) -> None:
        raise _build_error("pause")

    async def resume(self) -> None:
        raise _build_error("resume")

    async def load(self, weights: Any, version: int) -> None:
        raise _build_error("load")

    async def close(self) -> None:
        """Leave the engine open: it belongs to the run."""


def sampled_turns(tree: Tree, node: int | None, *, fork: int | None = None) -> Counter[int]:
    """Return the sampled tokens of each turn on the path from `fork` to `node`."""
    turns: Counter[int] = Counter()
    while node is not None and node != fork:
        part = tree.node(node)
        if part.source == "sampled":
            turns[part.turn] += len(part.token_ids)
        node = part.parent
    return turns


def _cap_request(request: GenerateRequest, tokens: int) -> GenerateRequest:
    if request.max_new_tokens <= tokens:
        return request
    return replace(request, max_new_tokens=tokens)


def _build_error(name: str) -> RuntimeError:
    return RuntimeError(f"a trajectory must not {name} the engine; only the scheduler may")


class MonitoredEnv(EnvWrapper):
    """An environment whose slot knows what it is doing."""

    def __init__(self, inner: Env, slot: RolloutSlot) -> None:
        super().__init__(inner)
        self.slot = slot

    def around(self, inner: Env) -> "MonitoredEnv":
        return MonitoredEnv(inner, self.slot)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        if self.looks_ahead:
            options = {**(options or {}), "next": tuple(self.slot.scheduler.upcoming(_NEXT))}
        with self.slot.doing("reset"):
            return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        self.slot.end_turn()
        with self.slot.doing("step"):
            return await super().step(action)

    async def fork(self) -> "MonitoredEnv":
        """Return an independent copy; give it to the branch's slot with `RolloutSlot.watch_env`."""
        with self.slot.doing("fork"):
            async with asyncio.timeout(self.slot.fork_s):
                return await super().fork()

    async def close(self) -> None:
        with self.slot.doing("close"):
            await super().close()

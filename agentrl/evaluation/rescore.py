"""One recorded trajectory under today's checker: its actions once more, and no policy.

What was seen is compared with what today's world shows wherever the policy acted on it: after the
first difference the recorded actions are no answer to this world, and there is no score. Rewards
and ends are today's, which is what they are looked at for.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from agentrl.authoring.env_contract import (
    check_opening,
    check_step,
    close_env,
    find_reward_fault,
)
from agentrl.env import Env, RecordScorer, RescoreBy, Step, rescored_by
from agentrl.errors import EnvError, RolloutError, blame
from agentrl.events.history import fingerprint
from agentrl.events.kinds import EnvExchange
from agentrl.message import Message
from agentrl.rollout.episode import EpisodeLimits
from agentrl.task import Task
from agentrl.trajectory import (
    Failed,
    Finished,
    Leaf,
    Outcome,
    Truncated,
    outcome_name,
    reward_of,
)

Verdict = Literal["same", "changed", "diverged", "goes_on", "broke", "broke_then", "no_record"]
"""Result of scoring again.

`same` and `changed` have a score. `diverged`: the world showed something else. `goes_on`: the
episode does not end today where it ended. `broke`: it failed now, and `broke_then`: it had failed
when it was played. `no_record`: what to play again is not kept.
"""
SCORED: tuple[Verdict, ...] = ("same", "changed")
CLOSE_ENOUGH = 1e-9
"""Rewards that differ by less are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """A trajectory as it was played."""

    task: Task
    sample: int
    world_sample: int
    """That its world was reset with; another one's for a branch."""
    seed: int
    exchanges: Sequence[EnvExchange]
    """The reset and every complete turn."""
    leaf: Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreResult:
    """Result of scoring a trajectory with today's checker."""

    recording: RecordedTrajectory
    verdict: Verdict
    outcome: Outcome | None = None
    """Today's; None where there is none."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    why: str = ""
    """For people: what differed, and where."""

    @property
    def before(self) -> float | None:
        """Return the recorded reward."""
        return reward_of(self.recording.leaf.outcome)

    @property
    def after(self) -> float | None:
        """Return today's."""
        return None if self.outcome is None else reward_of(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRescorer:
    """Scores recordings again, each in an environment of its own."""

    make_env: Callable[[], Env]
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    retries: int = 2
    by: RescoreBy | None = None
    """Method for scoring again; None as the environment declares."""

    async def rescore(
        self, recording: RecordedTrajectory, *, task: Task | None = None
    ) -> RescoreResult:
        """Score a trajectory with today's checker, of `task` if given; failures are `broke`."""
        if isinstance(recording.leaf.outcome, Failed):
            why = recording.leaf.outcome.error
            return RescoreResult(recording=recording, verdict="broke_then", why=why)
        if not recording.exchanges:
            why = "neither its reset nor a turn is recorded"
            return RescoreResult(recording=recording, verdict="no_record", why=why)
        retries = self.retries
        while True:
            try:
                return await self._rescore_once(recording, task or recording.task)
            except RolloutError as error:
                if retries == 0:
                    why = str(error)
                    outcome = Failed(error.kind, why)
                    return RescoreResult(
                        recording=recording, verdict="broke", outcome=outcome, why=why
                    )
                retries -= 1

    async def _rescore_once(self, recording: RecordedTrajectory, task: Task) -> RescoreResult:
        env = self.make_env()
        try:
            by = self.by or rescored_by(env)
            if by == "record" and isinstance(env, RecordScorer):
                return await self._rescore_record(env, recording, task)
            with blame(EnvError, f"scoring task {task.id} again"):
                return await self._replay(env, recording, task)
        finally:
            await close_env(env, f"close of task {task.id!r}")

    async def _rescore_record(
        self, env: RecordScorer, recording: RecordedTrajectory, task: Task
    ) -> RescoreResult:
        """Ask the checker alone; nothing runs but what it runs itself."""
        *_, last = recording.exchanges
        rewards = [exchange.reward for exchange in recording.exchanges]
        components = dict(recording.leaf.components)
        if last.terminated or last.truncated:
            with blame(EnvError, f"scoring task {task.id} again"):
                async with asyncio.timeout(self.limits.step_s):
                    rewards[-1], info = await env.rescore(
                        task.copy(), conversation(recording.exchanges)
                    )
            components |= info.get("reward_components", {})
        return _judge(recording, math.fsum(rewards), components, last.terminated)

    async def _replay(self, env: Env, recording: RecordedTrajectory, task: Task) -> RescoreResult:
        unscored = partial(RescoreResult, recording=recording)
        opening, *turns = recording.exchanges
        options = {"task": task.copy(), "sample": recording.world_sample}
        async with asyncio.timeout(self.limits.reset_s):
            returned = await env.reset(seed=recording.seed, options=options)
        observation, _ = check_opening(env, returned)
        if turns and fingerprint(observation) != fingerprint(opening.observation):
            return unscored(verdict="diverged", why="the first observation differs")
        rewards: list[float] = []
        components: dict[str, float] = {}
        for number, turn in enumerate(turns, 1):
            where = f"turn {number} of {len(turns)}"
            assert turn.action is not None
            async with asyncio.timeout(self.limits.step_s):
                answer = check_step(env, await env.step(turn.action))
            rewards.append(_check_reward(answer, task))
            components |= answer[4].get("reward_components", {})
            if answer[2] or answer[3]:
                why = "" if number == len(turns) else f"it now ends at {where}"
                return _judge(recording, math.fsum(rewards), components, answer[2], why=why)
            if turn.terminated or turn.truncated:
                why = f"it ended at {where}, but now continues"
                return unscored(verdict="goes_on", why=why)
            if fingerprint(answer[0]) != fingerprint(turn.observation):
                return unscored(verdict="diverged", why=f"the answer to {where} differs")
        return _judge(recording, math.fsum(rewards), components, terminated=False)


def conversation(exchanges: Sequence[EnvExchange]) -> tuple[Message, ...]:
    """Return all messages from the reset on, the agent's among them."""
    messages: list[Message] = []
    for exchange in exchanges:
        if exchange.action is not None:
            messages.append(exchange.action.message)
        messages += exchange.observation.messages
    return tuple(messages)


def _judge(
    recording: RecordedTrajectory,
    reward: float,
    components: dict[str, float],
    terminated: bool,
    *,
    why: str = "",
) -> RescoreResult:
    """Return a score; an episode that does not end by itself ends for the recorded reason."""
    was = recording.leaf.outcome
    limit = was.limit if isinstance(was, Truncated) else "turns"
    outcome = Finished(reward) if terminated else Truncated(limit, reward)
    before = reward_of(was)
    assert before is not None
    same = abs(reward - before) < CLOSE_ENOUGH and outcome_name(outcome) == outcome_name(was)
    return RescoreResult(
        recording=recording,
        verdict="same" if same else "changed",
        outcome=outcome,
        components=components,
        why=why,
    )


def _check_reward(answer: Step, task: Task) -> float:
    if (fault := find_reward_fault(answer[1])) is None:
        return answer[1]
    raise EnvError(f"scoring task {task.id} again: the reward is {fault}; fix the reward function")

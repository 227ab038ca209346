"""Drafts through episodes, by their numbers: the distribution that comes out, and whose
log-probs a real model's tokens carry.

Mutants seen caught: listed in tests/unit/rollout/drafts/test_play.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.env import Action, Observation, Step
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.verify import AcceptanceRule
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.task import Task
from agentrl.trajectory import Trajectory
from benchmarks.letters import END, said
from tests.support.drafts import SIZE, TASK, Stage, World, sampled
from tests.support.engine_models import VOCABULARY, logits_of, tiny
from tests.support.examples import examples
from tests.support.scripted_scorer import ScriptedScorer

# --- exact draws ----------------------------------------------------------------------------------


@dataclass
class Dice:
    """A policy that says one of the letters `xyz`, and how likely they are by version."""

    chances: Sequence[Sequence[float]]
    version: int = 0

    def row(self, context: tuple[int, ...]) -> list[float]:
        row = [-math.inf] * SIZE
        if context[-1] != ord(">"):
            row[END] = 0.0
            return row
        for letter, chance in zip("xyz", self.chances[self.version], strict=False):
            row[ord(letter)] = math.log(chance)
        return row

    def draw(self, request: GenerateRequest) -> Sequence[int]:
        if request.prompt[-1] != ord(">"):
            return (END,)
        letters = "xyz"[: len(self.chances[0])]
        (drawn,) = Random(request.seed).choices(letters, self.chances[self.version])
        return (ord(drawn), END)

    def logprob(self, request: GenerateRequest, place: int, token: int) -> float:
        return self.row((*request.prompt, *self.draw(request)[:place]))[token]


COIN = ((0.5, 0.5), (0.8, 0.2))
DICE = ((0.4, 0.3, 0.3), (0.2, 0.1, 0.7))


@pytest.mark.parametrize(
    ("chances", "residual", "known", "want"),
    [
        (COIN, True, 2, COIN[1]),
        (COIN, True, 1, COIN[1]),
        (COIN, False, 2, (0.74, 0.26)),
        (DICE, True, 1, DICE[1]),
    ],
)
async def test_what_is_sampled_with_and_without_the_residual(
    chances: Sequence[Sequence[float]], residual: bool, known: int, want: Sequence[float]
) -> None:
    """The worked distribution through whole episodes, at leniency 1."""
    dice = Dice(chances)
    engine = Likeliest(dice.draw, dice.row, logprob=dice.logprob)
    engine.known = known
    stage = Stage("x")
    stage.rollouts = replace(
        stage.rollouts, engine=engine, make_env=lambda: Short(lambda turn: "", [])
    )
    stage.play = stage.player(DraftCache(10**6), AcceptanceRule(leniency=1), "verify", residual)
    count, letters, same = examples(1500), list[str](), 0
    for version in (0, 1):
        dice.version = version
        if version:
            await engine.load(None, version)
        played = await many(stage, count, version)
        before, letters = letters, [said(sampled(t, t.token_ids)) for t in played]
        same = sum(a == b for a, b in zip(before, letters, strict=False))
        for trajectory, letter in zip(played, letters, strict=True):
            author = trajectory.versions[3]
            assert author == version or not residual, "with a residual they are the policy's own"
            chance = chances[author]["xyz".index(letter)]
            assert trajectory.logprobs[3] == pytest.approx(math.log(chance))
    shares = [letters.count(letter) / count for letter in "xyz"[: len(want)]]
    assert shares == pytest.approx(list(want), abs=1.2 / math.sqrt(count))
    if residual:
        saved = stage.play.figures()["drafts/saved_tokens"]
        assert saved == 2 * same, "a letter and its end, also where it was drawn anew"


class Likeliest(ScriptedScorer):
    """A scripted engine whose completions tell the likeliest tokens of their places."""

    known = 2

    async def generate(self, request: GenerateRequest) -> Any:
        done = await super().generate(replace(request, top_logprobs=0))
        rows = [
            self.distribution((*request.prompt, *done.token_ids[:n]))
            for n in range(len(done.token_ids))
        ]
        top = tuple(
            tuple(
                sorted(((t, x) for t, x in enumerate(row) if x > -math.inf), key=lambda p: -p[1])
            )[: self.known]
            for row in rows
        )
        return replace(done, top_logprobs=top if request.top_logprobs else ())


class Short(World):
    """Ends after the first turn."""

    async def step(self, action: Action) -> Step:
        return Observation(()), 1.0, True, False, {}


async def many(stage: Stage, count: int, version: int) -> list[Trajectory]:
    """Play one group of so many trajectories."""
    policy = SchedulerPolicy(mode="sync", groups_per_step=1, group_size=count, concurrency=64)
    left = [TASK]

    def take(wanted: int) -> list[Task]:
        taken, left[:] = left[:wanted], left[wanted:]
        return taken

    gate = stage.rollouts.scheduler(
        policy,
        take,
        sampling=Sampling(),
        seed=lambda number, task, sample: sample + 10_000 * version,
        play=stage.play,
        first_group=version,
        version=version,
    )
    async with gate:
        (tree,) = (await gate.next_batch()).trees
    return list(tree.trajectories())


# --- a real model ---------------------------------------------------------------------------------


def gap_nats(model: Any, trajectory: Trajectory, version: int) -> float:
    """Return the largest gap between recorded log-probs of a version and a full forward pass."""
    logprobs = logits_of(model, trajectory.token_ids[:1], trajectory.token_ids[1:]).log_softmax(-1)
    gaps = [
        abs(float(logprobs[i - 1, trajectory.token_ids[i]]) - trajectory.logprobs[i])
        for i, v in enumerate(trajectory.versions)
        if v == version
    ]
    return max(gaps, default=0.0)


@pytest.mark.parametrize("residual", [False, True])
async def test_a_real_engine_reuses_and_every_log_prob_is_of_its_version(residual: bool) -> None:
    old, new = tiny("qwen3", seed=0), tiny("qwen3", seed=0)
    with torch.no_grad():
        torch.manual_seed(1)
        for weight in new.parameters():
            weight += 0.01 * torch.randn_like(weight)
    stage = Stage("unused", limits=EpisodeLimits(max_turns=2, max_turn_tokens=12))
    async with LocalEngine(old, slots=8, context_tokens=128) as engine:
        stage.rollouts = replace(stage.rollouts, engine=engine)
        rule = AcceptanceRule(leniency=1.0)
        stage.play = stage.player(DraftCache(10**6), rule, "verify", residual)
        stage.play.reusing = replace(stage.play.reusing, alternatives=VOCABULARY)
        first = await many(stage, 8, 0)
        await engine.load(new.state_dict(), 1)
        second = await many(stage, 8, 1)
    saved = stage.play.figures()["drafts/saved_tokens"]
    assert 0 < saved < sum(sum(t.mask) for t in second)
    assert {v for t in first for v in t.versions} == {-1, 0}
    assert {v for t in second for v in t.versions} == ({-1, 1} if residual else {-1, 0, 1})
    for trajectory in second:
        assert gap_nats(old, trajectory, 0) < 1e-4
        assert gap_nats(new, trajectory, 1) < 1e-4

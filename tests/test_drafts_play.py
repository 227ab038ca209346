"""Trajectories with drafts: who is the author of a token, what ends a draft, and a whole run.

Mutants seen caught:
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.engine.scripted import ScriptedEngine, ScriptedScorer
from agentrl.env import Action, BaseEnv, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall
from agentrl.policy import GenerateRequest, Sampling, ScoreRequest
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.play import DraftedPlay
from agentrl.rollout.drafts.reuse import Reuse, Reusing
from agentrl.rollout.drafts.verify import Rule
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.gate.policy import GatePolicy
from agentrl.rollout.gate.segments import SegmentBudget
from agentrl.rollout.pool import Rollouts
from agentrl.rollout.recorder import KeptGroup, KeptMember
from agentrl.task import Split, Task
from agentrl.trajectory import Finished, Trajectory, Tree, Truncated
from benchmarks.letters import END, LetterChat, ids, said
from tests.engine_models import VOCABULARY, logits_of, tiny

TASK = Task(prompt="ab", answer="x", id="task")
SIZE = 128
SURE, UNSURE, NEVER = math.log(0.9), math.log(0.3), -math.inf


class CallChat(LetterChat):
    """A turn that has a `[` is a call, malformed until it has a `]`."""

    def parse(self, token_ids: Sequence[int]) -> Action:
        text = said(token_ids)
        if "[" not in text:
            return Action(text)
        before, _, call = text.partition("[")
        if "]" in call:
            return Action(before, (ToolCall("call_0", call.strip("]"), {}),))
        return Action(before, malformed=("not closed",))


class World(BaseEnv):
    """Answers each turn with what `answer` says; `done` ends the episode."""

    fork_strategy: ForkStrategy = "copy"

    def __init__(self, answer: Callable[[int], str], log: list[str]) -> None:
        self._answer = answer
        self._log = log

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._log.append(f"reset {seed}")
        self._turns = 0
        return Observation(TASK.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        self._log.append(action.text)
        self._turns += 1
        if action.text.startswith("done"):
            return Observation(()), 1.0, True, False, {}
        return Observation((Message("tool", self._answer(self._turns)),)), 0.5, False, False, {}


class Stage:
    """Plays one trajectory of one task per version of the weights, with drafts."""

    def __init__(
        self,
        *turns: str,
        rule: Rule | None = None,
        reuse: Reuse = "verify",
        residual: bool = False,
        limits: EpisodeLimits | None = None,
        max_age: int | None = None,
        segment: SegmentBudget | None = None,
    ) -> None:
        self.turns = turns
        self.now: dict[tuple[int, ...], float] = {}
        """Log-probs that differ from `SURE`, by context and token."""
        self.answer: Callable[[int], str] = lambda turn: "ok"
        self.log: list[str] = []
        self.segment = segment
        self.engine = ScriptedScorer(self.reply, self.distribution, logprob=SURE)
        self.rollouts = Rollouts(
            make_env=lambda: World(lambda turn: self.answer(turn), self.log),
            engine=self.engine,
            chat=CallChat(),
            limits=limits or EpisodeLimits(),
        )
        self.play = self.player(DraftCache(1000), rule, reuse, residual, max_age)

    def player(
        self,
        cache: DraftCache,
        rule: Rule | None,
        reuse: Reuse,
        residual: bool,
        max_age: int | None = None,
    ) -> DraftedPlay:
        return DraftedPlay(
            rollouts=self.rollouts,
            sampling=Sampling(),
            cache=cache,
            seed=5,
            reusing=Reusing(rule=rule or Rule(), reuse=reuse, residual=residual, alternatives=4),
            max_age=max_age,
        )

    def reply(self, request: GenerateRequest) -> Sequence[int]:
        """Say what is left of the turn that the context is in."""
        turn = sum(token == ord(">") for token in request.prompt) - 1
        begun = request.prompt[::-1].index(ord(">"))
        return (*ids(self.turns[turn]), END)[begun:]

    def distribution(self, context: tuple[int, ...]) -> Sequence[float]:
        """Be sure of what `turns` say, and of what `now` changes."""
        begun = context[::-1].index(ord(">"))
        turn = sum(token == ord(">") for token in context) - 1
        row = [-20.0] * SIZE
        script = (*ids(self.turns[turn]), END) if turn < len(self.turns) else (END,)
        row[script[begun] if begun < len(script) else END] = SURE
        for (*at, token), value in self.now.items():
            if tuple(at) == context:
                row[token] = value
        return row

    async def go(self, version: int) -> Trajectory:
        """Play once under a version, and return what was played."""
        (trajectory,) = (await self.tree(version)).trajectories()
        return trajectory

    async def tree(self, version: int) -> Tree:
        """Play once under a version, and return the tree."""
        if version:
            await self.engine.load(None, version)
        policy = GatePolicy(
            mode="sync", groups_per_step=1, group_size=1, concurrency=1, segment=self.segment
        )
        left = [TASK]

        def take(count: int) -> list[Task]:
            taken, left[:] = left[:count], left[count:]
            return taken

        gate = self.rollouts.gate(
            policy,
            take,
            sampling=Sampling(),
            seed=lambda number, task, sample: 100 + version,
            play=self.play,
            first_group=version,
            version=version,
        )
        async with gate:
            (tree,) = (await gate.batch()).trees
        return tree


def at(*parts: str) -> tuple[int, ...]:
    """Return the context after the prompt and these parts, `|` ending a turn."""
    return tuple(END if x == "|" else ord(x) for x in "".join(("ab>", *parts)))


def sampled(trajectory: Trajectory, values: Sequence[Any]) -> list[Any]:
    return [x for x, own in zip(values, trajectory.mask, strict=True) if own]


def figures(found: int, skip: float, mean_cut: float, saved: int) -> dict[str, float]:
    return {
        "drafts/found": found,
        "drafts/skip_ratio": skip,
        "drafts/mean_cut": mean_cut,
        "drafts/saved_tokens": saved,
    }


async def test_a_draft_that_still_stands_is_reused_whole() -> None:
    stage = Stage("hi", "done")
    first = await stage.go(0)
    assert stage.play.figures() == figures(0, 0, 0, 0)
    asked = len(stage.engine.requests)
    second = await stage.go(1)
    assert second.token_ids == first.token_ids
    assert second.outcome == Finished(1.5)
    assert len(stage.engine.requests) == asked, "nothing was sampled"
    assert len(stage.engine.scored) == 2, "one pass per turn"
    assert stage.play.figures() == figures(1, 1, 8, 8)
    assert stage.log == [stage.log[0], "hi", "done"] * 2, "the same world, and it runs again"


async def test_tokens_that_stand_keep_their_authors_log_prob_and_version() -> None:
    stage = Stage("hi", "done")
    first = await stage.go(0)
    stage.now = {(*at(), ord("h")): math.log(0.7)}
    second = await stage.go(1)
    assert second.logprobs == first.logprobs
    assert sampled(second, second.versions) == [0] * 8
    third = await stage.go(2)
    assert sampled(third, third.versions) == [0] * 8, "of the draft of a draft too"


async def test_the_rest_is_sampled_from_the_first_token_that_does_not_stand() -> None:
    stage = Stage("hello", "done")
    await stage.go(0)
    stage.turns = ("hey", "done")
    stage.now = {(*at("he"), ord("l")): NEVER}
    second = await stage.go(1)
    assert said(sampled(second, second.token_ids)) == "heydone"
    assert sampled(second, second.versions) == [0, 0, 1, 1] + [1] * 5, "a cut ends the draft"
    assert stage.play.figures() == figures(1, 0, 2, 2)


async def test_a_cut_at_the_first_token_samples_everything() -> None:
    stage = Stage("hi", "done")
    await stage.go(0)
    stage.turns = ("no", "done")
    stage.now = {(*at(), ord("h")): NEVER}
    second = await stage.go(1)
    assert said(sampled(second, second.token_ids)) == "nodone"
    assert stage.play.figures() == figures(1, 0, 0, 0)


async def test_a_cut_inside_a_call_takes_the_call_back() -> None:
    stage = Stage("so[add]", "done")
    await stage.go(0)
    stage.turns = ("so[and]", "done")
    stage.now = {(*at("so[a"), ord("d")): NEVER}
    second = await stage.go(1)
    assert said(sampled(second, second.token_ids)) == "so[and]done"
    assert sampled(second, second.versions)[:8] == [0, 0] + [1] * 6


async def test_another_answer_of_a_tool_ends_the_draft() -> None:
    stage = Stage("hi", "done")
    await stage.go(0)
    stage.answer = lambda turn: "no"
    second = await stage.go(1)
    assert sampled(second, second.versions) == [0] * 3 + [1] * 5


async def test_with_execute_a_draft_is_judged_after_whatever_a_tool_answers() -> None:
    stage = Stage("hi", "done", reuse="execute")
    await stage.go(0)
    stage.answer = lambda turn: "longer"
    second = await stage.go(1)
    assert sampled(second, second.versions) == [0] * 8
    assert said(second.token_ids) == "ab>hilonger>done"
    assert stage.engine.scored[-1].prompt == second.token_ids[:-5], "in the context as it is"


async def test_a_trusted_world_does_not_run_while_the_same_is_done() -> None:
    stage = Stage("hi", "done", reuse="trust")
    first = await stage.go(0)
    ran = list(stage.log)
    second = await stage.go(1)
    assert stage.log == ran
    assert (second.token_ids, second.outcome) == (first.token_ids, Finished(1.5))
    third = await stage.go(2)
    assert (stage.log, third.token_ids) == (ran, first.token_ids), "it remembers what it remembered"


async def test_a_trusted_world_is_brought_to_where_something_else_is_done() -> None:
    stage = Stage("hi", "done", reuse="trust")
    await stage.go(0)
    ran = list(stage.log)
    stage.turns = ("hi", "doner")
    stage.now = {(*at("hi|ok>done"), END): NEVER}
    second = await stage.go(1)
    assert stage.log == [*ran, ran[0], "hi", "doner"]
    assert second.outcome == Finished(1.5)


async def test_a_trusted_world_that_had_not_told_the_truth_is_played_without_memory() -> None:
    stage = Stage("hi", "done", reuse="trust")
    await stage.go(0)
    stage.turns = ("hi", "doner")
    stage.now = {(*at("hi|ok>done"), END): NEVER}
    stage.answer = lambda turn: "no"
    second = await stage.go(1)
    assert said(second.token_ids) == "ab>hino>doner"
    assert sampled(second, second.versions) == [1] * 9, "the retry has no draft"


async def test_a_world_that_cannot_be_copied_is_never_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(World, "fork_strategy", "none")
    stage = Stage("hi", "done", reuse="trust")
    await stage.go(0)
    await stage.go(1)
    assert stage.log == [stage.log[0], "hi", "done"] * 2


async def test_a_draft_that_is_too_old_to_train_is_not_used() -> None:
    stage = Stage("hi", "done", max_age=2)
    await stage.go(0)
    second = await stage.go(3)
    assert sampled(second, second.versions) == [3] * 8
    third = await stage.go(5)
    assert sampled(third, third.versions) == [3] * 8


async def test_turns_that_a_budget_cut_are_reused_and_cut_there() -> None:
    stage = Stage("hello", "done", limits=EpisodeLimits(max_turn_tokens=3))
    first = await stage.go(0)
    second = await stage.go(1)
    assert second.token_ids == first.token_ids
    assert said(sampled(second, second.token_ids)).startswith("hel")


async def test_a_segment_ends_within_a_draft_and_the_next_goes_on_with_it() -> None:
    stage = Stage("hello", "done", segment=SegmentBudget(tokens=4, turns=9, segments=9))
    first = await stage.go(0)
    second = await stage.go(1)
    assert second.token_ids == first.token_ids
    assert sampled(second, second.versions) == [0] * 11
    assert [len(r.token_ids) for r in stage.engine.scored] == [4, 2, 2, 3]


async def test_a_pause_loses_nothing() -> None:
    """The gate closes while a draft is judged; the trajectory asks again when it opens."""
    stage = Stage("hi", "done")
    first = await stage.go(0)
    asked: list[ScoreRequest] = []
    score = stage.engine.score

    async def paused_once(request: ScoreRequest) -> Any:
        asked.append(request)
        if len(asked) == 1:
            return replace(await score(request), logprobs=())
        return await score(request)

    stage.engine.score = paused_once
    second = await stage.go(1)
    assert [len(r.token_ids) for r in asked] == [3, 3, 5]
    assert second.token_ids == first.token_ids


async def test_an_engine_that_scores_nothing_is_refused() -> None:
    rollouts = Rollouts(make_env=BaseEnv, engine=ScriptedEngine({}), chat=CallChat())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="cannot score"):
        DraftedPlay(rollouts=rollouts, sampling=Sampling(), cache=DraftCache(1), seed=0)


# --- exact draws ----------------------------------------------------------------------------------


class Coin:
    """Two tokens and END: a policy that says one letter, and how likely they are by version."""

    def __init__(self) -> None:
        self.first = {0: 0.5, 1: 0.8}
        self.version = 0

    def row(self, context: tuple[int, ...]) -> list[float]:
        row = [-math.inf] * SIZE
        if context[-1] != ord(">"):
            row[END] = 0.0
            return row
        chance = self.first[self.version]
        row[ord("x")], row[ord("y")] = math.log(chance), math.log(1 - chance)
        return row


@pytest.mark.parametrize(
    ("residual", "known", "want"), [(True, 2, 0.80), (True, 1, 0.80), (False, 2, 0.74)]
)
async def test_what_is_sampled_with_and_without_the_residual(
    residual: bool, known: int, want: float
) -> None:
    """The engine's own contract, through whole episodes; p = (.8, .2), q = (.5, .5)."""
    coin = Coin()

    def draw(request: GenerateRequest) -> Sequence[int]:
        if request.prompt[-1] != ord(">"):
            return (END,)
        drawn = Random(request.seed).random()
        return (ord("x") if drawn < coin.first[coin.version] else ord("y"), END)

    def logprob(request: GenerateRequest, place: int, token: int) -> float:
        return coin.row((*request.prompt, *draw(request)[:place]))[token]

    engine = Likeliest(draw, coin.row, logprob=logprob)
    stage = Stage("x")
    stage.rollouts = replace(
        stage.rollouts, engine=engine, make_env=lambda: Short(lambda t: "", [])
    )
    engine.known = known
    play = stage.player(DraftCache(10**6), Rule(leniency=1), "verify", residual)
    stage.play, stage.engine = play, engine
    count = 1500
    for version in (0, 1):
        coin.version = version
        if version:
            await engine.load(None, version)
        trees = await many(stage, count, version)
        letters = [letters_of(trajectory) for trajectory in trees]
        for trajectory in trees:
            author = trajectory.versions[3]
            assert author == version or not residual, "with a residual they are the policy's own"
            chance = coin.first[author] if letters_of(trajectory) == "x" else 1 - coin.first[author]
            assert trajectory.logprobs[3] == pytest.approx(math.log(chance))
    share = letters.count("x") / count
    assert share == pytest.approx(want, abs=0.025)


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


def letters_of(trajectory: Trajectory) -> str:
    return said(sampled(trajectory, trajectory.token_ids))


class Short(World):
    """Ends after the first turn."""

    async def step(self, action: Action) -> Step:
        return Observation(()), 1.0, True, False, {}


async def many(stage: Stage, count: int, version: int) -> list[Trajectory]:
    """Play one group of so many trajectories."""
    policy = GatePolicy(mode="sync", groups_per_step=1, group_size=count, concurrency=64)
    left = [TASK]

    def take(wanted: int) -> list[Task]:
        taken, left[:] = left[:wanted], left[wanted:]
        return taken

    gate = stage.rollouts.gate(
        policy,
        take,
        sampling=Sampling(),
        seed=lambda number, task, sample: sample + 10_000 * version,
        play=stage.play,
        first_group=version,
        version=version,
    )
    async with gate:
        (tree,) = (await gate.batch()).trees
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
        rule = Rule(leniency=1.0)
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


# --- what a record kept ---------------------------------------------------------------------------


async def test_what_a_record_says_has_ended_is_a_draft_too() -> None:
    stage = Stage("hi", "done")
    tree = await stage.tree(0)
    (leaf,) = tree.leaves
    member = KeptMember(sample=0, seed=1, attempt=0, failures=0, leaf=leaf)
    begins = KeptMember(sample=1, seed=1, attempt=0, failures=0)
    kept = KeptGroup(
        number=0,
        size=2,
        asked=2,
        max_turns=None,
        max_turn_tokens=None,
        tree=tree,
        step=0,
        complete=False,
        members=(member, begins),
    )
    other = stage.player(DraftCache(1000), None, "verify", residual=False)
    other.adopt([kept])
    assert other.saved() == stage.play.saved() == (), "their step is not over"
    await stage.engine.load(None, 1)
    assert other.saved() == stage.play.saved()
    assert len(other.saved()) == 1


async def test_what_ran_out_of_time_or_failed_is_no_draft() -> None:
    stage = Stage("hi", "done", limits=EpisodeLimits(episode_s=0.0))
    trajectory = await stage.go(0)
    assert trajectory.outcome == Truncated("seconds", 0.5)
    await stage.engine.load(None, 1)
    assert stage.play.saved() == ()

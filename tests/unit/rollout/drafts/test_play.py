"""Trajectories with drafts: who is the author of a token, and what ends a draft.

Mutants seen caught. The test: floor of q, leniency outside the scale or with its sign turned, ratio
upside down, NaN let through. The residual: without the chance, whole, drawn from all tokens, with
unknown tokens standing, with the draft's log-prob, redrawn drafts not counted. Calls: only the
first one seen, a mark of several tokens, not taken back. The cache: own version found, last to end,
order of ends, renewed not moved, no bound, an unfinished step saved, adopted not kept, not in the
checkpoint. Turns at wrong places, images taken, current log-prob or version for an old token,
answers not compared, compared with `execute`, a draft that goes on after its cut, a budget or an
abort ignored, the same noise in a turn's parts, every end a length, `none` trusted, a mismatch not
forgotten, actions not compared, `max_age` ignored, another seed for the world, every draft counted
as whole.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import BaseEnv
from agentrl.errors import ConfigError
from agentrl.events.kinds import GroupRequest
from agentrl.events.log import EventLog
from agentrl.policy import Sampling, ScoreRequest, Scores
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.runner import DraftingRunner
from agentrl.rollout.drafts.verify import AcceptanceRule
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.segments import SegmentBudget
from agentrl.trajectory import Finished, Truncated
from benchmarks.letters import END, said
from tests.support.drafts import NEVER, SURE, CallChat, Stage, World, at, sampled

SCORES = 4
"""More than a draft of two turns takes."""


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


@pytest.mark.parametrize("rule", [AcceptanceRule(), AcceptanceRule(leniency=1.0)])
async def test_a_draft_that_was_rejected_is_judged_no_more(rule: AcceptanceRule) -> None:
    """Mutant: a draft lives on after a rejection, is rejected again, and so on without end."""
    stage = Stage("hello", "done", rule=rule, residual=rule.is_exact)
    await stage.go(0)
    stage.turns = ("hey", "done")
    stage.now = {(*at("he"), ord("l")): NEVER}
    judged = 0
    score = stage.engine.score

    async def count(request: ScoreRequest) -> Scores:
        nonlocal judged
        judged += 1
        if judged > SCORES:
            raise ConfigError("the draft is judged again and again")
        return await score(request)

    stage.engine.score = count
    await stage.go(1)
    assert judged <= SCORES


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


@pytest.mark.parametrize("version", range(1, 6))
async def test_where_a_cut_is_does_not_depend_on_segments(version: int) -> None:
    cuts: list[float] = []
    for segment in (None, SegmentBudget(tokens=2, turns=9, segments=9)):
        stage = Stage("abcdefgh", "done", rule=AcceptanceRule(leniency=1.0), segment=segment)
        await stage.go(0)
        text = "abcdefgh"
        stage.now = {(*at(text[:n]), ord(text[n])): SURE - 0.3 for n in range(8)}
        await stage.go(version)
        cuts.append(stage.play.figures()["drafts/saved_tokens"])
    assert cuts[0] == cuts[1]


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
    assert stage.log == [stage.log[0], "hi", "done"] * 2, "it did not fail and begin again"


async def test_an_engine_that_scores_nothing_is_refused() -> None:
    rollouts = RolloutRunner(make_env=BaseEnv, engine=ScriptedEngine({}), chat=CallChat())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="cannot score"):
        DraftingRunner(rollouts=rollouts, sampling=Sampling(), cache=DraftCache(1), seed=0)


# --- what a record kept ---------------------------------------------------------------------------


async def test_what_a_record_says_has_ended_is_a_draft_too() -> None:
    stage = Stage("hi", "done")
    tree = await stage.tree(0)
    (leaf,) = tree.leaves
    log = EventLog()
    group = log.open_group(0, GroupRequest(task=tree.task), size=2, step=0)
    rollouts = [log.start_rollout(0, sample=sample, seed=1, version=0) for sample in range(2)]
    for id, node in enumerate(tree.nodes):
        group.tree.restore(id, node)
    rollouts[0].finish(leaf)
    other = stage.player(DraftCache(1000), None, "verify", residual=False)
    other.adopt([group])
    assert other.list_drafts() == stage.play.list_drafts() == (), "their step is not over"
    await stage.engine.load(None, 1)
    assert other.list_drafts() == stage.play.list_drafts()
    assert len(other.list_drafts()) == 1


async def test_what_ran_out_of_time_or_failed_is_no_draft() -> None:
    stage = Stage("hi", "done", limits=EpisodeLimits(episode_s=0.0))
    trajectory = await stage.go(0)
    assert trajectory.outcome == Truncated("seconds", 0.5)
    await stage.engine.load(None, 1)
    assert stage.play.list_drafts() == ()

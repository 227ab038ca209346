"""The methods, each a way from a task to the attempt that is submitted."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from agentrl.config.evaluate import ScalingSection
from agentrl.evaluation.bounded_gather import gather_bounded
from agentrl.evaluation.scaling.attempt import (
    ScalingAgent,
    ScalingAttempt,
    ScalingMethod,
    ScalingResult,
)
from agentrl.evaluation.scaling.notes import (
    NO_RESULT,
    note_question,
    notes_hint,
    parse_vote,
    plan_hint,
    plan_question,
    vote_question,
)
from agentrl.evaluation.scaling.tournament import TournamentResult, tournament
from agentrl.message import Message
from agentrl.runtime.imports import import_callable
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import call_either
from agentrl.task import Task

Verifier = Callable[[Task, Sequence[Message]], float | Awaitable[float | None] | None]
"""Scores an attempt without knowing its reward; None where it cannot tell."""
Check = Callable[[Task, Sequence[Message]], bool | Awaitable[bool]]
"""A check that an agent could run itself, such as the tests a task shows."""

VOTE_TOKENS = 16
"""Of a judge's answer: a number."""


def usual_answer(text: str) -> str:
    """Return an answer as it is counted: one line, no case, one space between words."""
    return " ".join(text.casefold().split()).strip(" .")


def majority(answers: Sequence[str | None]) -> int | None:
    """Return the first index of the most frequent answer; None and empty ones abstain."""
    votes = [answer for answer in answers if answer]
    if not votes:
        return None
    return answers.index(Counter(votes).most_common(1)[0][0])


def best_of(scores: Sequence[float | None]) -> int | None:
    """Return the first index of the highest score; None and nan do not count."""
    values = [s for s in scores if s is not None and not math.isnan(s)]
    return scores.index(max(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote:
    """The attempt with the answer that most attempts give (self-consistency, arXiv 2203.11171)."""

    samples: int = 16
    answer: Callable[[str], str] = usual_answer
    """Of what was said last: equal texts are equal answers, and an empty one abstains."""

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        attempts = tuple(await agent.attempts(self.samples))
        answers = [self.answer(one.answer) for one in attempts]
        return _submit(attempts, majority(answers), answers=answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """The attempt a verifier scores highest."""

    verifier: Verifier
    samples: int = 16

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        attempts = tuple(await agent.attempts(self.samples))
        scores = [
            None if one.broke else await call_either(self.verifier, agent.task, one.messages)
            for one in attempts
        ]
        return _submit(attempts, best_of(scores), scores=scores)


async def compare_notes(
    section: ScalingSection,
    agent: ScalingAgent,
    attempts: Sequence[ScalingAttempt],
    seeds: tuple[int, int],
    *,
    keep: int = 1,
) -> tuple[list[str], TournamentResult]:
    """Return a note of each attempt, and the `keep` whose notes win; seeds of notes and votes."""
    task = "\n".join(message.text for message in agent.task.messages)

    async def note(place: int) -> str:
        if attempts[place].broke:
            return NO_RESULT
        return await agent.ask(
            note_question(attempts[place].messages, limit_chars=section.transcript_chars),
            max_tokens=section.note_tokens,
            seed=derive(seeds[0], "note", place),
        )

    notes = await gather_bounded(note, range(len(attempts)))

    async def vote(order: tuple[int, ...], seed: int) -> int | None:
        question = vote_question(task, [notes[one] for one in order])
        return parse_vote(await agent.ask(question, max_tokens=VOTE_TOKENS, seed=seed), len(order))

    return notes, await tournament(
        range(len(attempts)),
        vote,
        size=section.group,
        votes=section.votes,
        keep=keep,
        seed=seeds[1],
        has_result=lambda one: not attempts[one].broke,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RtvMethod:
    """The attempt whose note wins a tournament of votes (RTV, arXiv 2604.16529)."""

    section: ScalingSection

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        attempts = tuple(await agent.attempts(self.section.samples))
        seeds = seed, derive(seed, "votes")
        notes, result = await compare_notes(self.section, agent, attempts, seeds)
        chosen = attempts[result.survivors[0]]
        return ScalingResult(chosen=chosen, attempts=attempts, notes=_log_votes(notes, result))


@dataclass(frozen=True, slots=True, kw_only=True)
class PdrMethod:
    """Attempts that have read the best notes of earlier ones, and a tournament among them (PDR,
    arXiv 2604.16529)."""

    section: ScalingSection

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        section = self.section
        first = tuple(await agent.attempts(section.samples))
        seeds = derive(seed, "first"), derive(seed, "first votes")
        notes, best = await compare_notes(section, agent, first, seeds, keep=section.keep)
        read = [notes[one] for one in best.survivors if notes[one] != NO_RESULT]
        second = tuple(await agent.attempts(section.samples, hint=notes_hint(read) if read else ""))
        seeds = derive(seed, "second"), derive(seed, "second votes")
        again, result = await compare_notes(section, agent, second, seeds)
        return ScalingResult(
            chosen=second[result.survivors[0]],
            attempts=(*first, *second),
            notes={"first": _log_votes(notes, best), "second": _log_votes(again, result)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMethod:
    """A second attempt with a plan made of the first one (SAGE, arXiv 2511.05931)."""

    section: ScalingSection
    check: Check | None = None
    """Check of the first attempt: where it holds, that one is submitted and there is no second."""

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        (first,) = await agent.attempts(1)
        if (
            self.check is not None
            and not first.broke
            and await call_either(self.check, agent.task, first.messages)
        ):
            return ScalingResult(chosen=first, attempts=(first,), notes={"checked": True})
        plan = ""
        if not first.broke:
            plan = await agent.ask(
                plan_question(first.messages, limit_chars=self.section.transcript_chars),
                max_tokens=self.section.note_tokens,
                seed=derive(seed, "plan"),
            )
        (second,) = await agent.attempts(1, hint=plan_hint(plan) if plan else "")
        return ScalingResult(chosen=second, attempts=(first, second), notes={"plan": plan})


def _submit(attempts: tuple[ScalingAttempt, ...], index: int | None, **notes: Any) -> ScalingResult:
    """Submit an attempt; the first that did not break where nothing can be told."""
    unbroken = next((one for one in attempts if not one.broke), attempts[0])
    chosen = unbroken if index is None else attempts[index]
    return ScalingResult(chosen=chosen, attempts=attempts, notes={**notes, "chosen": index})


def _log_votes(notes: Sequence[str], found: TournamentResult) -> dict[str, Any]:
    return {
        "notes": list(notes),
        "comparisons": [asdict(one) for one in found.comparisons],
        "survivors": list(found.survivors),
    }


def method_of(section: ScalingSection) -> ScalingMethod:
    """Return the method. Raises `ConfigError` for a function that is not there."""
    match section.name:
        case "majority":
            answer = _function(section.answer) or usual_answer
            return MajorityVote(samples=section.samples, answer=answer)
        case "best_of":
            return BestOfN(verifier=_function(section.verifier), samples=section.samples)
        case "rtv":
            return RtvMethod(section=section)
        case "pdr":
            return PdrMethod(section=section)
        case "sage":
            return SageMethod(section=section, check=_function(section.check))


def _function(name: str | None) -> Any:
    return None if name is None else cast("Any", import_callable(name))

"""The methods, each a way from a task to the attempt that is submitted."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentSettings:
    """Writing of notes, and votes on them."""

    group: int = 2
    votes: int = 8
    note_tokens: int = 1024
    transcript_chars: int = 12_000
    """Of an attempt shown to the one who writes its note."""

    async def notes(
        self, agent: ScalingAgent, attempts: Sequence[ScalingAttempt], seed: int
    ) -> list[str]:
        """Return a note of each attempt."""

        async def note(place: int) -> str:
            if attempts[place].broke:
                return NO_RESULT
            return await agent.ask(
                note_question(attempts[place].messages, limit_chars=self.transcript_chars),
                max_tokens=self.note_tokens,
                seed=derive(seed, "note", place),
            )

        return await gather_bounded(note, range(len(attempts)))

    async def among(
        self,
        agent: ScalingAgent,
        attempts: Sequence[ScalingAttempt],
        notes: Sequence[str],
        keep: int,
        seed: int,
    ) -> TournamentResult:
        """Return the `keep` attempts whose notes win."""
        task = "\n".join(message.text for message in agent.task.messages)

        async def vote(order: tuple[int, ...], seed: int) -> int | None:
            question = vote_question(task, [notes[one] for one in order])
            return parse_vote(
                await agent.ask(question, max_tokens=VOTE_TOKENS, seed=seed), len(order)
            )

        return await tournament(
            range(len(attempts)),
            vote,
            size=self.group,
            votes=self.votes,
            keep=keep,
            seed=seed,
            has_result=lambda one: not attempts[one].broke,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RtvMethod:
    """The attempt whose note wins a tournament of votes (RTV, arXiv 2604.16529)."""

    samples: int = 16
    by: TournamentSettings = field(default_factory=TournamentSettings)

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        attempts = tuple(await agent.attempts(self.samples))
        notes = await self.by.notes(agent, attempts, seed)
        result = await self.by.among(agent, attempts, notes, 1, derive(seed, "votes"))
        return ScalingResult(
            chosen=attempts[result.survivors[0]],
            attempts=attempts,
            notes=_log_votes(notes, result),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PdrMethod:
    """Attempts that have read the best notes of earlier ones, and a tournament among them (PDR,
    arXiv 2604.16529)."""

    samples: int = 16
    """In each of the two rounds."""
    keep: int = 4
    """Notes of the first round that the second one reads."""
    by: TournamentSettings = field(default_factory=TournamentSettings)

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        first = tuple(await agent.attempts(self.samples))
        notes = await self.by.notes(agent, first, derive(seed, "first"))
        best = await self.by.among(agent, first, notes, self.keep, derive(seed, "first votes"))
        read = [notes[one] for one in best.survivors if notes[one] != NO_RESULT]
        second = tuple(await agent.attempts(self.samples, hint=notes_hint(read) if read else ""))
        again = await self.by.notes(agent, second, derive(seed, "second"))
        result = await self.by.among(agent, second, again, 1, derive(seed, "second votes"))
        return ScalingResult(
            chosen=second[result.survivors[0]],
            attempts=(*first, *second),
            notes={"first": _log_votes(notes, best), "second": _log_votes(again, result)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMethod:
    """A second attempt with a plan made of the first one (SAGE, arXiv 2511.05931)."""

    note_tokens: int = 1024
    transcript_chars: int = 12_000
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
                plan_question(first.messages, limit_chars=self.transcript_chars),
                max_tokens=self.note_tokens,
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
    by = TournamentSettings(
        group=section.group,
        votes=section.votes,
        note_tokens=section.note_tokens,
        transcript_chars=section.transcript_chars,
    )
    match section.name:
        case "majority":
            answer = _function(section.answer) or usual_answer
            return MajorityVote(samples=section.samples, answer=answer)
        case "best_of":
            return BestOfN(verifier=_function(section.verifier), samples=section.samples)
        case "rtv":
            return RtvMethod(samples=section.samples, by=by)
        case "pdr":
            return PdrMethod(samples=section.samples, keep=section.keep, by=by)
        case "sage":
            return SageMethod(
                note_tokens=section.note_tokens,
                transcript_chars=section.transcript_chars,
                check=_function(section.check),
            )


def _function(name: str | None) -> Any:
    return None if name is None else cast("Any", import_callable(name))

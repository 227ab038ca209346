"""The method a config asks for."""

from typing import Any, cast

from agentrl.config.evaluate import ScalingSection
from agentrl.evaluation.scaling.attempt import ScalingMethod
from agentrl.evaluation.scaling.methods import (
    BestOfN,
    MajorityVote,
    PdrMethod,
    RtvMethod,
    SageMethod,
    TournamentSettings,
)
from agentrl.evaluation.scaling.selection import usual_answer
from agentrl.runtime.imports import import_callable


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

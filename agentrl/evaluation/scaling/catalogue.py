"""The method a config asks for."""

from typing import Any, cast

from agentrl.config.evaluate import ScalingSection
from agentrl.evaluation.scaling.attempt import Method
from agentrl.evaluation.scaling.choosing import usual_answer
from agentrl.evaluation.scaling.methods import BestOf, Majority, Pdr, Rtv, Sage, Tournaments
from agentrl.registry import load


def method_of(section: ScalingSection) -> Method:
    """Return the method. Raises `ConfigError` for a function that is not there."""
    by = Tournaments(
        group=section.group,
        votes=section.votes,
        note_tokens=section.note_tokens,
        transcript_chars=section.transcript_chars,
    )
    match section.name:
        case "majority":
            answer = _function(section.answer) or usual_answer
            return Majority(samples=section.samples, answer=answer)
        case "best_of":
            return BestOf(verifier=_function(section.verifier), samples=section.samples)
        case "rtv":
            return Rtv(samples=section.samples, by=by)
        case "pdr":
            return Pdr(samples=section.samples, keep=section.keep, by=by)
        case "sage":
            return Sage(
                note_tokens=section.note_tokens,
                transcript_chars=section.transcript_chars,
                check=_function(section.check),
            )


def _function(name: str | None) -> Any:
    return None if name is None else cast("Any", load(name))

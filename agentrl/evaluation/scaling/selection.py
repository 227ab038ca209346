"""One of several: by the answer most of them give, or by the score a verifier gives."""

import math
from collections import Counter
from collections.abc import Sequence


def usual_answer(text: str) -> str:
    """Return an answer as it is counted: one line, no case, one space between words."""
    return " ".join(text.casefold().split()).strip(" .")


def majority(answers: Sequence[str | None]) -> int | None:
    """Return the first that gives the answer most give; None where nobody gives one.

    An answer that is None or empty abstains. Of answers given equally often the first one counts.
    """
    votes = [answer for answer in answers if answer]
    if not votes:
        return None
    return answers.index(Counter(votes).most_common(1)[0][0])


def best_of(scores: Sequence[float | None]) -> int | None:
    """Return the first of those a verifier scores highest; None where it scored nothing.

    A score that is None, or no number, does not count.
    """
    values = [s for s in scores if s is not None and not math.isnan(s)]
    return scores.index(max(values)) if values else None

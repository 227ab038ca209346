"""Whether an answer is the one wanted: exactly, but for how it is written, or by its words.

Both compare as Rajpurkar et al. 2016 (SQuAD) do: without case, punctuation and articles.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Scoring = Literal["exact", "f1"]
SCORINGS: tuple[Scoring, ...] = ("exact", "f1")

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text as answers are compared."""
    plain = text.casefold().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", plain).split())


def exact(answer: str, wanted: Sequence[str]) -> float:
    """Return 1.0 if the answer is one of those wanted."""
    prediction = normalised(answer)
    return float(bool(prediction) and any(prediction == normalised(text) for text in wanted))


def f1(answer: str, wanted: Sequence[str]) -> float:
    """Return the best harmonic mean of precision and recall of words with one of those wanted."""
    return max(_f1(normalised(answer).split(), normalised(text).split()) for text in wanted)


def _f1(given: list[str], wanted: list[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted)) if common else 0.0

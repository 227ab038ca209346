"""Whether what an agent said is the answer: strict about what it is, not how it is dressed."""

import re

_AMOUNT = re.compile(r"(?:eur|euro|euros|€)?\s*(\d+(?:\.\d+)?)\s*(?:eur|euro|euros|€)?")
_EDGES = " \t\n.!\"'`"


def is_same_text(said: str, wanted: str) -> bool:
    """Return whether two texts are one but for case, white space, quotes and an article before."""
    return bool(_normalize(said)) and _normalize(said) == _normalize(wanted)


def is_same_amount(said: str, wanted: str) -> bool:
    """Return whether two texts are the same number, with or without the currency."""
    matches = [_AMOUNT.fullmatch(text.casefold().strip(_EDGES)) for text in (said, wanted)]
    return all(matches) and len({float(match[1]) for match in matches if match}) == 1


def _normalize(text: str) -> str:
    words = " ".join(text.casefold().strip(_EDGES).split())
    return re.sub(r"^(?:an?|the) ", "", words)

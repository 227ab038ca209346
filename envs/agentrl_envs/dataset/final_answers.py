"""The one answer that a message gives, and equality of answers that are texts or numbers."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from agentrl.message import Message
from agentrl.rewards import (
    boxed_answer,
    drop_thoughts,
    last_text,
    marked_answer,
    tagged_answer,
)
from agentrl.task import Task

_NUMBER = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:(?<=\d)e[-+]?\d{1,4})?", re.ASCII
)
_POWER = re.compile(r"(?<=[\d)])[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
"""Powers of numbers: 2\u2075 is not 25. That of a unit may be written either way."""
_AROUND = " *`'\"$"
"""Marks around an answer that are none of it; a full stop at its end is none either."""
_UNSEEN = dict.fromkeys(
    [0x61C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF]
)
"""Characters that neither show nor join letters: marks of direction, zero width. Files copied from
web pages have them, and no policy writes them."""
DIGITS_MAX = 1_000
"""Of a number; a longer one is a text."""


def find_answer(text: str) -> str | None:
    """Return the answer that a text marks as final; None where it marks none.

    Thoughts never count. The last `<answer>...</answer>`, else the last
    `\\boxed{...}`, else what follows the last `####`, else the last `Answer:`.
    """
    text = drop_thoughts(text)
    if "####" in text and tagged_answer(text) is None and boxed_answer(text) is None:
        return text.rpartition("####")[2].strip()
    return marked_answer(text)


def final_answer(text: str) -> str:
    """Return the answer that a text marks as final, else all of it that is no thought."""
    answer = find_answer(text)
    return drop_thoughts(text).strip() if answer is None else answer


def reference_answers(answer: Any) -> tuple[str, ...]:
    """Return the answers that are right: the items of a list, or the one there is.

    Of a solution that marks its answer, as GSM8K's do by `####`, it is that.
    """
    answers = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
    return tuple(final_answer(str(one)) for one in answers)


def find_reference_fault(answer: Any) -> str:
    """Return the reason why an answer is nothing to compare with, or an empty string."""
    answers = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
    for one in answers or [None]:
        if isinstance(one, str) and one.isascii() and one.isalnum():
            continue  # a word or a number: most are, and nothing in them marks an answer
        if one is None or isinstance(one, Mapping | list):
            return f"has {one!r:.60}, which is neither text nor number"
        if not strip_marks(final_answer(str(one))):
            return (
                f"has {one!r:.60}, which marks an empty answer" if str(one).strip() else "is empty"
            )
    return ""


def normalise(text: str) -> str | Decimal:
    """Return a text without case, doubled spaces and marks around it; a number as its value.

    `1,000`, `1000.0` and ` $1000. ` are one number.
    """
    words = strip_marks(text)
    is_number = any(map(str.isdigit, words)) and _NUMBER.fullmatch(words)
    if not is_number or len(words) > DIGITS_MAX:
        return words
    return Decimal(words.replace(",", ""))


def exact_answer(task: Task, messages: Sequence[Message]) -> str | None:
    """Return the final answer, normalised, as a text; None for none."""
    answer = normalise(final_answer(last_text(messages)))
    if not isinstance(answer, Decimal):
        return answer or None
    # Not `Decimal.normalize`, which rounds to 28 digits.
    digits = f"{answer:f}"
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if digits == "-0" else digits


def strip_marks(text: str) -> str:
    """Return a text without case, doubled spaces, unseen characters and marks around it."""
    if not text.isascii():
        text = text.translate(_UNSEEN)
        text = _POWER.sub(lambda power: f"^{power[0]}", text)
    text = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-").casefold()
    return " ".join(text.split()).strip(_AROUND).rstrip(".").strip(_AROUND)


def exact_reward(task: Task, messages: Sequence[Message]) -> float:
    """Return 1.0 if the final answer is equal to a reference, both normalised, else 0.0."""
    answer = normalise(final_answer(last_text(messages)))
    if answer == "":
        return 0.0
    return float(any(answer == normalise(one) for one in reference_answers(task.answer)))

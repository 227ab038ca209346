"""Parts of metrics: the similarity of two texts, and the check of a value against a rule."""

import operator
import re
from collections.abc import Mapping
from typing import Any

_ORDERED = ("eq", "ne", "le", "lt", "ge", "gt")
METHODS = (*_ORDERED, "re", "approx", "range", "str_list_eq", "str_set_eq")
"""Names that a rule's method may begin with."""


def is_known(method: object) -> bool:
    """Say whether values can be put to a rule of this method."""
    return isinstance(method, str) and re.split(r"[.:]", method)[0] in METHODS


def ratio(one: str, two: str) -> float:
    """Return the similarity of two texts, from 0 to 1.

    Twice the length of their longest common subsequence, over their lengths together; by bits, a
    row of the table at a time (Hyyrö, Bit-parallel LCS-length computation revisited, 2004).
    """
    if not one and not two:
        return 1.0
    one, two = sorted((one, two), key=len)
    where: dict[str, int] = {}
    for at, letter in enumerate(one):
        where[letter] = where.get(letter, 0) | 1 << at
    whole = (1 << len(one)) - 1
    row = whole
    for letter in two:
        matched = row & where.get(letter, 0)
        row = ((row + matched) | (row - matched)) & whole
    return 2 * (len(one) - row.bit_count()) / (len(one) + len(two))


def is_ruled(value: Any, rule: Mapping[str, Any]) -> bool:
    """Say whether a value is as `rule["method"]` and `rule["ref"]` say; a wrong type is not."""
    method, ref = str(rule["method"]), rule["ref"]
    try:
        match re.split(r"[.:]", method):
            case ["re", *flags]:
                flag = re.RegexFlag(0)
                for name in flags:
                    flag |= re.RegexFlag[name]
                return isinstance(value, str) and re.search(ref, value, flag) is not None
            case [name] if name in _ORDERED:
                return bool(getattr(operator, name)(value, ref))
            case ["approx", *within]:
                return abs(float(value) - ref) <= float(".".join(within))
            case ["range", ends]:
                low, high = (getattr(operator, f"l{end}") for end in ends)
                return bool(low(ref[0], value) and high(value, ref[1]))
            case ["str_list_eq"]:
                return value.strip("\"'").split(",") == ref
            case ["str_set_eq"]:
                return {*value.strip("\"'").split(",")} == {*ref}
            case _:
                return False
    except (TypeError, ValueError, AttributeError):
        return False

"""How many examples a costly property draws, and how many of many like cases a test takes."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

THOROUGH = "AGENTRL_THOROUGH"
"""The variable that asks for all of them; `make test-all` and CI set it."""
NIGHTLY = pytest.mark.nightly


def examples(count: int) -> int:
    """Return `count` where all are asked for, else a fifth."""
    return count if os.environ.get(THOROUGH) else -(-count // 5)


def spread_cases(cases: Sequence[Any], count: int) -> list[pytest.ParameterSet]:
    """Return `cases` as parameters, all but `count` of them, evenly spread, marked `nightly`.

    A case that is a tuple has a value for each name, as in `pytest.mark.parametrize`.
    """
    kept = {index * len(cases) // count for index in range(count)}
    return [
        case
        if index in kept
        else pytest.param(*case.values, marks=(*case.marks, NIGHTLY), id=case.id)
        for index, case in enumerate(map(_as_parameters, cases))
    ]


def _as_parameters(case: Any) -> pytest.ParameterSet:
    if isinstance(case, pytest.ParameterSet):
        return case
    return pytest.param(*(case if isinstance(case, tuple) else (case,)))

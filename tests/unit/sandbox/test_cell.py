"""A cell is compiled and run once: its statements, then the expression that it ends with.

Mutants seen caught: statements compiled and run where there are none; the expression run with the
statements; the expression compiled before them.
"""

import sys
from types import FrameType
from typing import Any

import pytest

from agentrl_sandbox.inside.cell import CellOutcome, run


def _run_and_count(code: str) -> tuple[CellOutcome, int]:
    """Return the outcome, and how many pieces of the cell's own code were run."""
    pieces = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal pieces
        pieces += event == "call" and frame.f_code.co_filename == "<cell 1>"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        outcome = run(code, {"__builtins__": __builtins__}, number=1, value_bytes_max=1000)
    finally:
        sys.setprofile(before)
    return outcome, pieces


@pytest.mark.parametrize(
    ("code", "value", "pieces"),
    [
        ("1 + 1", "2", 1),
        ("x = 1\nx", "1", 2),
        ("x = 1", None, 1),
        ("1 + 1;", None, 1),
        ("# nothing", None, 1),
    ],
)
def test_what_a_cell_lacks_is_not_run(code: str, value: str | None, pieces: int) -> None:
    assert _run_and_count(code) == (CellOutcome("ok", value=value), pieces)


def test_of_two_errors_the_first_is_said() -> None:
    outcome, pieces = _run_and_count("return 1\nlambda: (yield await 1)")
    assert outcome.error is not None
    assert "'return' outside function" in outcome.error
    assert pieces == 0


@pytest.mark.parametrize(
    "before", ["x = 'a\u2028b\x85c'", "x = 1\x0c", "x = 1\r", "x = 1\r\nx = 2"]
)
def test_an_error_shows_the_line_that_raised(before: str) -> None:
    """Kills: lines that end where Python's own do not, as at a form feed."""
    outcome, _ = _run_and_count(f"{before}\n1 / 0  # here\nx")
    assert outcome.error is not None
    assert "\n    1 / 0  # here\n" in outcome.error

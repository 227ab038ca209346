"""Verdicts of math-verify, in workers that can be killed.

Its own deadlines are alarms after which an answer counts as wrong; here a verdict that is late ends
its worker, and is no verdict.
"""

import importlib
import logging
import os
from typing import Any

from agentrl_envs.adapters.hosted.verdict_worker import VerdictWorker

NEEDS = {"math-verify": "0.9"}


def preload() -> None:
    """Import the library, on one thread."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module("math_verify")
    logging.disable(logging.WARNING)  # that there are no deadlines


class MathWorker(VerdictWorker):
    """Compares answers with references."""

    def score(self, references: list[str], answer: str) -> float:
        """Return 1.0 for an answer equal to one of the references, else 0.0.

        Raises `ValueError` for a reference that cannot be read. An answer that cannot be read, or
        on which the comparison raises, is wrong.
        """
        with self.limited():
            return float(any(self._is_equal(reference, answer) for reference in references))

    def _is_equal(self, reference: str, answer: str) -> bool:
        from math_verify import verify  # pyright: ignore[reportMissingImports]

        gold = self._parse(as_formula(reference), raise_on_error=True)
        if not gold:
            raise ValueError(
                f"the reference {reference!r:.80} is nothing that math-verify can read"
            )
        try:
            read = self._parse(as_formula(answer)) or self._parse(answer)
            return bool(verify(gold, read, timeout_seconds=None))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            return False

    def _parse(self, text: str, *, raise_on_error: bool = False) -> Any:
        from math_verify import parse  # pyright: ignore[reportMissingImports]

        return parse(text, parsing_timeout=None, raise_on_error=raise_on_error)  # pyright: ignore


def as_formula(text: str) -> str:
    """Return a text as a formula that math-verify finds: what has no marks is put between them."""
    has_marks = "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text
    return text if has_marks else f"\\boxed{{{text}}}"


EPISODE = MathWorker

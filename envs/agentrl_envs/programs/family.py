"""Families of programming tasks: constants are drawn, everything else follows from them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Params = dict[str, Any]
"""The constants and the composition of one problem; JSON values."""
Arguments = tuple[Any, ...]
"""Of one call; JSON values."""

LEVELS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFamily:
    """Problems of one kind. Every function is pure; randomness comes in as `Random`."""

    name: str
    arguments: str
    """The parameters of `solve`, as they stand in its `def`."""
    draw: Callable[[Random, int], Params]
    """Draws the constants of a problem of a level."""
    describe: Callable[[Params], str]
    """Says what `solve` must do: everything one needs to know."""
    inputs: Callable[[Random, Params, int], Arguments]
    """Draws the arguments of one call."""
    edges: Callable[[Params], Sequence[Arguments]]
    """Arguments at the borders of the rules: empty, one element, ties."""
    reference: Callable[..., Any]
    """`reference(params, *arguments)` is the right answer. Its source stands alone."""

    def program(self, params: Params) -> str:
        """Return a program that solves the problem."""
        source = inspect.getsource(self.reference)
        expression = f"{self.reference.__name__}({params!r}, {self.arguments})"
        return (
            f"from typing import Any\n\n\n{source}\n\n"
            f"def solve({self.arguments}):\n    return {expression}\n"
        )


def number_steps(steps: Sequence[str]) -> str:
    """Return steps as a number_steps list."""
    return "\n".join(f"{at}. {step}" for at, step in enumerate(steps, 1))

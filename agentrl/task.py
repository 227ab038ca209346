"""Step 1 of the flow: a task, and the two splits it can belong to."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrl.message import Message

Split = Literal["train", "heldout"]
"""Part of an environment's tasks: to train on, or to evaluate with."""
SPLITS: tuple[Split, ...] = ("train", "heldout")
"""Both splits, in order."""
_ENCODER = json.JSONEncoder(sort_keys=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem instance. What the policy may see is `prompt`; the rest is for the checker.

    Raises:
        ValueError: The prompt is empty.
    """

    prompt: str | tuple[Message, ...]
    """A user message, or the opening messages."""
    answer: Any = None
    """Reference for the checker; JSON-serialisable."""
    id: str = ""
    """Unique within its environment; the fingerprint when left empty."""
    split: Split = "train"
    """Split that the task belongs to."""
    seed: int = 0
    """Seed of the world of this task, for environments that draw one."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Anything else the checker or the gold player needs; JSON-serialisable."""
    tags: tuple[str, ...] = ()
    """Groups for reports, such as the task family."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(
                "a task needs a prompt, but the prompt is empty; give the policy a question"
            )
        if not self.id:
            object.__setattr__(self, "id", self.fingerprint)

    def copy(self) -> "Task":
        """Return the task with an answer and data of its own, which an environment may change."""
        return replace(self, answer=deepcopy(self.answer), data=deepcopy(self.data))

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the opening messages: `prompt`, a text as one user message."""
        if isinstance(self.prompt, str):
            return (Message("user", self.prompt),)
        return self.prompt

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits of the prompt's text and answer: equal for equal problems."""
        if isinstance(self.prompt, str):  # as below: data sets have millions
            blob = (
                f'[[["user", {_ENCODER.encode(self.prompt)}, []]], {_ENCODER.encode(self.answer)}]'
            )
        else:
            text = [[m.role, m.text, [i.digest for i in m.images]] for m in self.messages]
            blob = _ENCODER.encode([text, self.answer])
        return hashlib.sha256(blob.encode()).hexdigest()[:16]


def split_of(problem: str, *, heldout_fraction: float = 0.1) -> Split:
    """Return the split that a problem's text falls into, by hash.

    Generators use it beside disjoint seeds: two seeds can produce the same problem, and a problem
    decided by its own text cannot be in both splits.

    Args:
        problem: Text that is equal for equal problems. The prompt will do.
        heldout_fraction: Share of all problems to hold out, within [0, 1].
    """
    bucket = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64
    return "heldout" if bucket < heldout_fraction else "train"

"""Interface of scaling methods: attempts in fresh environments, questions to a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.message import Message
from agentrl.task import Task
from agentrl.trajectory import Failed, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingAttempt:
    """One attempt. No method reads its reward: that is for whoever judges the method."""

    trajectory: Trajectory
    messages: tuple[Message, ...]
    """The conversation, as far as it went."""

    @property
    def broke(self) -> bool:
        """Whether it failed: then it has no result."""
        return isinstance(self.trajectory.outcome, Failed)

    @property
    def answer(self) -> str:
        """Last text of the agent; empty where it broke or ended with a tool call."""
        turns = [message for message in self.messages if message.role == "assistant"]
        return "" if self.broke or not turns or turns[-1].tool_calls else turns[-1].text


class ScalingAgent(Protocol):
    """The policy on one task. Everything it does is counted."""

    @property
    def task(self) -> Task:
        """The task."""
        ...

    async def attempts(self, count: int, *, hint: str = "") -> Sequence[ScalingAttempt]:
        """Play the task `count` more times in fresh worlds, `hint` shown behind its own words."""
        ...

    async def ask(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return a model's answer to a question, asked in a context of its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingResult:
    """Result of a method on a task."""

    chosen: ScalingAttempt
    attempts: tuple[ScalingAttempt, ...]
    """All of them, in the order they were begun."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Basis of the choice, as JSON: votes, notes, plans."""


class ScalingMethod(Protocol):
    """A way to spend more on a task; a pure function of what the agent returns."""

    async def solve(self, agent: ScalingAgent, *, seed: int) -> ScalingResult:
        """Return the attempt that is submitted."""
        ...

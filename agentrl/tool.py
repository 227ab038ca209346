"""Step 2 of the flow: tools the agent may call.

A tool is a typed function. Tools that share state are the `@tool` methods of one class: every
trajectory gets an instance of its own for its whole life, and a fork gets a copy.
"""

from dataclasses import dataclass
from typing import Literal

from agentrl.message import Content, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Who is calling. A tool that declares a parameter of this type is handed it; the model never
    sees it."""

    task_id: str
    sample: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one call did. An `error` is an answer to the model, not a failure of the episode."""

    call_id: str
    name: str
    content: Content
    status: Literal["ok", "error"]
    seconds: float = 0.0

    @property
    def message(self) -> Message:
        """Return the result as the tool message of a conversation."""
        return Message("tool", self.content, tool_call_id=self.call_id, name=self.name)

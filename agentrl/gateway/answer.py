"""One turn of the policy's as a program is told it: pure."""

from dataclasses import dataclass, replace
from typing import Literal

from agentrl.env import Action, TurnRequest, TurnUsage
from agentrl.message import Message, ToolCall

NO_USAGE = TurnUsage(prompt_tokens=0, completion_tokens=0)
"""Usage of an answer whose tokens nobody counted."""
AnswerFinish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAnswer:
    """A message of the policy's, why it ended, and what it cost."""

    id: str
    """Unique within the episode."""
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: AnswerFinish = "stop"
    stop: str | None = None
    """The text of the request's that ended it; not part of `text`."""
    usage: TurnUsage = NO_USAGE

    @property
    def message(self) -> Message:
        """The answer as a message of the conversation."""
        return Message("assistant", self.text, tool_calls=self.tool_calls)


def build_answer(action: Action, request: TurnRequest, *, id: str) -> GatewayAnswer:
    """Return an action as the answer to a request.

    Its calls get ids that no other turn has, since programs keep tables by them. A turn with a
    malformed call is passed on as text, all of it, as a server would that cannot read it. The text
    ends before the first of the request's stop texts.
    """
    text, calls = action.text, action.tool_calls
    if action.malformed:
        text, calls = action.malformed_text or text, ()
    ends = [(place, stop) for stop in request.stop if (place := text.find(stop)) >= 0]
    place, stop = min(ends, default=(len(text), None))
    usage = action.usage or NO_USAGE
    finish: AnswerFinish = "tool_calls" if calls else "stop"
    if usage.finish == "length" and stop is None:
        finish = "length"
    return GatewayAnswer(
        id=id,
        text=text[:place],
        tool_calls=tuple(
            replace(call, id=f"call_{id}_{number}") for number, call in enumerate(calls)
        ),
        finish=finish,
        stop=stop,
        usage=usage,
    )

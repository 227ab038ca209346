"""A recorded expert who presses four buttons and says that the door is open."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from agentrl.env import Action, call, say

WRONG = say("nothing to do")
PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\2\0\0\0\3 no more"
"""The head of a PNG, which is what an environment's pictures are known by."""


def a_recording(question: str = "open the door", steps: int = 5) -> dict[str, Any]:
    """Return an expert that presses buttons 0 to `steps` - 2 and then says so."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for step in range(steps - 1):
        arguments = {"button": step}
        made = {"id": f"call_{step}", "name": "press", "arguments": arguments}
        messages.append({"role": "assistant", "tool_calls": [made], "thought": f"now {step}"})
        shown = ["seen", {"image": b64encode(PICTURE).decode()}]
        answer = {"role": "tool", "tool_call_id": f"call_{step}", "name": "press"}
        messages.append({**answer, "content": shown})
    return {"messages": [*messages, {"role": "assistant", "content": "It is open."}]}


def expert_actions(wrong: Sequence[int] = ()) -> list[Action]:
    """Return what the expert does, but for these steps, counted from 1."""
    right = [*(call("press", button=step) for step in range(4)), say("It is open.")]
    return [WRONG if step in wrong else action for step, action in enumerate(right, 1)]

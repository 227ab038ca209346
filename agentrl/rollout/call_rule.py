"""Rules of a request on tool calls: the opening of its turn, and the parsing of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.env import Action, TurnRequest
from agentrl.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer, TokenSegment


@runtime_checkable
class CallOpener(Protocol):
    """Chat format that can begin a turn as a call, and tell its text."""

    def call_opening(self, tool: str = "") -> "TokenSegment":
        """Return the beginning of a call of `tool`, or of any; `ConfigError` where it cannot."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a turn, without the token that ends it."""
        ...


def call_opening(chat: "ChatRenderer", request: TurnRequest | None) -> tuple["TokenSegment", ...]:
    """Return the opening of the turn that a request asks for: nothing, or that of a call.

    It belongs to the prompt: the policy samples behind it. Raises `EnvError` for a rule that cannot
    be kept.
    """
    if request is None or request.calls == "auto":
        return ()
    try:
        if not isinstance(chat, CallOpener):
            raise ConfigError(f"{type(chat).__name__} does not support rules on tool calls")
        return (chat.call_opening(request.tool),) if request.calls == "required" else ()
    except ConfigError as error:
        rule = repr(request.tool or request.calls)[:80]
        raise EnvError(
            f"'tool_choice' of the request asks for {rule}, but {error}; omit it, or list it in "
            "the environment's ignore_fields"
        ) from error


def read_turn(
    chat: "ChatRenderer", request: TurnRequest | None, token_ids: Sequence[int]
) -> Action:
    """Parse a turn of the policy, the opening it was given included.

    A call that the request does not allow is malformed.
    """
    begun = tuple(token for part in call_opening(chat, request) for token in part.token_ids)
    whole = (*begun, *token_ids)
    action = chat.parse(whole)
    if request is None or request.calls == "auto" or action.malformed:
        return action
    tools = {call.name for call in action.tool_calls} - {request.tool}
    if not tools or (request.calls == "required" and not request.tool):
        return action
    assert isinstance(chat, CallOpener)
    rule = f"only {request.tool!r} may be called" if request.tool else "no tool may be called"
    wrong = tuple(f"The request requires that {rule}, got {tool!r}." for tool in sorted(tools))
    return replace(action, malformed=wrong, malformed_text=chat.text(whole))

"""The first choice of a chat completion: its message, and whether the model had ended it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from agentrl.errors import EngineError

ENDS = frozenset(
    {"stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos"}
    | {"eos_token"}
)
"""Values of `finish_reason` of a message that the model ended, at any server."""
CUTS = frozenset({"length", "max_tokens", "model_length"})
"""Those of a message that a limit of tokens ended."""
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """A message, as far as the model came."""

    message: Mapping[str, Any]
    content: str
    """Its text; "" for none."""
    is_cut: bool
    """True where a limit of tokens ended it."""


def read_choice(answer: Any, *, of: object) -> ChatChoice:
    """Return the first choice of an answer of `of`, an endpoint.

    Raises `EngineError` where there is none, and for a message that something else than the model
    or a limit ended: the provider's fault is no answer of the model.
    """
    body = _mapping(answer)
    choices = body.get("choices")
    choice = _mapping(cast("list[Any]", choices)[0]) if choices and _is_list(choices) else {}
    error = choice.get("error") or ("choices" not in body and body.get("error"))
    if error:
        raise EngineError(f"{of} answered with an error: {error!r:.{_SHOWN_CHARS}}")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise EngineError(
            f"{of} returned no message: choices[0].message is missing in {answer!r:.{_SHOWN_CHARS}}"
        )
    message = cast("dict[str, Any]", message)
    finish = choice.get("finish_reason")
    if finish == "content_filter":
        raise EngineError(
            f"{of} withheld a turn (finish_reason content_filter), which is not an answer of the "
            "model; disable the filter on the server, or remove the task"
        )
    if not isinstance(finish, str) or finish not in ENDS | CUTS:
        raise EngineError(
            f"{of} broke off a message: its finish_reason is {finish!r:.100}, which is neither an "
            "end by the model (stop, tool_calls) nor a limit of tokens (length)"
        )
    try:
        content = read_content(message.get("content"))
    except (KeyError, TypeError) as error:
        raise EngineError(
            f"{of} returned no message: its content is {message['content']!r:.{_SHOWN_CHARS}}, "
            "but it must be a text, or a list of parts with a text"
        ) from error
    return ChatChoice(message, content, finish in CUTS)


def read_content(content: Any) -> str:
    """Return the text of a message's content, or the texts of its parts; "" for none.

    What a model thought, in parts of type `thinking`, is not what it says. Raises a lookup or type
    error for any other content.
    """
    if _is_list(content):
        parts = cast("list[Any]", content)
        content = "".join(part["text"] for part in parts if part["type"] != "thinking")
    if not isinstance(content or "", str):
        raise TypeError("the content is not text")
    return content or ""


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, list)

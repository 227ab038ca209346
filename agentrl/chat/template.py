"""A chat template bound to a tokenizer: messages in, text out."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from jinja2 import TemplateError, TemplateSyntaxError

from agentrl.chat.control_tokens import ControlTokens
from agentrl.chat.dialects import TEMPLATES, find_dialect, load_dialects
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Image, Message
from agentrl.runtime.threads import call_within

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHIPPED = ", ".join(TEMPLATES)
WAY_OUT = f"set policy.template to one shipped with agentrl ({SHIPPED}), or to a Jinja file"

PROOF_S = 60.0
"""Seconds in which what is proved of a template has to be rendered: it takes milliseconds."""

Proof = TypeVar("Proof")
Adapt = Callable[[dict[str, Any]], dict[str, Any]]
"""As `ToolCallDialect.adapt`."""

_CLOCK = re.compile(r"strftime_now\(\s*['\"]([^'\"]*)['\"]")
_TIME_OF_DAY = re.compile(r"%[-_0^#EO]{0,3}[HIklMSfpPsTRrXc]")
_ASK: Final = "ask"
_USER: Final[dict[str, Any]] = {"role": "user", "content": _ASK}
_CALLING: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "find", "arguments": {"what": "asked"}},
        }
    ],
}
_TAKEN = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        *("tokenizer_kwargs", "self", "bos_token", "eos_token", "pad_token", "unk_token"),
    )
)


class _RenderError(Exception):
    """A template refuses messages, or cannot be run; the text says why."""


class ChatTemplate:
    """Renders messages with the tokenizer's own template, a shipped one or one from a file.

    Whatever a message or a tool schema holds, its control tokens are broken by `BREAK`. `options`
    are further variables of the template, such as `enable_thinking`.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name, self.source = _load(tokenizer, template)
        self.control = ControlTokens.from_tokenizer(tokenizer, self.source)
        self._options = dict(options or {})
        check_options(self._options, self.source, name=self.name)
        self._adapt: Adapt | None = None
        self._wants_parts = not self._shows(_USER) and self._shows(_list_content(_USER))
        self._wants_json = self._find_wants_json()

    def adapted(self, adapt: Adapt | None) -> Self:
        """Return this template for messages that a dialect adapts."""
        if adapt == self._adapt:
            return self
        adapted = copy(self)
        adapted._adapt = adapt
        adapted._wants_json = adapted._find_wants_json()
        return adapted

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Return the conversation as text.

        Raises `ConfigError` for messages that the template refuses.
        """
        dicts = [self._form(as_dict(message, self.control)) for message in messages]
        try:
            return self._render(
                dicts,
                tools=[self.control.neutral_in(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
            )
        except _RenderError as error:
            roles = ", ".join(message.role for message in messages) or "no messages"
            raise ConfigError(
                f"{self.name} cannot render this conversation ({roles}): {error}; {WAY_OUT}"
            ) from error

    def _form(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the form that this template wants."""
        if self._adapt is not None:
            message = self._adapt(message)
        if self._wants_json:
            message = _write_arguments(message)
        return _list_content(message) if self._wants_parts else message

    def _find_wants_json(self) -> bool:
        """Return whether the template shows the arguments of a call only where they are JSON."""
        self._wants_json = False
        calling = self._form(_CALLING)
        return not self._shows(self._form(_USER), calling) and self._shows(
            self._form(_USER), _write_arguments(calling)
        )

    def _shows(self, *messages: dict[str, Any]) -> bool:
        """Return whether the template takes these messages and shows the last one."""
        try:
            text = self._render([*messages])
        except (ConfigError, _RenderError):
            return False
        return text.count(_ASK) >= len(messages)

    def _render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Return the text of `_apply`; a template is a program, and may raise anything."""
        try:
            return self._apply(messages, **variables)
        except ConfigError:
            raise
        except Exception as error:
            raise _RenderError(_describe(error)) from error

    def _apply(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        rendered = self.tokenizer.apply_chat_template(
            messages,
            chat_template=self.source,
            tokenize=False,
            **self._options,
            **variables,
        )
        return cast("str", rendered)


def find_time_format(source: str) -> str:
    """Return a format by which a template writes the time of day; empty where it writes none, but
    the date at most."""
    formats = (match[1] for match in _CLOCK.finditer(source))
    return next((each for each in formats if _TIME_OF_DAY.search(each.replace("%%", ""))), "")


def describe_clock(source: str) -> str:
    """Return the fault of a template that writes the time of day; empty for any other."""
    if not (time_format := find_time_format(source)):
        return ""
    return (
        f"it writes the time of day ({time_format!r}), so two renderings of one conversation "
        "differ; let it write the date alone, as strftime_now('%Y-%m-%d')"
    )


def prove_within(name: str, prove: Callable[[], Proof]) -> Proof:
    """Return the result of `prove` for a template; `ConfigError` if it takes longer than `PROOF_S`.

    A loop that does not end is ended; what a template writes into memory is not bounded.
    """
    try:
        return call_within(PROOF_S, prove)
    except TimeoutError as error:
        raise ConfigError(
            f"{name} has not rendered a few short messages within {PROOF_S:g} s: it has a loop "
            f"that does not end, or hardly; {WAY_OUT}"
        ) from error


def check_options(options: Mapping[str, Any], source: str, *, name: str) -> None:
    """Raise `ConfigError` for an option that the template never reads, or that is not free."""
    for key in options:
        if key in _TAKEN or not key.isidentifier():
            raise ConfigError(
                f"policy.chat_template_kwargs has {key!r}, which agentrl itself gives to a chat "
                "template; remove it"
            )
        if re.search(rf"\b{key}\b", source) is None:
            raise ConfigError(
                f"policy.chat_template_kwargs has {key!r}, which {name} does not read, so it would "
                "change nothing; correct the name or remove it"
            )


def as_dict(message: Message, control: ControlTokens) -> dict[str, Any]:
    """Return a message as templates expect it, the control tokens in what it says broken."""
    trusted = message.role in ("system", "assistant")

    def neutral(value: Any) -> Any:
        return control.neutral_in(value, trusted=trusted)

    message_dict: dict[str, Any] = {"role": message.role, "content": neutral(message.text)}
    if message.images:
        message_dict["content"] = [
            {"type": "image"}
            if isinstance(part, Image)
            else {"type": "text", "text": neutral(part)}
            for part in message.content
        ]
    if message.tool_calls:
        message_dict["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": neutral(call.name), "arguments": neutral(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        message_dict["tool_call_id"] = message.tool_call_id
    if message.name:
        message_dict["name"] = neutral(message.name)
    return message_dict


def _list_content(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a list of parts, for a template that takes no text."""
    content = message["content"]
    if isinstance(content, str):
        return message | {"content": [{"type": "text", "text": content}]}
    return message


def _write_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the arguments of its calls as JSON."""
    if "tool_calls" not in message:
        return message
    calls = [
        call
        | {
            "function": call["function"]
            | {"arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}
        }
        for call in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}


def _load(tokenizer: "PreTrainedTokenizerBase", template: str | None) -> tuple[str, str]:
    """Return the name of the template in errors, and its source."""
    if template is not None:
        path = Path(template)
        if template not in TEMPLATES and path.is_file():
            return f"the template {template}", _read_source(path)
        if ":" not in template and template not in load_dialects():
            raise ConfigError(
                f"policy.template is {template!r}, which is neither a shipped template ({SHIPPED}) "
                "nor a file; correct the name or the path"
            )
        dialect = find_dialect(template, key="policy.template")
        return f"the template of the dialect {dialect.name!r}", dialect.template
    chat_template: Any = tokenizer.chat_template
    if isinstance(chat_template, dict):
        templates = cast("dict[str, str]", chat_template)
        chat_template = templates.get("tool_use", templates.get("default"))
    name = tokenizer.name_or_path or "the policy"
    if not isinstance(chat_template, str) or not chat_template:
        raise ConfigError(f"the tokenizer of {name} has no chat template; {WAY_OUT}")
    return f"the chat template of {name}", chat_template


def _read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"policy.template is {str(path)!r}, which cannot be read as UTF-8 text ({error}); name "
            "a Jinja file"
        ) from error


def _describe(error: Exception) -> str:
    """Return the text of an error of a template or renderer, with the line of wrong syntax."""
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, TemplateError | TypeError | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")

"""A chat template bound to a tokenizer: messages in, text out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2 import TemplateError

from agentrl.chat.control_tokens import ControlTokens
from agentrl.chat.dialects import DIALECTS, find_dialect, load_dialects
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Image, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHIPPED = ", ".join(DIALECTS)
WAY_OUT = f"set policy.template to one shipped with agentrl ({SHIPPED}), or to a Jinja file"


class ChatTemplate:
    """Renders messages with the tokenizer's own template, a shipped one or one from a file.

    Whatever a message or a tool schema holds, its control tokens are broken by `BREAK`.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.name, self.source = _load(tokenizer, template)
        self.control = ControlTokens.from_tokenizer(tokenizer, self.source)

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
        try:
            rendered = self.tokenizer.apply_chat_template(
                [as_dict(message, self.control) for message in messages],
                tools=[self.control.neutral_in(tool) for tool in tools] or None,
                chat_template=self.source,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message.role for message in messages) or "no messages"
            raise ConfigError(
                f"{self.name} cannot render this conversation ({roles}): {error}; {WAY_OUT}"
            ) from error
        return cast("str", rendered)


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


def _load(tokenizer: "PreTrainedTokenizerBase", template: str | None) -> tuple[str, str]:
    """Return the name of the template in errors, and its source."""
    if template is not None:
        path = Path(template)
        if template not in DIALECTS and path.is_file():
            return f"the template {template}", path.read_text(encoding="utf-8")
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

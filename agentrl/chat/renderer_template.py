"""Renderers of the package `renderers` as chat templates: messages in, text out; and its parsers.

The package gets a tokenizer whose tokens are single characters, but for the control tokens. So what
it renders comes back as text, in which content is still broken by `BREAK`, and everything that
`ChatFormat` proves of a Jinja template it proves of a renderer.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import ValidationError

from agentrl.chat.call_json import CALL_LIMITS, CALLS_MAX, TOO_MANY, call_of
from agentrl.chat.control_tokens import ControlTokens
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.template import ChatTemplate
from agentrl.chat.thinking import CLOSE, OPEN, end_of_thinking, join_thinking, split_thinking
from agentrl.chat.turn_renderer import CALL, TurnRenderer
from agentrl.env import Action, ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall
from agentrl.runtime.extras import explain_missing
from agentrl.runtime.json_limits import (
    JsonLimitError,
    check_json,
    check_text_bytes,
    read_json,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from transformers import PreTrainedTokenizerBase

RENDERER = "renderer"
"""Name of the dialect that parses with the package itself."""
REFUSED: Mapping[str, str] = {
    "auto": "finds a renderer by the model's name, on the hub where it does not know it",
    "custom": "imports a class of its own configuration",
    "default": "renders the tokenizer's own template, which agentrl does without it",
    "gpt-oss": "downloads a vocabulary of its own, and takes its tokens from there",
}
"""Renderers that cannot be used, and why."""

_FIRST_CHARACTER = 2**24
"""Id of the first character; those of control tokens are smaller."""


class CharacterTokenizer:
    """Tokenizer of single characters and of a real tokenizer's control tokens, without loss."""

    name_or_path = ""
    """Empty, so that nothing is found by a model's name."""
    unk_token_id = None

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        added = cast("dict[str, int]", tokenizer.added_tokens_encoder)
        self._ids = {token: token_id for token, token_id in added.items() if token}
        self._tokens = {token_id: token for token, token_id in self._ids.items()}
        longest_first = sorted(self._ids, key=lambda token: (-len(token), token))
        self._control = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self.eos_token_id = cast("int | None", tokenizer.eos_token_id)
        template: object = tokenizer.chat_template
        self.chat_template = template if isinstance(template, str) else ""

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the ids of a text's characters, and those of the control tokens in it."""
        ids: list[int] = []
        for at, piece in enumerate(self._control.split(text)):
            if at % 2:
                ids.append(self._ids[piece])
            else:
                ids += [_FIRST_CHARACTER + ord(character) for character in piece]
        return ids

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False, **_: Any
    ) -> str:
        """Return the text of these ids."""
        return "".join(
            chr(token - _FIRST_CHARACTER)
            if token >= _FIRST_CHARACTER
            else ("" if skip_special_tokens else self._tokens.get(token, ""))
            for token in token_ids
        )

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a control token; None for one that the real tokenizer has not."""
        if isinstance(tokens, str):
            return self._ids.get(tokens)
        return [self._ids.get(token) for token in tokens]


class RendererTemplate(ChatTemplate):
    """Chat template that the renderer of this name renders, with a typed config of `options`.

    Raises `ConfigError` for a renderer that is unknown or cannot be used offline, an option it does
    not have, and a tokenizer without the tokens it writes.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        renderer: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name, self.source = f"the renderer {renderer!r}", ""
        added = cast("Iterable[Any]", tokenizer.added_tokens_decoder.values())
        self.control = ControlTokens(
            special={t.content for t in added if t.special} | set(tokenizer.all_special_tokens),
            written={t.content for t in added if not t.special and t.content.strip()},
        )
        self._characters = CharacterTokenizer(tokenizer)
        config = build_renderer_config(renderer, options or {})
        from renderers import create_renderer  # pyright: ignore[reportMissingImports]

        try:
            with _as_value_error():
                self._renderer: Any = create_renderer(self._characters, config)
        except ValueError as error:
            raise ConfigError(
                f"policy.renderer is {renderer!r}, which does not go with this tokenizer: {error}; "
                "name the renderer of the tokenizer's model family, or remove policy.renderer"
            ) from error
        self._adapt = None
        self._wants_parts = False
        self._splits_thinking = False
        self._wants_json = self._find_wants_json()
        thinking = {"role": "assistant", "content": "So.", "reasoning_content": "ask"}
        self._splits_thinking = self._shows({"role": "user", "content": "ask"}, thinking)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Return the conversation as text.

        Raises `ConfigError` for messages that the renderer refuses.
        """
        if any(message.images for message in messages):
            raise ConfigError(
                f"{self.name} renders text, but the conversation shows an image; remove "
                "policy.renderer"
            )
        return super().render(messages, tools, generation_prompt=generation_prompt)

    def check_tools(self, text: str, tools: Sequence[ToolSchema]) -> None:
        """Raise `ConfigError` for a tool whose name is not in a rendered prompt."""
        for tool in tools:
            name = self.control.neutral(str(tool["function"]["name"]))
            if name not in text and json.dumps(name)[1:-1] not in text:
                raise ConfigError(
                    f"{self.name} does not show the tool {name!r}: use an environment without "
                    "tools, or remove policy.renderer"
                )

    def _form(self, message: dict[str, Any]) -> dict[str, Any]:
        message = super()._form(message)
        if not self._splits_thinking or message["role"] != "assistant":
            return message
        thought, words = split_thinking(message["content"])
        return message | {"content": words, "reasoning_content": thought} if thought else message

    def _apply(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        with _as_value_error():
            return self._characters.decode(self._renderer.render_ids(messages, **variables))

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that the renderer ends turns with."""
        return frozenset(self._renderer.get_stop_token_ids())

    def dialect(self, turns: TurnRenderer) -> ToolCallDialect:
        """Return the dialect that parses turns with the package, and writes them as it renders."""
        parser = TurnParser(self._characters, self._renderer, self.control, turns)

        def write(text: str, calls: Sequence[ToolCall]) -> str:
            opened = turns.generation_prompt[len(turns.spoken_header) :]
            written = turns.turn(Message("assistant", opened + text, tool_calls=tuple(calls)))
            start = end_of_thinking(written, turns.thinking_close)
            if not _same(read := parser.parse(written, start), text, calls):
                raise ConfigError(
                    f"{self.name} renders a turn as {written!r}, which it reads as {read!r}, so it "
                    "cannot write demonstrations; remove policy.renderer"
                )
            return written

        return ToolCallDialect(name=RENDERER, parse=parser.parse, write=write)


class TurnParser:
    """Parser of turns by the package, within the limits of a call."""

    def __init__(
        self,
        characters: CharacterTokenizer,
        renderer: Any,
        control: ControlTokens,
        turns: TurnRenderer,
    ) -> None:
        self._characters = characters
        self._renderer = renderer
        # A renderer that ends a turn with several tokens ends the last call with the first of them.
        ends = control.special_in(turns.closing)
        self._ending = turns.closing[: ends[-1].start()].strip() if ends else ""
        self._behind_calls = ""
        if not turns.tool_fault:
            calling = turns.turn(Message("assistant", "", tool_calls=(CALL,)))
            start = end_of_thinking(calling, turns.thinking_close)
            self._behind_calls = self.parse(calling, start).text[start:].strip()

    def parse(self, text: str, start: int) -> Action:
        """Read a turn; calls are looked for from the given position on."""
        text += "" if text.endswith(self._ending) else self._ending
        ids = self._characters.encode(text[start:])
        try:
            with _as_value_error():
                parsed = self._renderer.parse_response(ids)
        except ValueError as error:
            return Action(text, malformed=(f"Malformed tool call: {error}.",))
        if parsed.reasoning_complete is False:
            return Action(text)
        calls: list[ToolCall] = []
        malformed: list[str] = []
        read_to = 0
        words = text[:start] + join_thinking(parsed.reasoning_content or "", parsed.content)
        for number, attempt in enumerate(parsed.tool_calls):
            begin, end = attempt.token_span or (read_to, len(ids))
            before = self._characters.decode(ids[read_to:begin])
            between = self._characters.decode(ids[read_to:begin], skip_special_tokens=True).strip()
            # The package drops what is said behind a call.
            words += f"\n{between}" if number and between else ""
            if before.rfind(OPEN) > before.rfind(CLOSE):
                # The package takes a call for the end of the thinking that it stands in.
                thought = self._characters.decode(ids[read_to:])
                return Action((words if number else "") + thought, tuple(calls), tuple(malformed))
            read_to = end
            if number < CALLS_MAX:
                call, fault = read_attempt(attempt, number=len(calls))
                calls += [call] if call is not None else []
                malformed += [f"Malformed tool call: {fault}."] if call is None else []
            elif number == CALLS_MAX:
                malformed.append(TOO_MANY)
        if parsed.tool_calls:
            behind = self._characters.decode(ids[read_to:]).strip()
            behind = behind.removeprefix(self._behind_calls).strip()
            words += f"\n{behind}" if behind and not parsed.content.endswith(behind) else ""
        return Action(words, tuple(calls), tuple(malformed))


def renderer_names() -> tuple[str, ...]:
    """Return the names of the renderers that the package ships."""
    return tuple(_config_classes())


def build_renderer_config(renderer: str, options: Mapping[str, Any]) -> Any:
    """Return the typed config of a renderer; `ConfigError` for one that cannot be used."""
    classes = _config_classes()
    if renderer in REFUSED:
        raise ConfigError(
            f"policy.renderer is {renderer!r}, which {REFUSED[renderer]}; remove policy.renderer"
        )
    if renderer not in classes:
        usable = ", ".join(name for name in classes if name not in REFUSED)
        raise ConfigError(
            f"policy.renderer is {renderer!r}, which the package renderers does not have; its "
            f"renderers are {usable}"
        )
    allowed = sorted(classes[renderer].template_field_names())
    for key in options:
        if key not in allowed:
            raise ConfigError(
                f"policy.chat_template_kwargs has {key!r}, which is no option of the renderer "
                f"{renderer!r}; it has {', '.join(allowed) or 'none'}"
            )
    try:
        return classes[renderer](**options)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise ConfigError(
            f"policy.chat_template_kwargs.{key} is {fault['input']!r}, which the renderer "
            f"{renderer!r} refuses: {fault['msg']}"
        ) from error


def _config_classes() -> dict[str, Any]:
    try:
        from renderers import RendererConfig  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"{explain_missing('policy.renderer', 'renderers')} (its import failed: {error})"
        ) from error
    union = get_args(RendererConfig)[0]
    return {cls.model_fields["name"].default: cls for cls in get_args(union)}


def read_attempt(attempt: Any, *, number: int) -> tuple[ToolCall | None, str]:
    """Return the call that the package read, or else what is wrong with it."""
    if attempt.status != "ok":
        return None, f"it is {str(attempt.status).replace('_', ' ')}"
    try:
        check_text_bytes(attempt.raw, CALL_LIMITS)
        arguments: Any = attempt.arguments
        if isinstance(arguments, str):
            arguments = read_json(arguments, CALL_LIMITS)
        check_json(arguments, CALL_LIMITS)
        check_json(attempt.name, CALL_LIMITS)
    except JsonLimitError as error:
        return None, str(error)
    fields = {"name": attempt.name, "arguments": arguments}
    return call_of(fields, arguments_key="arguments", call_id=attempt.id or f"call_{number}")


def _same(read: Action, text: str, calls: Sequence[ToolCall]) -> bool:
    """Return whether an action is this one, but for the ids of calls and space around words."""
    pairs = [(call.name, call.arguments) for call in read.tool_calls]
    is_same = "".join(read.text.split()) == "".join(text.split())
    return is_same and pairs == [(call.name, call.arguments) for call in calls]


@contextmanager
def _as_value_error() -> "Generator[None]":
    """Raise whatever the package raises as a `ValueError`."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error

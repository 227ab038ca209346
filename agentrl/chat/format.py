"""Messages to tokens and back, incrementally: what is in a context is never rendered again.

    opening ──► sampled ──► reply ──► sampled ──► reply ──► ...

`opening` renders the prompt of an episode, `reply` what follows a sampled turn, `parse` reads a
sampled turn, and `write` makes the one that a demonstration shows. Behind a prompt, `call_opening`
begins a turn that has to be a call; the policy goes on with it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from agentrl.chat.control_tokens import BREAK
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects import DIALECTS, OWN_DIALECT, TEMPLATES, find_dialect, load_dialects
from agentrl.chat.image_window import ImageNote
from agentrl.chat.images import ImageTokens, check_images, expand_images, images_of
from agentrl.chat.renderer import TokenSegment
from agentrl.chat.renderer_template import RENDERER, RendererTemplate
from agentrl.chat.template import WAY_OUT, ChatTemplate, describe_clock
from agentrl.chat.thinking import end_of_thinking
from agentrl.chat.turn_renderer import ANSWER, CALL, SPOKEN, SPOKEN_NEXT, TurnRenderer
from agentrl.env import Action, ToolSchema
from agentrl.errors import ConfigError, EnvError, blame
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.surrogates import replace_surrogates
from agentrl.trajectory import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOTE = "(earlier image)"
"""Stands in the place of an image that has left the context."""

_MAX_TOKEN_ID = 2**31
_SPACES = ("\N{LOWER ONE EIGHTH BLOCK}", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")
"""Space at the beginning of a token, as SentencePiece and byte-level tokenizers write it."""
_TAIL_CHARACTERS = 16
_ANCHORS = ("\n", "0")
"""Stand before a piece whose own predecessor has a token in common with it."""


class TextTokenizer:
    """Tokenises rendered text.

    Tokens end at every `BREAK`, and before and after every generation prompt: the tokens of a turn
    do not depend on the prompt it continues, as those that a policy samples do not.
    """

    adds_space: bool
    """True if the tokenizer begins a text with a space of its own, as those of Llama 2 do."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, generation_prompt: str) -> None:
        self._tokenizer = tokenizer
        prompt = re.escape(generation_prompt)
        self._cuts = re.compile(f"{BREAK}|({prompt})" if prompt else BREAK)
        tokens = cast("list[str]", tokenizer.convert_ids_to_tokens(self._encode("x")))
        self.adds_space = any(token.startswith(_SPACES) for token in tokens[:1])
        added = sorted(cast("dict[str, int]", tokenizer.added_tokens_encoder), key=len)
        self._added = re.compile("|".join(map(re.escape, reversed(added))) or "(?!)")
        self._longest = max(map(len, added), default=0)

    def __call__(self, text: str, *, after: str = "") -> tuple[int, ...]:
        """Return the token ids of a text that stands behind `after`; control tokens in `text`
        become control tokens.

        Half of a surrogate pair, which no tokenizer takes, becomes a question mark.
        """
        tokens: list[int] = []
        for piece in self._cuts.split(replace_surrogates(text)):
            if piece:
                tokens += (
                    self._encode_after(after, piece) if self.adds_space else self._encode(piece)
                )
                after = piece
        return tuple(tokens)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _encode_after(self, before: str, piece: str) -> list[int]:
        """Return the ids of a piece without the space that the tokenizer would begin a text with:
        it gets one only where it does behind `before`, such as behind a control token."""
        if not before:
            return self._encode(piece)
        for tail in (self._find_tail(before), *_ANCHORS):
            prefix = self._encode(tail)
            together = self._encode(tail + piece)
            if together[: len(prefix)] == prefix:
                return together[len(prefix) :]
        return self._encode(piece)

    def _find_tail(self, text: str) -> str:
        """Return the last characters of a text, without cutting an added token in two."""
        at = max(0, len(text) - _TAIL_CHARACTERS)
        added = self._added.finditer(text, max(0, at - self._longest))
        return text[min([at, *(match.start() for match in added if match.end() > at)]) :]


class ChatFormat:
    """Conversion of messages to tokens for one policy. Immutable; safe to share between episodes.

    `template` is a shipped template by name or a Jinja file, the tokenizer's own by default, and
    `options` are variables of it; `renderer` is one of the package `renderers`, in place of a
    template; `dialect` is a dialect by name or `module:NAME`, or the one that reads what the
    template writes; `images` says how many tokens an image is, where the policy sees. With
    `earlier_turns="template"` a new context begins where the template drops the thinking of earlier
    turns. Raises `ConfigError` for a template that cannot be rendered incrementally, and for one
    whose calls no dialect reads: `docs/chat.md`.
    """

    dialect: ToolCallDialect
    stop_token_ids: frozenset[int]
    """Ids of the tokens that end an assistant turn."""
    begins_thinking: bool
    """True if the generation prompt opens a thinking block, so that a turn begins inside it."""
    rewrites_turns: bool
    """True if earlier turns stand without their thinking in the contexts after a user's message."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        dialect: str = "auto",
        template: str | None = None,
        images: ImageTokens | None = None,
        options: Mapping[str, Any] | None = None,
        earlier_turns: Literal["template", "sampled"] = "template",
        renderer: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        moves_tools = earlier_turns == "sampled"
        bound = bind_template(tokenizer, template, options, renderer=renderer)
        if clock_fault := describe_clock(bound.source):
            raise ConfigError(f"{bound.name} cannot be appended to: {clock_fault}, or {WAY_OUT}")
        if dialect == "auto":
            self.dialect, self.template = read_dialect(bound, moves_tools=moves_tools)
        elif dialect == RENDERER and isinstance(bound, RendererTemplate):
            self.dialect, self.template = _read_by_renderer(bound, moves_tools=moves_tools)
        else:
            self.dialect = find_dialect(dialect)
            self.template = bound.adapted(self.dialect.adapt)
        self.turns = TurnRenderer(self.template, moves_tools=moves_tools)
        self.encode = TextTokenizer(tokenizer, generation_prompt=self.turns.generation_prompt)
        self.begins_thinking = self.turns.begins_thinking
        self._closing = self._encode_end(self.turns.closing)
        self._closing_of_calls = self._encode_end(self.turns.closing_of_calls)
        self._glue = self.encode(self.turns.glue, after=self.turns.closing)
        self._prompt = self.encode(self.turns.generation_prompt, after=self.turns.bare)
        ends = (self.turns.end_before(()), self.turns.end_before((ANSWER,)))
        self._ends = {self._closing, self._closing_of_calls, *map(self._encode_end, ends)}
        self.stop_token_ids = self._stops()
        self.rewrites_turns = not moves_tools and self.turns.drops_thinking()

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> tuple[TokenSegment, ...]:
        """Return the prompt of an episode, up to where the policy begins to speak.

        Assistant messages among `messages` get the tokens that `write` gives them wherever the
        template renders the turn as the dialect writes it.
        """
        if tools and self.turns.tool_fault:
            raise ConfigError(f"the environment has tools, but {self.turns.tool_fault}")
        text = self.template.render(messages, tools, generation_prompt=True)
        if isinstance(self.template, RendererTemplate):
            self.template.check_tools(text, tools)
        check_images(self.template, text, images_of(messages))
        return (self._segment("prompt", text, messages),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> tuple[TokenSegment, ...]:
        """Return the segments after a sampled turn, up to where the policy speaks again.

        `ended` says that the policy sampled a stop token; otherwise the template's closes the turn.
        `tools` are those callable from here on, when they changed: they are announced in a user
        message, since a template shows tools in the opening. The work does not grow with the
        conversation.
        """
        if tools is not None:
            messages = (*messages, _notice(tools))
        after = self.turns.render_after(messages)
        check_images(self.template, after, images_of(messages))
        prompt = self.turns.generation_prompt
        has_prompt = bool(prompt) and after.endswith(prompt)
        body = after[: -len(prompt)] if has_prompt else after
        glued = body.startswith(self.turns.glue)
        end = self.turns.end_before(messages)
        closing = () if ended else self._encode_end(end)
        closing += self._glue if glued else ()
        before = end + (self.turns.glue if glued else "")
        text = body.removeprefix(self.turns.glue)
        segments = (
            TokenSegment("template", closing),
            self._segment("tool", text, messages, after=before),
            TokenSegment("template", self._prompt if has_prompt else ()),
        )
        return tuple(segment for segment in segments if segment.token_ids)

    def rewrite_turns(self, parts: Sequence[TokenSegment]) -> tuple[TokenSegment, ...] | None:
        """Return a context as the template renders it once a user speaks again, up to the end of
        its last turn; None where that changes nothing. Turns are the `sampled` parts.

        What the template cannot render, such as a turn that was made to call, stays as it was.
        """
        tokens = [part.token_ids for part in parts]
        cut = [0] * len(parts)
        last = len(parts) - 1
        for at, part in enumerate(parts):
            if part.source not in ("sampled", "forced") or not at:
                continue
            if (rewritten := self._rewrite_turn(tokens[at - 1], tokens[at])) is not None:
                tokens[at - 1], tokens[at] = rewritten
                if at < last and parts[at + 1].source == "template":
                    ends = [end for end in self._ends if tokens[at + 1][: len(end)] == end]
                    cut[at + 1] = max(map(len, ends), default=0)
                    tokens[at + 1] = tokens[at + 1][cut[at + 1] :]
            elif at == last and part.token_ids[-1] not in self.stop_token_ids:
                tokens[at] += self._closing
        if all(part.token_ids == new for part, new in zip(parts, tokens, strict=True)):
            return None
        return tuple(
            TokenSegment(
                part.source,
                new,
                part.images,
                tuple((first - moved, last - moved) for first, last in part.image_spans),
            )
            for part, new, moved in zip(parts, tokens, cut, strict=True)
        )

    def _rewrite_turn(
        self, before: tuple[int, ...], turn: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the tokens before a turn without the generation prompt, and the turn with its
        header and end as one of the past; None where it is none that a prompt opened."""
        if not self._prompt or before[-len(self._prompt) :] != self._prompt:
            return None
        action = self.parse(turn)
        said = action.message
        if action.malformed:
            said = Message("assistant", self.text(turn))
        if self.begins_thinking:
            opened = self.turns.generation_prompt[len(self.turns.spoken_header) :]
            said = replace(said, content=opened + said.text)
        try:
            text = self.turns.past_turn(said)
        except ConfigError:
            return None
        return before[: -len(self._prompt)], self.encode(text, after=self.turns.bare)

    def ends_turn(self, token_id: int, messages: Sequence[Message]) -> bool:
        """Return whether a turn that ends with this token needs no other end before `messages`.

        A token that begins what follows, such as the role of the next message, must be the one that
        begins these messages.
        """
        if token_id not in self.stop_token_ids:
            return False
        end = self.turns.end_before(messages)
        return end not in self.dialect.begins_next or self._encode_end(end)[-1] == token_id

    def call_opening(self, tool: str = "") -> TokenSegment:
        """Return the beginning of a turn that calls `tool`, or any tool, behind a prompt.

        What the policy samples goes on from there, and `parse` reads both together. Raises
        `ConfigError` where a turn cannot be made to call.
        """
        if self.dialect.begin is None:
            raise ConfigError(f"the dialect {self.dialect.name!r} has no prefix of a call")
        if self.begins_thinking:
            raise ConfigError(
                f"{self.template.name} makes the policy think first, where no call can be parsed"
            )
        name = self.template.control.neutral(tool)
        return TokenSegment("template", self.encode_turn(self.dialect.begin(name)))

    @property
    def image_note(self) -> ImageNote:
        """Note in the place of an image that is in a context no more."""
        picture = Image(b"")
        text = self.template.render((Message("user", (SPOKEN, picture, SPOKEN_NEXT)),))
        between = self.encode(text.partition(SPOKEN)[2].partition(SPOKEN_NEXT)[0])
        if self._images is None or between.count(self._images.token_id) != 1:
            raise ConfigError(
                f"{self.template.name} represents an image as {between}, without a single "
                f"placeholder token; remove rollout.images, or {WAY_OUT}"
            )
        at = between.index(self._images.token_id)
        return ImageNote(self.encode(NOTE), at, len(between) - at - 1)

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a sampled turn, for any token ids.

        Raises `EnvError`, and nothing else, for a dialect that breaks its promise to read any text.
        """
        text = self.text(token_ids)
        start = end_of_thinking(text, self.turns.thinking_close)
        with blame(EnvError, f"the dialect {self.dialect.name!r} cannot parse a turn"):
            action = cast("Any", self.dialect.parse(text, start))
            if not isinstance(action, Action):
                raise TypeError(f"its parse returned a {type(action).__name__}; return an Action")
        return replace(action, malformed_text=text) if action.malformed else action

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a turn without the token that ends it, for any token ids."""
        turn_tokens = (
            token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids
        )
        # A padded vocabulary has ids that stand for nothing; they decode to nothing.
        vocab_ids = [token for token in turn_tokens if 0 <= token < _MAX_TOKEN_ID]
        return cast(
            "str",
            self._tokenizer.decode(
                vocab_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            ),
        )

    def write(self, action: Action) -> tuple[int, ...]:
        """Return the ids a policy would have sampled for this action, its stop token included.

        Raises `ValueError` for an action with malformed calls.
        """
        if action.malformed:
            raise ValueError(
                f"an action with {len(action.malformed)} malformed calls cannot be rendered; "
                "demonstrate only well-formed calls"
            )
        control = self.template.control
        calls = [
            ToolCall(
                call.id,
                control.neutral(call.name, trusted=True),
                control.neutral_in(call.arguments, trusted=True),
            )
            for call in action.tool_calls
        ]
        text = self.dialect.write(control.neutral(action.text, trusted=True), calls)
        return self.encode_turn(text) + (self._closing_of_calls if calls else self._closing)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Return the ids of a turn, or of its beginning, behind what opens it.

        Where that is a space, which such a tokenizer drops as it decodes, the turn begins with it.
        """
        turns = self.turns
        is_spaced = self.encode.adds_space and not text.startswith(turns.lead)
        opened = turns.bare + turns.generation_prompt
        return self.encode(turns.lead + text if is_spaced else text, after=opened)

    def _encode_end(self, text: str) -> tuple[int, ...]:
        """Return the ids of what stands behind what a turn says."""
        return self.encode(text, after=SPOKEN)

    def _segment(
        self, source: Source, text: str, messages: Sequence[Message], *, after: str = ""
    ) -> TokenSegment:
        images = images_of(messages)
        tokens, spans = expand_images(
            self.encode(text, after=after), images, self._images, template=self.template.name
        )
        return TokenSegment(source, tokens, images, spans)

    def _stops(self) -> frozenset[int]:
        added = cast("dict[str, int]", self._tokenizer.added_tokens_encoder)
        stops = {self._closing[-1], self._closing_of_calls[-1]}
        further = (*self.dialect.also_stops, *self.dialect.begins_next)
        stops.update(added[token] for token in further if token in added)
        if isinstance(self.template, RendererTemplate):
            stops |= self.template.stop_token_ids
        eos_id: Any = self._tokenizer.eos_token_id
        return frozenset(stops if eos_id is None else stops | {eos_id})


def bind_template(
    tokenizer: "PreTrainedTokenizerBase",
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    renderer: str | None = None,
) -> ChatTemplate:
    """Return the chat template of a tokenizer, or the renderer that is named in place of it."""
    if renderer is None:
        return ChatTemplate(tokenizer, template, options)
    if template is not None:
        raise ConfigError(
            f"policy.renderer is {renderer!r} and policy.template is {template!r}, but only one of "
            "them renders messages; remove the other"
        )
    return RendererTemplate(tokenizer, renderer, options)


def read_dialect(
    template: ChatTemplate, *, moves_tools: bool = False
) -> tuple[ToolCallDialect, ChatTemplate]:
    """Return the dialect that reads the calls which a template writes, and the template for it.

    Where several read them, it is the one that writes them so, or else the first. A template that
    knows no tools, and so is used without, gets Hermes. Raises `ConfigError` for calls that nobody
    reads, and where a template that shows tools does not show how they are called: another
    dialect's calls would be trained without a word.
    """
    candidate = None
    dialects = load_dialects().values()
    for dialect in dialects:
        if dialect.folder is not None and dialect.template == template.source:
            return dialect, template.adapted(dialect.adapt)
    for adapt in dict.fromkeys((None, *(dialect.adapt for dialect in dialects))):
        adapted = template.adapted(adapt)
        try:
            turn = TurnRenderer(adapted, moves_tools=moves_tools).turn(_CALLING)
        except ConfigError:
            continue
        for dialect in (dialect for dialect in dialects if dialect.adapt in (adapt, None)):
            if not _reads(dialect, turn) or (candidate and dialect.adapt != adapt):
                continue
            if turn.endswith(dialect.write("", (CALL,))):
                return dialect, adapted
            candidate = candidate or (dialect, adapted)
    if candidate is not None:
        return candidate
    turns = TurnRenderer(template, moves_tools=moves_tools)
    if isinstance(template, RendererTemplate) and not turns.tool_fault:
        return _read_by_renderer(template, moves_tools=moves_tools)
    _check_no_calls(template, turns)
    return DIALECTS["hermes"], template


def _read_by_renderer(
    template: RendererTemplate, *, moves_tools: bool
) -> tuple[ToolCallDialect, ChatTemplate]:
    """Return the dialect that parses as the renderer does, and the template for it.

    Raises `ConfigError` for a renderer that does not parse the call it renders.
    """
    for adapt in dict.fromkeys((None, *(dialect.adapt for dialect in load_dialects().values()))):
        adapted = template.adapted(adapt)
        turns = TurnRenderer(adapted, moves_tools=moves_tools)
        own = adapted.dialect(turns)
        if turns.tool_fault or _reads(own, turns.turn(_CALLING)):
            return own, adapted
    raise ConfigError(
        f"{template.name} does not parse the calls that it renders without the schemas of the "
        "tools, which a turn does not have; set policy.dialect to one of agentrl's that the model "
        "was trained with, or remove policy.renderer"
    )


def _reads(dialect: ToolCallDialect, turn: str) -> bool:
    try:
        read = dialect.parse(turn, 0).tool_calls
    except Exception as error:
        raise ConfigError(
            f"the dialect {dialect.name!r} cannot parse {turn!r}: {type(error).__name__}: "
            f"{error}; {_NAME_ONE}"
        ) from error
    return [(call.name, call.arguments) for call in read] == [(CALL.name, CALL.arguments)]


def _check_no_calls(template: ChatTemplate, turns: TurnRenderer) -> None:
    """Raise `ConfigError` for a template whose calls no dialect reads, unless it has none."""
    try:
        turn = turns.turn(_CALLING)
    except ConfigError as error:
        if "tool_calls" not in template.source:
            return
        raise ConfigError(
            f"{template.name} has a syntax for tool calls but cannot render one, so its dialect "
            f"cannot be detected ({error}); {_NAME_ONE}"
        ) from error
    if turn != turns.turn(Message("assistant", "")):
        raise ConfigError(
            f"{template.name} renders a tool call as {turn!r}, which no dialect can parse; "
            f"{_NAME_ONE}"
        )
    if not turns.tool_fault:
        raise ConfigError(
            f"{template.name} shows tools but omits the calls of earlier turns, so its dialect "
            f"cannot be detected; {_NAME_ONE}"
        )


_CALLING = Message("assistant", "", tool_calls=(CALL,))
_NAME_ONE = (
    "set policy.dialect to the one the model was trained with, policy.template to one shipped with "
    f"agentrl ({', '.join(TEMPLATES)}), or {OWN_DIALECT}"
)


def _notice(tools: Sequence[ToolSchema]) -> Message:
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return Message("user", "\n".join(["From here on you have these tools:", *lines]))

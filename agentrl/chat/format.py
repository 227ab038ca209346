"""Messages to tokens and back, incrementally: what is in a context is never rendered again.

    opening ──► sampled ──► reply ──► sampled ──► reply ──► ...

`opening` renders the prompt of an episode, `reply` what follows a sampled turn, `parse` reads a
sampled turn, and `write` makes the one that a demonstration shows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from agentrl.chat.dialect import Dialect
from agentrl.chat.dialects import DIALECTS
from agentrl.chat.encoding import Encoder
from agentrl.chat.images import ImageTokens, check_images, expanded, images_of
from agentrl.chat.template import WAY_OUT, ChatTemplate
from agentrl.chat.thinking import OPEN as THINK
from agentrl.chat.thinking import end_of_thinking
from agentrl.chat.turns import CALL, SPOKEN, SPOKEN_NEXT, Turns
from agentrl.env import Action, ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Image, Message, ToolCall
from agentrl.rollout.image_window import ImageNote
from agentrl.trajectory import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOTE = "(earlier image)"
"""Stands in the place of an image that has left the context."""

_MAX_TOKEN_ID = 2**31


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens from one source."""

    source: Source
    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    """Those whose tokens are among them."""
    image_spans: tuple[tuple[int, int], ...] = ()
    """First and one past the last of the tokens of each."""


class ChatFormat:
    """How messages become tokens for one policy. Immutable; safe to share between episodes.

    `template` is a shipped template by name or a Jinja file, the tokenizer's own by default;
    `dialect` a dialect by name, or the one that reads what the template writes; `images` says how
    many tokens an image is, where the policy sees. Raises `ConfigError` for a template that cannot
    be rendered incrementally: `docs/chat.md`.
    """

    dialect: Dialect
    stop_token_ids: frozenset[int]
    """What ends an assistant turn."""
    begins_thinking: bool
    """Whether the generation prompt opens a thinking block, so that a turn begins inside it."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        dialect: str = "auto",
        template: str | None = None,
        images: ImageTokens | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self.template = ChatTemplate(tokenizer, template)
        self.turns = Turns(self.template)
        self.dialect = find_dialect(dialect, self.template, self.turns)
        self.encode = Encoder(tokenizer, generation_prompt=self.turns.generation_prompt)
        self.begins_thinking = self.turns.generation_prompt.rstrip().endswith(THINK)
        self._closing = self.encode(self.turns.closing)
        self._glue = self.encode(self.turns.glue)
        self._prompt = self.encode(self.turns.generation_prompt)
        self.stop_token_ids = self._stops()

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> tuple[Segment, ...]:
        """Return the prompt of an episode, up to where the policy begins to speak.

        Assistant messages among `messages` get the tokens that `write` gives them wherever the
        template renders the turn as the dialect writes it.
        """
        if tools and self.turns.tool_fault:
            raise ConfigError(f"the environment has tools, and {self.turns.tool_fault}")
        text = self.template.render(messages, tools, generation_prompt=True)
        check_images(self.template, text, images_of(messages))
        return (self._segment("prompt", text, messages),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> tuple[Segment, ...]:
        """Return what follows a sampled turn, up to where the policy speaks again.

        `ended` says that the policy sampled a stop token; otherwise the template's closes the turn.
        `tools` are those callable from here on, when they changed: they are announced in a user
        message, since a template shows tools in the opening. The work does not grow with the
        conversation.
        """
        if tools is not None:
            messages = (*messages, _notice(tools))
        after = self.turns.after(messages)
        check_images(self.template, after, images_of(messages))
        prompt = self.turns.generation_prompt
        asked = bool(prompt) and after.endswith(prompt)
        shown = after[: -len(prompt)] if asked else after
        glued = shown.startswith(self.turns.glue)
        closing = (() if ended else self._closing) + (self._glue if glued else ())
        said = shown.removeprefix(self.turns.glue)
        segments = (
            Segment("template", closing),
            self._segment("tool", said, messages),
            Segment("template", self._prompt if asked else ()),
        )
        return tuple(segment for segment in segments if segment.token_ids)

    @property
    def image_note(self) -> ImageNote:
        """Return what stands in the place of an image that is in a context no more."""
        picture = Image(b"")
        shown = self.template.render((Message("user", (SPOKEN, picture, SPOKEN_NEXT)),))
        between = self.encode(shown.partition(SPOKEN)[2].partition(SPOKEN_NEXT)[0])
        if self._images is None or between.count(self._images.token_id) != 1:
            raise ConfigError(
                f"{self.template.name} shows an image as {between}, without one token that stands "
                f"for it; leave rollout.images out, or {WAY_OUT}"
            )
        at = between.index(self._images.token_id)
        return ImageNote(self.encode(NOTE), at, len(between) - at - 1)

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a sampled turn. Never raises, for any token ids."""
        said = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids
        # A padded vocabulary has ids that stand for nothing; they decode to nothing.
        known = [token for token in said if 0 <= token < _MAX_TOKEN_ID]
        text = cast(
            "str",
            self._tokenizer.decode(
                known, skip_special_tokens=False, clean_up_tokenization_spaces=False
            ),
        )
        return self.dialect.parse(text, end_of_thinking(text) if self.begins_thinking else 0)

    def write(self, action: Action) -> tuple[int, ...]:
        """Return the ids a policy would have sampled for this action, its stop token included.

        Raises `ValueError` for an action with malformed calls.
        """
        if action.malformed:
            raise ValueError(
                f"an action with {len(action.malformed)} malformed calls cannot be written; "
                "demonstrate calls that can be read"
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
        return self.encode(text) + self._closing

    def _segment(self, source: Source, text: str, messages: Sequence[Message]) -> Segment:
        """Return rendered text as tokens, with what the messages show."""
        images = images_of(messages)
        tokens, spans = expanded(
            self.encode(text), images, self._images, template=self.template.name
        )
        return Segment(source, tokens, images, spans)

    def _stops(self) -> frozenset[int]:
        added = cast("dict[str, int]", self._tokenizer.added_tokens_encoder)
        stops = {self._closing[-1]}
        stops.update(added[token] for token in self.dialect.also_stops if token in added)
        own: Any = self._tokenizer.eos_token_id
        return frozenset(stops if own is None else stops | {own})


def find_dialect(name: str, template: ChatTemplate, turns: Turns) -> Dialect:
    """Return the dialect called `name`; `auto` is the one that reads the template's own calls.

    A template that writes no calls gets Hermes. Raises `ConfigError` for a name nobody has and for
    calls nobody reads.
    """
    if name != "auto":
        if name in DIALECTS:
            return DIALECTS[name]
        near = get_close_matches(name, DIALECTS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(DIALECTS)}"
        raise ConfigError(f"policy.dialect is {name!r}, which is no dialect; {meant}")
    try:
        turn = turns.turn(Message("assistant", "", tool_calls=(CALL,)))
    except ConfigError:
        return DIALECTS["hermes"]
    for dialect in DIALECTS.values():
        if [(c.name, c.arguments) for c in dialect.parse(turn, 0).tool_calls] == [
            (CALL.name, CALL.arguments)
        ]:
            return dialect
    if CALL.name not in turn:
        return DIALECTS["hermes"]
    raise ConfigError(
        f"{template.name} writes a tool call as {turn!r}, which no dialect of agentrl reads "
        f"({', '.join(DIALECTS)}); set policy.template and policy.dialect to the same one of them"
    )


def _notice(tools: Sequence[ToolSchema]) -> Message:
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return Message("user", "\n".join(["From here on you have these tools:", *lines]))

"""Conversations become demonstrations: those of a gold player, and a user's own recordings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agentrl.authoring.gold import GoldEpisode
from agentrl.chat.patch import ChatWriter
from agentrl.chat.renderer import ChatRenderer, TokenSegment
from agentrl.env import Action, ToolSchema
from agentrl.errors import ConfigError
from agentrl.learn.recording import ConversationRecording, RecordedAction
from agentrl.learn.warmstart import TokenizedDemonstration
from agentrl.message import ImageSpan, Message


@runtime_checkable
class WritingChat(ChatRenderer, ChatWriter, Protocol):
    """A chat format that can also write what the policy would have sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationTurns:
    """A conversation by turns: what the agent did, and what it was answered each time."""

    name: str
    """Name in error messages."""
    opening: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    turns: tuple[tuple[Action, tuple[Message, ...]], ...]
    new_tools: Mapping[int, tuple[ToolSchema, ...]] = field(
        default_factory=dict[int, tuple[ToolSchema, ...]]
    )
    """Tools callable from the answer of a turn on, by turn counted from 0, where they changed."""

    @classmethod
    def from_gold(cls, episode: GoldEpisode) -> "DemonstrationTurns":
        """Return a gold player's conversation. It may have been stopped before the last answer."""
        answers = [reply.messages for reply in episode.replies]
        answers += [()] * (len(episode.actions) - len(answers))
        tools = {i: r.tools for i, r in enumerate(episode.replies) if r.tools is not None}
        return cls(
            name=f"the gold episode of task {episode.task.id!r}",
            opening=episode.opening.messages,
            tools=episode.opening.tools or (),
            turns=tuple(zip(episode.actions, answers, strict=True)),
            new_tools=tools,
        )

    @classmethod
    def from_recording(cls, recording: ConversationRecording, name: str) -> "DemonstrationTurns":
        """Return a recorded conversation; what comes before the first action is the opening."""
        opening: list[Message] = []
        turns: list[tuple[Action, list[Message]]] = []
        for entry in recording.messages:
            message = entry.message
            if isinstance(entry, RecordedAction):
                turns.append((Action(message.text, message.tool_calls), []))
            elif turns:
                turns[-1][1].append(message)
            else:
                opening.append(message)
        return cls(
            name=name,
            opening=tuple(opening),
            tools=tuple(recording.tools),
            turns=tuple((action, tuple(answers)) for action, answers in turns),
        )


def demonstrations(
    conversations: Iterable[DemonstrationTurns], chat: WritingChat, *, context_tokens: int
) -> list[TokenizedDemonstration]:
    """Return one demonstration per conversation: the actions are learnt, the rest is read.

    What follows the last action is left out. Raises `ConfigError` for a conversation that does not
    fit the context.
    """
    return [_demonstration(c, chat, context_tokens=context_tokens) for c in conversations]


def _demonstration(
    conversation: DemonstrationTurns, chat: WritingChat, *, context_tokens: int
) -> TokenizedDemonstration:
    token_ids: list[int] = []
    mask: list[bool] = []
    images: list[ImageSpan] = []

    def read(segments: Sequence[TokenSegment]) -> None:
        for segment in segments:
            images.extend(
                ImageSpan(image, len(token_ids) + start, len(token_ids) + stop)
                for image, (start, stop) in zip(segment.images, segment.image_spans, strict=True)
            )
            extend(segment.token_ids, learnt=False)

    def extend(tokens: tuple[int, ...], *, learnt: bool) -> None:
        token_ids.extend(tokens)
        mask.extend([learnt] * len(tokens))

    read(chat.opening(conversation.opening, conversation.tools))
    last = len(conversation.turns) - 1
    for turn, (action, answers) in enumerate(conversation.turns):
        turn_tokens = chat.write(action)
        _check_calls(chat.parse(turn_tokens), action, of=f"turn {turn + 1} of {conversation.name}")
        extend(turn_tokens, learnt=True)
        if turn < last:
            read(chat.reply(answers, ended=True, tools=conversation.new_tools.get(turn)))
    if len(token_ids) > context_tokens:
        raise ConfigError(
            f"{conversation.name} has {len(token_ids)} tokens, but "
            f"engine.context_tokens={context_tokens} allows fewer; raise it, or remove this "
            "recording"
        )
    return TokenizedDemonstration(tuple(token_ids), tuple(mask), tuple(images))


def _check_calls(read_action: Action, action: Action, *, of: str) -> None:
    """Raise `ConfigError` where a turn's tokens are read as other calls than were made in it."""
    if read_action.malformed or len(read_action.tool_calls) != len(action.tool_calls):
        read_count = len(read_action.tool_calls) + len(read_action.malformed)
        raise ConfigError(
            f"{of} has {len(action.tool_calls)} calls, but is read as {read_count}; its text must "
            f"hold no call and no unfinished thought, got {action.text!r:.120}"
        )

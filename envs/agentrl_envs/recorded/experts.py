"""Recordings as experts to be followed: what each did turn by turn, and what answered it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.env import Action, Box, ToolSchema
from agentrl.errors import ConfigError
from agentrl.learn.recording import (
    ConversationRecording,
    RecordedAction,
    RecordedAnswer,
    RecordedPrompt,
    names_of,
    read_recordings,
    text_of,
)
from agentrl.message import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTurn:
    """One action, what was thought before it, and what followed."""

    action: Action
    """Without the thought."""
    thought: str
    places: Mapping[int, Box]
    """Boxes of the elements that it could point at, by their numbers."""
    told: tuple[RecordedPrompt | RecordedAnswer, ...] = ()
    """Messages that followed, as recorded: pictures are read when they are shown."""

    @property
    def answers(self) -> tuple[Message, ...]:
        """Messages that followed; reads their pictures."""
        return tuple(answer.message for answer in self.told)

    @property
    def with_thought(self) -> Action:
        """Return the action as it was said, the thought first."""
        text = "\n".join(part for part in (self.thought, self.action.text) if part)
        return replace(self.action, text=text)

    def answers_to(self, calls: tuple[ToolCall, ...]) -> tuple[Message, ...]:
        """Return the messages that followed, as answers to the same calls under other ids."""
        renamed = {
            expert_call.id: call.id
            for expert_call, call in zip(self.action.tool_calls, calls, strict=False)
        }
        return tuple(
            replace(m, tool_call_id=renamed.get(m.tool_call_id, m.tool_call_id))
            if m.tool_call_id is not None
            else m
            for m in self.answers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTrajectory:
    """One recorded trajectory."""

    asked: tuple[RecordedPrompt | RecordedAnswer, ...]
    """Messages of the task, as recorded."""
    tools: tuple[ToolSchema, ...]
    turns: tuple[ExpertTurn, ...]

    @property
    def opening(self) -> tuple[Message, ...]:
        """Messages of the task; reads their pictures."""
        return tuple(entry.message for entry in self.asked)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """Messages of the task, in words only."""
        return tuple(Message(entry.role, text_of(entry.content)) for entry in self.asked)

    @property
    def actions(self) -> list[Any]:
        """Actions of the turns, as JSON."""
        return [
            [turn.action.text, [[c.name, dict(c.arguments)] for c in turn.action.tool_calls]]
            for turn in self.turns
        ]

    @property
    def id(self) -> str:
        """Return 16 hex digits of what was asked and done: two equal ones are one task."""
        prompts = [[s.role, text_of(s.content), names_of(s.content)] for s in self.asked]
        blob = json.dumps([prompts, self.actions], sort_keys=True, default=str)
        return hashlib.sha256(blob.encode()).hexdigest()[:16]

    @classmethod
    def from_recording(cls, recording: ConversationRecording) -> "ExpertTrajectory":
        """Return a recording by turns; what comes before the first action is the opening."""
        opening: list[RecordedPrompt | RecordedAnswer] = []
        turns: list[ExpertTurn] = []
        for entry in recording.messages:
            if isinstance(entry, RecordedAction):
                action = Action(entry.content, entry.message.tool_calls)
                turns.append(ExpertTurn(action=action, thought=entry.thought, places=entry.places))
            elif turns:
                turns[-1] = replace(turns[-1], told=(*turns[-1].told, entry))
            else:
                opening.append(entry)
        return cls(asked=tuple(opening), tools=recording.tools, turns=tuple(turns))


def experts_of(
    path: Path, *, minimum_reward: float | None = None
) -> Mapping[str, ExpertTrajectory]:
    """Return the experts of a JSONL file by id, in its order, each once.

    Read once per process, as long as the file is the same. Raises `ConfigError` for a file that is
    missing, is no recording, or has nothing that earned enough.
    """
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _read(path, stamp, minimum_reward)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int, minimum_reward: float | None) -> Mapping[str, ExpertTrajectory]:
    experts = [
        ExpertTrajectory.from_recording(r)
        for r in read_recordings(path, minimum_reward=minimum_reward)
    ]
    if not experts:
        least = "" if minimum_reward is None else f" that earned at least {minimum_reward}"
        raise ConfigError(
            f"{path} holds no recording{least}; create recordings with agentrl record"
        )
    return {expert.id: expert for expert in experts}

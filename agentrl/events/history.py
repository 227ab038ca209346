"""History of an environment: its actions, and fingerprints of its answers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentrl.env import Action, Observation, Step, TurnRequest
from agentrl.message import Image, Message
from agentrl.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One action, and the fingerprint of what answered it."""

    action: Action
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionHistory:
    """Everything an environment saw since its reset, and fingerprints of what it said."""

    task: Task
    sample: int
    seed: int
    opening: str
    steps: tuple[RecordedStep, ...] = ()

    @classmethod
    def from_reset(
        cls, task: Task, *, sample: int, seed: int, observation: Observation
    ) -> "ActionHistory":
        """Return the history of an environment that has just been reset."""
        return cls(task=task, sample=sample, seed=seed, opening=fingerprint(observation))

    def add_step(self, action: Action, answer: Step) -> "ActionHistory":
        """Return the history with one more step."""
        recorded = RecordedStep(action=action, answer=step_fingerprint(answer))
        return replace(self, steps=(*self.steps, recorded))


def fingerprint(observation: Observation) -> str:
    """Return 16 hex digits of what an observation shows."""
    return _digest([_describe_observation(observation)])


def step_fingerprint(answer: Step) -> str:
    """Return 16 hex digits of an answer; its info, which may hold times, is left out."""
    observation, reward, terminated, truncated, _ = answer
    return _digest([_describe_observation(observation), reward, terminated, truncated])


def _describe_observation(observation: Observation) -> list[object]:
    tools = observation.tools
    return [
        [_describe_message(message) for message in observation.messages],
        None if tools is None else [dict(tool) for tool in tools],
        *([True] if observation.anew else []),
        *([{"after": observation.after}] if observation.after is not None else []),
        *([_describe_request(observation.request)] if observation.request is not None else []),
        *([_describe_unhinted(observation.unhinted)] if observation.unhinted is not None else []),
    ]


def _describe_unhinted(messages: tuple[Message, ...]) -> dict[str, object]:
    return {"unhinted": [_describe_message(message) for message in messages]}


def _describe_request(request: TurnRequest) -> list[object]:
    rule = [] if request.calls == "auto" else [request.calls, request.tool]
    return [request.max_tokens, request.stop, *rule]


def _describe_message(message: Message) -> list[object]:
    content = (message.content,) if isinstance(message.content, str) else message.content
    return [
        message.role,
        [{"image": part.digest} if isinstance(part, Image) else part for part in content],
        [[call.id, call.name, dict(call.arguments)] for call in message.tool_calls],
        message.tool_call_id,
        message.name,
    ]


def _digest(shown: object) -> str:
    blob = json.dumps(shown, sort_keys=True, default=_to_plain)
    return hashlib.sha256(blob.encode(errors="surrogatepass")).hexdigest()[:16]


def _to_plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

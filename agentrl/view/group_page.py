"""JSON of one group for the page: its tree, and the messages on every path."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.events.kinds import EnvExchange
from agentrl.events.state import GroupState, RolloutState
from agentrl.message import Content, Image, Message
from agentrl.rollout.branching.decision import BranchDecision, explain
from agentrl.rollout.branching.log import FILE, LoggedDecision, read_log
from agentrl.store.token_credit import TokenCredit
from agentrl.trajectory import Failed, Leaf, outcome_name, reward_of
from agentrl.view.redaction import SecretRedaction
from agentrl.view.run_files import FileFaults
from agentrl.view.token_texts import TokenTexts
from agentrl.view.tokens import cut, hidden_tokens, render_nodes, short

MAX_TEXT = 20_000
"""Letters of one message; what is beyond is said to be left out."""
MAX_IMAGE_BYTES = 4 * 2**20
"""Of all pictures of a group together."""
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ALL_SHOWN = SecretRedaction({})
Decisions = Mapping[int, Sequence[Mapping[str, Any]]]
"""Decisions about branches, by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPageBuilder:
    """Vocabulary and redaction with which groups become JSON."""

    vocabulary: TokenTexts
    redaction: SecretRedaction = _ALL_SHOWN

    def story(
        self,
        group: GroupState,
        *,
        credit: Mapping[tuple[int, int], TokenCredit],
        decisions: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Return a group as JSON; `credit` is what the step that trained it has left."""
        tree = group.tree
        ends = [one.at for one in group.rollouts.values() if one.at is not None]
        hidden = hidden_tokens(tree, ends, redaction=self.redaction, vocabulary=self.vocabulary)
        places = {id: place for place, id in enumerate(sorted(group.told))}
        nodes, vocabulary = render_nodes(tree, places, hidden, self.vocabulary)
        pictures = _Pictures()
        trajectories = [
            self._render_trajectory(one, places, credit.get((group.id, one.sample)), pictures)
            for one in group.rollouts.values()
        ]
        return {
            "id": group.id,
            "task": self.redaction.text(group.task.id),
            "prompt": self._render_messages(group.task.messages, pictures),
            "answer": self._render_text(_render_plain(group.task.answer)),
            "tags": self.redaction.value(list(group.task.tags)),
            "tools": self._render_tools(group),
            "nodes": nodes,
            "vocabulary": vocabulary,
            "trajectories": trajectories,
            "decisions": self.redaction.value([*decisions]),
            "pictures": pictures.found,
        }

    def _render_trajectory(
        self,
        one: RolloutState,
        places: Mapping[int, int],
        credit: TokenCredit | None,
        pictures: "_Pictures",
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": one.id,
            "sample": one.sample,
            "state": one.status,
            "attempt": one.started.attempt,
            "at": None if one.at is None else places[one.at],
            "turnRewards": [*(one.leaf.turn_rewards if one.leaf else one.turn_rewards)],
            "components": self.redaction.value(
                dict(one.leaf.components if one.leaf else one.components)
            ),
            "seconds": round(one.leaf.seconds if one.leaf else one.seconds, 4),
            "calls": one.tool_calls,
            "messages": [*self._render_exchanges(one.exchanges, pictures)],
            "outcome": name_outcome(one),
            "reward": None if one.leaf is None else reward_of(one.leaf.outcome),
            "error": self._render_text(one.reason or _find_error(one.leaf)),
        }
        if one.fork is not None:
            fields["fork"] = {
                "parent": one.fork.parent,
                "node": places[one.fork.node],
                "strategy": one.fork.strategy,
            }
        if credit is not None and one.status == "ended":
            fields["credit"] = {
                "advantages": short(credit.advantages.tolist()),
                "logRatios": short(credit.log_ratios.tolist()),
                "entropies": short(credit.entropies.tolist()),
            }
        return fields

    def _render_exchanges(
        self, exchanges: Sequence[EnvExchange], pictures: "_Pictures"
    ) -> Iterator[dict[str, Any]]:
        turn = 0
        for exchange in exchanges:
            if exchange.action is not None:
                yield self._render_action(exchange.action) | {
                    "turn": turn,
                    "reward": exchange.reward,
                }
                turn += 1
            for message in self._render_messages(exchange.observation.messages, pictures):
                yield message | {"turn": turn, "s": round(exchange.seconds, 4)}

    def _render_action(self, action: Action) -> dict[str, Any]:
        return {
            "role": "assistant",
            "text": self._render_text(action.text),
            "calls": [
                {
                    "name": self.redaction.text(call.name),
                    "arguments": self._render_arguments(call.arguments),
                }
                for call in action.tool_calls
            ],
            "malformed": [self._render_text(text) for text in action.malformed],
        }

    def _render_messages(
        self, messages: Sequence[Message], pictures: "_Pictures"
    ) -> list[dict[str, Any]]:
        return [
            {"role": one.role, "text": self._render_text(_join_texts(one.content))}
            | ({"name": self.redaction.text(one.name)} if one.name else {})
            | ({"pictures": [pictures.name(i) for i in one.images]} if one.images else {})
            for one in messages
        ]

    def _render_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        texts = {str(name): _render_plain(value) for name, value in arguments.items()}
        return {self.redaction.text(name): self._render_text(text) for name, text in texts.items()}

    def _render_tools(self, group: GroupState) -> list[Any]:
        for one in group.rollouts.values():
            if one.exchanges and one.exchanges[0].observation.tools:
                return self.redaction.value([dict(t) for t in one.exchanges[0].observation.tools])
        return []

    def _render_text(self, text: str) -> str:
        return cut(self.redaction.text(text), MAX_TEXT)


def name_outcome(one: RolloutState) -> str:
    """Return the outcome of a trajectory, or its state where it has not ended, in one word."""
    return outcome_name(one.leaf.outcome) if one.leaf is not None else one.status


@dataclass(slots=True)
class _Pictures:
    """The pictures of one group, each once."""

    found: dict[str, Any] = field(default_factory=dict[str, Any])
    room_bytes: int = MAX_IMAGE_BYTES

    def name(self, image: Image) -> str:
        name = image.digest[:16]
        if name not in self.found:
            fits = len(image.data) <= self.room_bytes
            if fits and image.media_type in _PICTURES:
                self.room_bytes -= len(image.data)
                data = b64encode(image.data).decode()
                self.found[name] = f"data:{image.media_type};base64,{data}"
            else:
                why = f"{image.media_type}, {len(image.data):,} bytes"
                self.found[name] = f"left out: {why}"
        return name


def _join_texts(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part for part in content if isinstance(part, str))


def _render_plain(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _find_error(leaf: Leaf | None) -> str:
    return leaf.outcome.error if leaf and isinstance(leaf.outcome, Failed) else ""


def read_decisions(folder: Path, faults: FileFaults) -> Decisions:
    """Return the decisions of every group, in order; none without a log that can be read."""
    decisions: dict[int, list[dict[str, Any]]] = {}
    if not (folder / FILE).exists():
        return decisions
    try:
        logged = [*read_log(folder)]
    except (ConfigError, OSError) as error:
        faults.add(FILE, "", f"no decision about branches is shown: {error}")
        return decisions
    for one in logged:
        if isinstance(one, LoggedDecision):
            decisions.setdefault(one.group, []).append(render_decision(one.decision))
    return decisions


def render_decision(decision: BranchDecision) -> dict[str, Any]:
    """Return a decision with its numbers, and in words."""
    boundary, probe, chance = decision.boundary, decision.boundary.probe, decision.chance
    return {
        "sample": decision.sample,
        "turn": boundary.turn,
        "at": boundary.context_tokens,
        "reason": decision.reason,
        "said": explain(decision),
        "topology": decision.topology,
        "signal": None if probe is None else probe.value,
        "bounds": None if probe is None else [probe.lower, probe.upper],
        "rise": decision.rise,
        "streak": decision.streak,
        "chance": None if chance is None else chance.value,
        "score": None if chance is None else chance.score,
        "draws": list(decision.draws),
        "open": decision.open,
        "children": [child.sample for child in decision.children],
    }

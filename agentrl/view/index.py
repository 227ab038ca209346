"""The tables of a run: a row per group and a row per trajectory, as columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentrl.events.state import GroupState, RolloutState
from agentrl.store.reader import GroupIndexRow, RolloutIndexRow
from agentrl.store.token_credit import TokenCredit
from agentrl.trajectory import reward_of
from agentrl.view.group_page import name_outcome
from agentrl.view.redaction import SecretRedaction
from agentrl.view.tokens import short

_HEAD = 160
"""Letters of a prompt in a table."""
_TAIL = 120
"""Letters of what was said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """One trajectory in a table."""

    id: int
    sample: int
    outcome: str
    reward: float | None
    turns: int
    tokens: int
    """Sampled on its path."""
    context: int | None
    """All tokens on its path; None where they are gone."""
    calls: int | None
    tools: tuple[str, ...]
    """Names of the tools it called, each once."""
    errors: int
    """Calls that the tools answered with an error."""
    seconds: float | None
    advantage: float | None
    """Mean over its trained tokens."""
    said: str
    """The end of what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group in a table, with its trajectories."""

    id: int
    step: int
    state: str
    task: str
    prompt: str
    why: str
    """It was dropped, or has no story."""
    trajectories: tuple[TrajectoryRow, ...]


def build_row(
    facts: GroupIndexRow,
    group: GroupState,
    credit: Mapping[tuple[int, int], TokenCredit],
    redaction: SecretRedaction,
) -> GroupRow:
    """Return the row of a group whose records are there."""
    prompt = " ".join(message.text for message in group.task.messages)
    return GroupRow(
        id=facts.id,
        step=facts.step,
        state=facts.state,
        task=redaction.text(facts.task),
        prompt=_cut_prompt(redaction.text(prompt)),
        why=redaction.text(facts.reason),
        trajectories=tuple(
            _build_trajectory_row(group, one, credit.get((group.id, one.sample)), redaction)
            for one in group.rollouts.values()
        ),
    )


def build_bare_row(
    facts: GroupIndexRow,
    trajectories: Sequence[RolloutIndexRow],
    why: str,
    redaction: SecretRedaction,
) -> GroupRow:
    """Return the row of a group whose records are not there, from the ledger alone."""
    return GroupRow(
        id=facts.id,
        step=facts.step,
        state=facts.state,
        task=redaction.text(facts.task),
        prompt="",
        why=redaction.text(why),
        trajectories=tuple(
            TrajectoryRow(
                id=one.id,
                sample=one.sample,
                outcome=one.outcome or one.state,
                reward=one.reward,
                turns=one.turns,
                tokens=one.tokens,
                context=None,
                calls=None,
                tools=(),
                errors=0,
                seconds=None,
                advantage=None,
                said="",
            )
            for one in trajectories
        ),
    )


@dataclass(slots=True)
class _Names:
    """Names that many rows repeat, each once."""

    places: dict[str, int] = field(default_factory=dict[str, int])

    def place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))


def columns(rows: Iterable[GroupRow], chunks: Mapping[int, int]) -> dict[str, Any]:
    """Return the tables as columns; `chunks` says where a group's story lies, if anywhere."""
    rows = [*rows]
    outcomes, tools = _Names(), _Names()
    flat = [one for row in rows for one in row.trajectories]
    return {
        "groups": {
            "id": [row.id for row in rows],
            "step": [row.step for row in rows],
            "state": [row.state for row in rows],
            "task": [row.task for row in rows],
            "prompt": [row.prompt for row in rows],
            "why": [row.why for row in rows],
            "size": [len(row.trajectories) for row in rows],
            "chunk": [chunks.get(row.id, -1) for row in rows],
        },
        "trajectories": {
            "id": [one.id for one in flat],
            "sample": [one.sample for one in flat],
            "outcome": [outcomes.place(one.outcome) for one in flat],
            "reward": [_number(one.reward) for one in flat],
            "turns": [one.turns for one in flat],
            "tokens": [one.tokens for one in flat],
            "context": [one.context for one in flat],
            "calls": [one.calls for one in flat],
            "tools": [[tools.place(name) for name in one.tools] for one in flat],
            "errors": [one.errors for one in flat],
            "seconds": [_number(one.seconds) for one in flat],
            "advantage": [_number(one.advantage) for one in flat],
            "said": [one.said for one in flat],
        },
        "outcomes": [*outcomes.places],
        "tools": [*tools.places],
    }


def _build_trajectory_row(
    group: GroupState,
    one: RolloutState,
    credit: TokenCredit | None,
    redaction: SecretRedaction,
) -> TrajectoryRow:
    path = () if one.at is None else group.tree.path(one.at)
    actions = [exchange.action for exchange in one.exchanges if exchange.action is not None]
    names = [call.name for action in actions for call in action.tool_calls]
    statuses = [status for node in path for status in node.tool_status.split(",")]
    last_text = next((action.text for action in reversed(actions) if action.text), "")
    return TrajectoryRow(
        id=one.id,
        sample=one.sample,
        outcome=name_outcome(one),
        reward=None if one.leaf is None else reward_of(one.leaf.outcome),
        turns=one.turns,
        tokens=sum(len(node.token_ids) for node in path if node.source == "sampled"),
        context=sum(len(node.token_ids) for node in path),
        calls=one.tool_calls,
        tools=tuple(redaction.text(name) for name in dict.fromkeys(names)),
        errors=statuses.count("error"),
        seconds=one.leaf.seconds if one.leaf else one.seconds,
        advantage=_average_advantage(credit) if one.status == "ended" else None,
        said=redaction.text(last_text)[-_TAIL:],
    )


def _average_advantage(credit: TokenCredit | None) -> float | None:
    if credit is None or np.isnan(credit.advantages).all():
        return None
    return float(np.nanmean(credit.advantages))


def _cut_prompt(text: str) -> str:
    return text if len(text) <= _HEAD else f"{text[: _HEAD - 1]}…"


def _number(value: float | None) -> Any:
    return None if value is None else short([value])

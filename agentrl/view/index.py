"""The tables of a run: a row per group and a row per trajectory, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

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
    context: int | None = None
    """All tokens on its path; None where they are gone."""
    calls: int | None = None
    tools: tuple[str, ...] = ()
    """Names of the tools it called, each once."""
    errors: int = 0
    """Calls that the tools answered with an error."""
    seconds: float | None = None
    advantage: float | None = None
    """Mean over its trained tokens."""
    entropy: float | None = None
    """Mean over its sampled tokens, in nats: the engine's where it reported one, else the
    trainer's."""
    said: str = ""
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
            )
            for one in trajectories
        ),
    )


def columns(rows: Sequence[GroupRow], chunks: Mapping[int, int]) -> dict[str, Any]:
    """Return the tables as columns; `chunks` says where a group's story lies, if anywhere."""
    names = [field.name for field in fields(GroupRow) if field.name != "trajectories"]
    groups: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in names}
    groups["size"] = [len(row.trajectories) for row in rows]
    groups["chunk"] = [chunks.get(row.id, -1) for row in rows]
    flat = [one for row in rows for one in row.trajectories]
    names = [field.name for field in fields(TrajectoryRow)]
    table: dict[str, list[Any]] = {name: [getattr(one, name) for one in flat] for name in names}
    for name in ("reward", "seconds", "advantage", "entropy"):
        table[name] = [None if value is None else short([value]) for value in table[name]]
    # Names that many rows repeat are listed once, and are their places in the list.
    outcomes, tools = dict[str, int](), dict[str, int]()
    table["outcome"] = [outcomes.setdefault(one.outcome, len(outcomes)) for one in flat]
    table["tools"] = [[tools.setdefault(name, len(tools)) for name in one.tools] for one in flat]
    return {"groups": groups, "trajectories": table, "outcomes": [*outcomes], "tools": [*tools]}


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
        advantage=_average(credit.advantages if credit and one.status == "ended" else ()),
        entropy=_average(
            [value for node in path if node.source == "sampled" for value in node.entropies]
            or (credit.entropies if credit and one.status == "ended" else ())
        ),
        said=redaction.text(last_text)[-_TAIL:],
    )


def _average(values: ArrayLike) -> float | None:
    """Return the mean of the finite values, or None where there is none."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return float(finite.mean()) if finite.size else None


def _cut_prompt(text: str) -> str:
    return text if len(text) <= _HEAD else f"{text[: _HEAD - 1]}…"

"""One trajectory as it is exported: what was said, what it earned and, if asked, its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.env import ToolSchema
from agentrl.errors import ConfigError
from agentrl.events.state import GroupState, RolloutState
from agentrl.message import Message
from agentrl.store.index import IndexedStatus, StoreIndex
from agentrl.store.opening import LEDGER
from agentrl.store.reader import StoreReader
from agentrl.task import Task
from agentrl.trajectory import Outcome, Source, Trajectory, outcome_name, reward_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTokens:
    """A trajectory's tokens in the order they were said; all tuples have one length."""

    ids: tuple[int, ...]
    sources: tuple[Source, ...]
    turns: tuple[int, ...]
    logprobs: tuple[float, ...]
    """0.0 where the policy did not sample."""
    versions: tuple[int, ...]
    """-1 where the policy did not sample."""
    jumps: tuple[tuple[int, int], ...]
    """As in `Trajectory`: places whose token follows another one than the one before it."""

    @classmethod
    def from_trajectory(cls, path: Trajectory) -> "TrajectoryTokens":
        """Return the tokens of a path."""
        return cls(
            ids=path.token_ids,
            sources=path.sources,
            turns=path.turns,
            logprobs=path.logprobs,
            versions=path.versions,
            jumps=path.jumps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTurn:
    """Message of the agent, and the answers to it."""

    said: Message
    malformed: tuple[str, ...]
    """Errors of calls that could not be read."""
    answers: tuple[Message, ...]
    reward: float
    anew: bool = False
    """Whether the answers begin a conversation of their own."""
    after: int | None = None
    """The turn in whose conversation the answers go on; None is this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrajectory:
    """One trajectory that ended."""

    run: str
    group: int
    group_state: IndexedStatus
    step: int
    """Trained steps when its group was opened."""
    trajectory: int
    sample: int
    task: Task
    """Without its prompt's data; see `opening` for what the agent saw."""
    outcome: Outcome
    opening: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    """Tools that could be called from the beginning."""
    turns: tuple[ExportedTurn, ...]
    components: dict[str, float]
    seconds: float
    tool_calls: int
    forked_from: int | None
    """The trajectory it left, which shares its beginning."""
    tokens: TrajectoryTokens | None

    @property
    def reward(self) -> float | None:
        """Return the reward; None for a failure."""
        return reward_of(self.outcome)

    @property
    def outcome_name(self) -> str:
        """Outcome in one word."""
        return outcome_name(self.outcome)


def episodes_of(run: Path, *, tokens: bool) -> Iterator[ExportedTrajectory | None]:
    """Yield every trajectory of a run that ended, group by group; None for a group that is pruned.

    A live run is read as far as it is. Raises `ConfigError` where there is no run, and
    `DamagedStore` where records are damaged.
    """
    folder = run / "store"
    if not (folder / LEDGER).is_file():
        raise ConfigError(
            f"{run} has no recorded trajectories ({folder / LEDGER} does not exist); name a run "
            "folder, such as runs/quickstart"
        )
    name = run.resolve().name
    ledger = StoreIndex(folder / LEDGER, readonly=True)
    try:
        with StoreReader(folder) as reader:
            pruned_segments = ledger.list_pruned().keys()
            for group in reader.groups():
                if any(place.segment in pruned_segments for _, place in ledger.places(group)):
                    yield None
                    continue
                restored, state = reader.group(group), reader.state(group)
                assert state is not None
                for trajectory in restored.rollouts.values():
                    if trajectory.leaf is not None:
                        yield _episode(name, restored, state, trajectory, tokens=tokens)
    finally:
        ledger.close()


def _episode(
    run: str,
    group: GroupState,
    state: IndexedStatus,
    trajectory: RolloutState,
    *,
    tokens: bool,
) -> ExportedTrajectory:
    leaf = trajectory.leaf
    assert leaf is not None
    reset = next((e.observation for e in trajectory.exchanges if e.action is None), None)
    return ExportedTrajectory(
        run=run,
        group=group.id,
        group_state=state,
        step=group.opened.step,
        trajectory=trajectory.id,
        sample=trajectory.sample,
        task=group.task,
        outcome=leaf.outcome,
        opening=() if reset is None else reset.messages,
        tools=() if reset is None else reset.tools or (),
        turns=tuple(
            ExportedTurn(
                said=exchange.action.message
                if exchange.observation.anew
                else _match_call_ids(exchange.action.message, exchange.observation.messages),
                malformed=exchange.action.malformed,
                answers=exchange.observation.messages,
                reward=exchange.reward,
                anew=exchange.observation.anew,
                after=exchange.observation.after,
            )
            for exchange in trajectory.exchanges
            if exchange.action is not None
        ),
        components=dict(leaf.components),
        seconds=leaf.seconds,
        tool_calls=leaf.tool_calls,
        forked_from=None if trajectory.fork is None else trajectory.fork.parent,
        tokens=TrajectoryTokens.from_trajectory(group.tree.trajectory(leaf)) if tokens else None,
    )


def _match_call_ids(said: Message, answers: Sequence[Message]) -> Message:
    """Return a turn with the call ids its answers name: a gateway's programs get others."""
    answer_ids = [m.tool_call_id for m in answers if m.role == "tool" and m.tool_call_id]
    call_ids = {call.id for call in said.tool_calls}
    others = iter(id for id in dict.fromkeys(answer_ids) if id not in call_ids)
    calls = [
        call if call.id in answer_ids else replace(call, id=next(others, call.id))
        for call in said.tool_calls
    ]
    return replace(said, tool_calls=tuple(calls))

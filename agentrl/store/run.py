"""The store in a run: opened with it, restored to its checkpoint, and what goes on from there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl.errors import FailureKind
from agentrl.events.kinds import ComponentNoted, RolloutAbandoned, RolloutFinished
from agentrl.rollout.recorder import (
    KeptCounts,
    KeptGroup,
    KeptMember,
    KeptNote,
    KeptTry,
    ResumePoint,
)
from agentrl.rollout.scheduler.topology import GroupRequest, is_stale
from agentrl.store.opening import Damaged
from agentrl.store.recorder import RERUN, TOO_OLD, StoreRecorder
from agentrl.store.restored import RestoredGroup, RolloutState
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.trajectory import Failed, Tree


@dataclass(slots=True, eq=False)
class RunStore:
    """The record of one run. Made by `open`; use it in `with`."""

    store: StoreWriter
    recorder: StoreRecorder
    groups: tuple[KeptGroup, ...] = ()
    """Groups for the scheduler to go on with."""
    requeued: tuple[GroupRequest, ...] = ()
    """Second tries that the gate is to open first."""
    turns: int = 0
    """Complete turns in trajectories that go on."""
    torn_bytes: int = 0
    before: Mapping[str, int] = field(default_factory=dict[str, int])
    """The `summary` of the process before this one."""
    _rerun: int = field(default=0)
    """Trajectories that begin again with their whole group."""
    _restored: dict[int, RestoredGroup] = field(default_factory=dict[int, RestoredGroup])
    """By number, those that are not complete."""

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings,
        *,
        seed: int,
        position: Callable[[], int],
        resume: bool,
        damaged: Damaged = "refuse",
    ) -> Self:
        """Make the store of a new run, or open that of one that goes on; see `StoreWriter.open`.

        `position` says how many tasks have been handed out, `seed` is the run's.
        """
        store = StoreWriter.open(folder, settings, resume=resume, damaged=damaged)
        return cls(store, StoreRecorder(store, position, seed))

    def restore(self, samplers: Mapping[str, Any], *, step: int) -> int | None:
        """Go on from a checkpoint of `step` with these samplers, `{}` and 0 without one.

        Return how many tasks have been handed out, or None where nothing is recorded.
        """
        store = self.store
        position = int(samplers.get("store", {}).get("position", 0))
        if not store.position and not position:
            return None
        state = store.restore(position=position, step=step)
        self.torn_bytes = state.torn_bytes
        self._restored = {group.id: group for group in state.open}
        complete = [self._keep(group, complete=True) for group in state.complete]
        unfinished = [self._keep(group, complete=False) for group in state.open]
        self.groups = tuple(sorted([*complete, *unfinished], key=lambda group: group.number))
        self.requeued = tuple(
            replace(
                origin.order, tries=origin.tries + 1, retry_of=origin.number, round=0, round_size=0
            )
            for origin in (kept_group(group, complete=False) for group in state.requeued)
        )
        self.turns = sum(trajectory.turns for group in state.open for trajectory in group.open)
        return state.task_position

    @property
    def next_group(self) -> int | None:
        """Return the number of the first group to open; None where nothing is restored."""
        return self.store.next_group if self.store.position else None

    def begin_again(self, group: KeptGroup) -> KeptGroup:
        """Give up what was kept of a group that is not complete; return its task's new group.

        For a group whose trajectories came of decisions that cannot be made out.
        """
        old_group = self._restored.pop(group.number)
        self._rerun += len(old_group.open)
        self.turns -= sum(trajectory.turns for trajectory in old_group.open)
        self.recorder.dropped(old_group.id, RERUN)
        id = self.store.open_group(
            old_group.task,
            order=old_group.order,
            seed=old_group.seed,
            size=old_group.asked,
            step=old_group.step,
            max_turns=old_group.max_turns,
            max_turn_tokens=old_group.max_turn_tokens,
            round=old_group.round,
            round_size=old_group.round_size,
            tries=old_group.tries,
            retry_of=old_group.retry_of,
        )
        fresh = self._keep(empty_group(old_group, id), complete=False)
        self.groups = (*(other for other in self.groups if other is not group), fresh)
        return fresh

    def checkpoint(self, step: int) -> dict[str, Any]:
        """Bring everything to the disk; return what the checkpoint has to hold."""
        return {"position": self.store.checkpoint(step)}

    def prune(self, samplers: Mapping[str, Any] | None) -> None:
        """Let go of what no checkpoint needs from the one with these samplers on."""
        if samplers is not None and "store" in samplers:
            self.store.prune(position=int(samplers["store"]["position"]))

    def figures(self) -> dict[str, float]:
        """Return the metrics of the store and of the restoration."""
        return {
            "store/records": self.store.position,
            "store/restored_turns": self.turns,
            "store/rerun_trajectories": self.reruns,
            "store/replay_mismatches": self.recorder.mismatches,
            "store/torn_bytes": self.torn_bytes,
        }

    @property
    def reruns(self) -> int:
        """Number of restored trajectories that were begun again."""
        return self._rerun + len(self.recorder.reruns)

    @property
    def summary(self) -> dict[str, int]:
        """Return the same over all the times the run was started."""
        now = {
            "restored_turns": self.turns,
            "rerun_trajectories": self.reruns,
            "torn_bytes": self.torn_bytes,
        }
        return {name: self.before.get(name, 0) + value for name, value in now.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.store.close()

    def _keep(self, group: RestoredGroup, *, complete: bool) -> KeptGroup:
        gate_group = kept_group(group, complete=complete)
        self.recorder.kept(group, gate_group.tree, complete=complete)
        return gate_group


def kept_group(group: RestoredGroup, *, complete: bool) -> KeptGroup:
    """Return a restored group as a gate takes it."""
    latest = {trajectory.sample: trajectory for trajectory in group.trajectories}
    members = [_member(group, latest[sample]) for sample in sorted(latest)]
    return KeptGroup(
        number=group.id,
        size=group.size,
        asked=group.asked,
        max_turns=group.max_turns,
        max_turn_tokens=group.max_turn_tokens,
        tree=_leafless(group.tree),
        step=group.step,
        complete=complete,
        members=tuple(m for m in members if m.leaf is not None or not complete),
        round=group.round,
        round_size=group.round_size,
        tries=group.tries,
        retry_of=group.retry_of,
        paths=tuple(map(_try, group.trajectories)) if group.notes else (),
        notes=tuple(_note(group, note) for note in group.notes),
        branched=any(trajectory.fork is not None for trajectory in group.trajectories),
        counts=_counts(group),
    )


def _counts(group: RestoredGroup) -> KeptCounts:
    outcomes: list[FailureKind | None] = []
    tokens: list[int] = []
    for event in group.later:
        if isinstance(event, RolloutFinished) and not is_stale(outcome := event.leaf.outcome):
            outcomes.append(outcome.kind if isinstance(outcome, Failed) else None)
            if not isinstance(outcome, Failed):
                tokens.append(_sampled_tokens(group.tree, event.leaf.node))
        elif isinstance(event, RolloutAbandoned) and event.failure is not None:
            outcomes.append(event.failure)
    given_up = [event for event in group.later if isinstance(event, RolloutAbandoned)]
    return KeptCounts(
        outcomes=tuple(outcomes),
        tokens=tuple(tokens),
        retried=sum(event.failure is not None for event in given_up),
        restarted=sum(event.reason == TOO_OLD for event in given_up),
    )


def _sampled_tokens(tree: Tree, node: int | None) -> int:
    path = () if node is None else tree.path(node)
    return sum(len(part.token_ids) for part in path if part.source == "sampled")


def _note(group: RestoredGroup, note: ComponentNoted) -> KeptNote:
    is_later = any(note is event for event in group.later)
    return KeptNote(said=note.note, by=note.trajectory, is_later=is_later)


def empty_group(group: RestoredGroup, id: int) -> RestoredGroup:
    """Return a group of the same task in which nothing has happened."""
    return replace(
        group, id=id, size=group.asked, tree=Tree(group.task), trajectories=(), notes=(), later=()
    )


def _member(group: RestoredGroup, found: RolloutState) -> KeptMember:
    tries = [other for other in group.trajectories if other.sample == found.sample]
    given_up = found.state == "abandoned"
    return KeptMember(
        sample=found.sample,
        seed=found.seed,
        version=found.version,
        attempt=found.attempt + given_up,
        failures=sum(other.failure is not None for other in tries),
        restarts=sum(other.reason == TOO_OLD for other in tries),
        leaf=found.leaf,
        stand=_stand(group.tree, found) if found.state == "open" else None,
    )


def _stand(tree: Tree, found: RolloutState) -> ResumePoint | None:
    whole = _whole(found)
    return whole and replace(whole, node=found.at, begun=_begun(tree, found))


def _try(found: RolloutState) -> KeptTry:
    before = [found.until(count) for count in range(1, len(found.exchanges) + 1)]
    return KeptTry(
        id=found.id,
        sample=found.sample,
        is_open=found.state == "open",
        why=found.fork.why if found.fork else None,
        stands=tuple(stand for past in before if (stand := _whole(past)) is not None),
    )


def _whole(found: RolloutState) -> ResumePoint | None:
    """Return the state of a trajectory after its last exchange; None without a history."""
    if found.history is None:
        return None
    return ResumePoint(
        node=found.stops[-1],
        turn=found.turns,
        begun=(),
        turn_rewards=found.turn_rewards,
        components=found.components,
        tool_calls=found.tool_calls,
        seconds=found.seconds,
        history=found.history,
        request=found.exchanges[-1].observation.request,
    )


def _begun(tree: Tree, found: RolloutState) -> tuple[int, ...]:
    """Return the tokens that were sampled of a turn that is not complete."""
    if not found.mid_turn or found.at is None:
        return ()
    before = found.stops[-1] if found.stops else None
    return tree.tokens(found.at)[len(tree.tokens(before)) if before is not None else 0 :]


def _leafless(tree: Tree) -> Tree:
    bare = Tree(tree.task)
    for node in tree.nodes:
        bare.add(node)
    return bare

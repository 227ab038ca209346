"""The store in a run: opened with it, restored to its checkpoint, and what goes on from there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl.rollout.recorder import KeptGroup, KeptMember, Stand
from agentrl.store.opening import Damaged
from agentrl.store.recorder import RERUN, StoreRecorder
from agentrl.store.restored import RestoredGroup, RestoredState, RestoredTrajectory
from agentrl.store.store import Store, StoreSettings
from agentrl.trajectory import Tree


@dataclass(slots=True, eq=False)
class RunStore:
    """The record of one run. Made by `open`; use it in `with`."""

    store: Store
    recorder: StoreRecorder
    groups: tuple[KeptGroup, ...] = ()
    """What the gate is to go on with."""
    turns: int = 0
    """Complete turns in trajectories that go on."""
    torn_bytes: int = 0
    next_group: int | None = None
    """Number of the first group to open; None where nothing is restored."""
    before: Mapping[str, int] = field(default_factory=dict[str, int])
    """The `summary` of the process before this one."""
    _rerun: int = field(default=0)
    """Trajectories that begin again because they belong to a tree that has branched."""

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
        """Make the store of a new run, or open that of one that goes on; see `Store.open`.

        `position` says how many tasks have been handed out, `seed` is the run's.
        """
        store = Store.open(folder, settings, resume=resume, damaged=damaged)
        return cls(store, StoreRecorder(store, position, seed))

    def restore(self, samplers: Mapping[str, Any], *, step: int, branches: bool) -> int | None:
        """Go on from a checkpoint of `step` with these samplers, `{}` and 0 without one.

        Return how many tasks have been handed out, or None where nothing is recorded. A group that
        is not complete begins again as a whole if it has branched, or if all do (`branches`).
        """
        store = self.store
        if not store.position:
            return None
        position = int(samplers.get("store", {}).get("position", 0))
        state = store.restore(position=position, step=step)
        self.torn_bytes = state.torn_bytes
        self.groups = tuple(self._kept(state, branches=branches))
        self.next_group = store.next_group
        return state.task_position

    def checkpoint(self, step: int) -> dict[str, Any]:
        """Bring everything to the disk; return what the checkpoint has to hold."""
        return {"position": self.store.checkpoint(step)}

    def prune(self, samplers: Mapping[str, Any] | None) -> None:
        """Let go of what no checkpoint needs from the one with these samplers on."""
        if samplers is not None and "store" in samplers:
            self.store.prune(position=int(samplers["store"]["position"]))

    def figures(self) -> dict[str, float]:
        """Return what is recorded and what was restored, for the metrics."""
        return {
            "store/records": self.store.position,
            "store/restored_turns": self.turns,
            "store/rerun_trajectories": self.reruns,
            "store/torn_bytes": self.torn_bytes,
        }

    @property
    def reruns(self) -> int:
        """Return how many restored trajectories were begun again."""
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

    def _kept(self, state: RestoredState, *, branches: bool) -> list[KeptGroup]:
        kept = [self._keep(group, complete=True) for group in state.complete]
        again: list[RestoredGroup] = []
        for group in state.open:
            if branches or any(found.fork for found in group.trajectories):
                again.append(group)
            else:
                kept.append(self._keep(group, complete=False))
                self.turns += sum(found.turns for found in group.open)
        # They get new ids, which come after all others.
        return [*sorted(kept, key=lambda group: group.number), *map(self._again, again)]

    def _keep(self, group: RestoredGroup, *, complete: bool) -> KeptGroup:
        kept = kept_group(group, complete=complete)
        self.recorder.kept(group, kept.tree, complete=complete)
        return kept

    def _again(self, group: RestoredGroup) -> KeptGroup:
        """Drop a group that has branched, and open its task again."""
        self._rerun += len(group.open)
        self.store.drop(group.id, RERUN)
        id = self.store.open_group(
            group.task, order=group.order, seed=group.seed, size=group.size, step=group.step
        )
        return self._keep(empty_group(group, id), complete=False)


def kept_group(group: RestoredGroup, *, complete: bool) -> KeptGroup:
    """Return a restored group as a gate takes it."""
    latest = {found.sample: found for found in group.trajectories}
    members = [_member(group, latest[sample]) for sample in sorted(latest)]
    return KeptGroup(
        number=group.id,
        size=group.size,
        tree=_leafless(group.tree),
        step=group.step,
        complete=complete,
        members=tuple(m for m in members if m.leaf is not None or not complete),
    )


def empty_group(group: RestoredGroup, id: int) -> RestoredGroup:
    """Return a group of the same task in which nothing has happened."""
    return RestoredGroup(
        id=id,
        task=group.task,
        order=group.order,
        seed=group.seed,
        size=group.size,
        step=group.step,
        tree=Tree(group.task),
        trajectories=(),
    )


def _member(group: RestoredGroup, found: RestoredTrajectory) -> KeptMember:
    tries = [other for other in group.trajectories if other.sample == found.sample]
    given_up = found.state == "abandoned"
    return KeptMember(
        sample=found.sample,
        seed=found.seed,
        attempt=found.attempt + given_up,
        failures=sum(other.reason.startswith("failed") for other in tries),
        leaf=found.leaf,
        stand=_stand(group.tree, found) if found.state == "open" else None,
    )


def _stand(tree: Tree, found: RestoredTrajectory) -> Stand | None:
    if found.history is None:
        return None
    return Stand(
        node=found.at,
        turn=found.turns,
        begun=_begun(tree, found),
        turn_rewards=found.turn_rewards,
        components=found.components,
        tool_calls=found.tool_calls,
        seconds=found.seconds,
        history=found.history,
    )


def _begun(tree: Tree, found: RestoredTrajectory) -> tuple[int, ...]:
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

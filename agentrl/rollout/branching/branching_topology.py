"""Trees in the scheduler: it owns the slots, a topology says which rollout each of them plays.

    the scheduler                             here
    ----------------------------------------  ----------------------------------------------------
    opens a group                             `count_missing`: a slot for each root
    `play` of a new slot                      the next start: a root, or a branch of a held world
    a boundary that branches                  worlds are copied, then `RolloutSlot.fork` per branch
    `play` of a slot again (retry, too old)   what the topology says: its root again, or another
    a trajectory ended for good               `end_rollout`, then `count_missing`: more slots
                                              before it asks whether the group is complete
    a group is over                           `close_group`: its worlds are closed too

A group has exactly the leaves of the topology's budget, which is the scheduler's target, and a
leaf's sample is its slot's. A branch waits for its place before all that has not begun, and its
world with it, which was copied while the parent stood still. What it takes to go on with a group is
noted in the run's events (`kept`): a resumed one goes on as the tree it was, with its budget, its
rule's state and its counters. Its worlds are gone, and come back by replay.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from agentrl.env import Env
from agentrl.events.kinds import ForkPoint
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState, ResumePoint, RolloutState
from agentrl.policy import Sampling
from agentrl.rollout.branching.balanced import EntropyBalancedState, EntropyBalancedTopology
from agentrl.rollout.branching.decision import BranchDecision, BranchPoint, PlannedRollout
from agentrl.rollout.branching.fixed_topologies import FanOutTopology
from agentrl.rollout.branching.forks import BranchPointReporter, EnvFork, TreeGrowth
from agentrl.rollout.branching.kept import (
    ExtraRolloutNote,
    Note,
    RestoredTree,
    TreeOpenedNote,
    TreeRolloutNote,
    as_note,
    event_note,
)
from agentrl.rollout.branching.summary import BranchingSummary, branching_figures
from agentrl.rollout.branching.topology import AnyTopology, Event
from agentrl.rollout.branching.tree_state import PathEnded
from agentrl.rollout.episode import EpisodePosition
from agentrl.rollout.runner import RolloutRunner, place_of
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.rollout.scheduler.topology import GroupProgress, RolloutKey, RolloutTopology
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree


@dataclass(slots=True)
class _PlannedSlot:
    """Start that a slot plays, and its progress."""

    start: PlannedRollout
    tokens: int = 0
    ended: bool = False
    goes_on: bool = False
    """It was kept by a record, and has not come to play yet."""
    stands: bool = False
    """It had its world when it was kept."""


@dataclass(slots=True)
class _Group:
    """One group of the scheduler."""

    topology: AnyTopology
    target: int
    roots: int = 0
    owed: int = 0
    """Slots that were asked for and have not come to play yet."""
    growing: TreeGrowth[Any] | None = None
    tree: Tree | None = None
    pending: deque[PlannedRollout] = field(default_factory=deque[PlannedRollout])
    """Starts of the topology that no slot plays yet."""
    planned: dict[int, _PlannedSlot] = field(default_factory=dict[int, _PlannedSlot])
    chains: set[int] = field(default_factory=set[int])
    """Slots beyond the topology's budget, because the group was made larger."""
    kept: RestoredTree | None = None

    def next(self, sample: int, *, resumes: bool) -> PlannedRollout | None:
        """Return the start that a slot plays; None when the topology has none for it.

        `resumes` when the slot goes on from where it was kept.
        """
        planned, growing = self.planned.get(sample), self.growing
        assert growing is not None
        if planned is None:
            self.owed -= 1
            return self.pending.popleft() if self.pending else None
        if planned.goes_on and (resumes or not planned.stands):
            return planned.start
        if planned.ended:
            (start,) = growing.reopen_path(planned.start)
            return start
        return self.restart(sample)

    def restart(self, sample: int) -> PlannedRollout:
        """Tell the topology that a trajectory failed and begins again; return how."""
        planned, growing = self.planned[sample], self.growing
        assert growing is not None
        path = planned.start.path
        ended = PathEnded(path=path, tokens=planned.tokens, failed=True, again=True)
        (start,) = growing.finish_path(ended)
        return start


class BranchingTopology(RolloutTopology):
    """A branching topology in the scheduler, and what plays its slots. The scheduler closes it."""

    def __init__(
        self,
        *,
        topology: AnyTopology,
        rollouts: RolloutRunner,
        sampling: Sampling,
        seed: Callable[[int, Task], int],
        on_over: Callable[[BranchingSummary], None] = lambda shaped: None,
        events: EventLog | None = None,
    ) -> None:
        """Take what grows, and what plays it.

        `seed` makes a tree's seed of its group's number and its task; `on_over` hears of every
        group once it is over, in the order in which they are. `events` are the scheduler's.
        """
        self.topology = topology
        """What the next group grows by: its `prior` is what the groups before it have shown."""
        self._rollouts = rollouts
        self._sampling = sampling
        self._seed = seed
        self._on_over = on_over
        self._events = events
        self._groups: dict[int, _Group] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._latest: list[BranchingSummary] = []

    # --- what the scheduler asks and tells --------------------------------------------------------

    def count_missing(self, group: GroupProgress) -> int:
        """Return the roots at first, then what the topology begins without a fork."""
        entry = self._groups.get(group.number)
        if entry is None and group.started:
            # It was kept complete, without a note: one that has become too old plays alone.
            return 0
        if entry is None:
            entry = self._groups[group.number] = self._fresh(group.target)
        if entry.growing is None:
            missing = max(0, entry.roots - entry.owed)
        else:
            more = group.target - entry.target
            entry.target += more
            missing = more + max(0, len(entry.pending) - entry.owed)
        entry.owed += missing
        return missing

    def end_rollout(self, attempt: RolloutKey, leaf: Leaf) -> None:
        group = self._groups.get(attempt.group)
        if group is None or group.growing is None or attempt.sample in group.chains:
            return
        planned = group.planned.get(attempt.sample)
        if planned is None:
            # It was stopped before it came to play: its start is the next one.
            group.owed -= 1
            if not group.pending:
                return
            planned = group.planned[attempt.sample] = _PlannedSlot(group.pending.popleft())
        if planned.ended:
            return
        planned.ended = True
        failed = isinstance(leaf.outcome, Failed)
        ended = PathEnded(
            path=planned.start.path, tokens=planned.tokens, failed=failed, again=False
        )
        group.pending += group.growing.finish_path(ended)
        self._close_later(group.growing, group.growing.release())

    def close_group(self, group: int) -> None:
        entry = self._groups.pop(group, None)
        if entry is None or entry.growing is None or entry.tree is None:
            return
        growing = entry.growing
        self._close_later(growing, growing.abandon())
        observed = (
            growing.state.observed if isinstance(growing.state, EntropyBalancedState) else None
        )
        if observed is not None and isinstance(self.topology, EntropyBalancedTopology):
            self.topology = replace(self.topology, prior=self.topology.prior + observed)
        shaped = BranchingSummary(
            group=group,
            tree=entry.tree,
            decisions=tuple(growing.decisions),
            copies=tuple(growing.copies),
            observed=observed,
        )
        self._latest.append(shaped)
        self._on_over(shaped)

    def figures(self) -> Mapping[str, float]:
        latest, self._latest = self._latest, []
        return branching_figures(latest)

    async def close(self) -> None:
        """Close every world, and hand on what the unfinished groups have decided."""
        for number in [*self._groups]:
            self.close_group(number)
        if self._closing:
            await asyncio.wait(self._closing)

    # --- what was kept ----------------------------------------------------------------------------

    def resume_group(self, group: GroupState) -> bool:
        """Go on with a group as the tree it was, before the scheduler adopts it.

        False where its events do not tell what it was: then it has to begin again.
        """
        is_complete = group.status == "complete"
        rollouts = [one for one in group.latest().values() if one.leaf or not is_complete]
        slots = max((one.sample for one in rollouts), default=-1) + 1
        if group.notes:
            try:
                return self._resume_tree(group, RestoredTree.from_group(group), rollouts, slots)
            except ValueError:
                return False
        if is_complete:
            return True
        if any(one.leaf or one.goes_on for one in rollouts):
            return False
        if slots:
            self._groups[group.id] = replace(self._fresh(group.size), owed=slots)
        return True

    def _resume_tree(
        self, group: GroupState, tree: RestoredTree, rollouts: Sequence[RolloutState], slots: int
    ) -> bool:
        topology = _resize_topology(self.topology, tree.grows.leaves)
        if isinstance(topology, EntropyBalancedTopology) and tree.grows.prior is not None:
            topology = replace(topology, prior=tree.grows.prior)
        growing = self._growing(topology, group.id, group.task)
        live = growing.restore(
            tree.events, lambda origin: _find_position(group, tree, origin), copies=tree.copies
        )
        entry = _Group(topology, group.size, growing=growing, tree=group.tree, kept=tree)
        entry.chains |= tree.alone
        paths = {start.path for start in live}
        for rollout in rollouts:
            start, goes_on = tree.latest(rollout.sample)
            if start is None or rollout.sample in tree.alone:
                continue
            is_live = start.path in paths
            if is_live and rollout.leaf is None:
                planned = _PlannedSlot(start, goes_on=goes_on, stands=rollout.goes_on)
                planned.tokens = topology.growth(growing.state).line(start.path).tokens
                entry.planned[rollout.sample] = planned
            elif not is_live and tree.has_ended(start.path):
                entry.planned[rollout.sample] = _PlannedSlot(start, ended=True)
            if rollout.goes_on and not entry.planned.get(rollout.sample):
                return False
        if group.status == "complete":
            self._groups[group.id] = entry
            return True
        slot_paths = {planned.start.path for planned in entry.planned.values()}
        entry.pending += [start for start in live if start.path not in slot_paths]
        entry.owed = slots - len({*entry.planned} | entry.chains)
        entry.target = (
            tree.grows.leaves + len(entry.chains) + max(0, entry.owed - len(entry.pending))
        )
        self._groups[group.id] = entry
        return True

    def _fresh(self, target: int) -> _Group:
        topology = _resize_topology(self.topology, target)
        _, starts = topology.start("", seed=0)
        return _Group(topology, target, roots=len(starts))

    def _note(
        self, number: int, said: Note, *, sample: int | None = None, with_end: bool = False
    ) -> None:
        if self._events is not None and number in self._groups:
            self._events.note(number, as_note(said), sample=sample, with_end=with_end)

    def _note_event(self, number: int, event: Event, decision: BranchDecision | None) -> None:
        """Note what a topology is about to hear; nothing of a group that is over."""
        group = self._groups.get(number)
        if self._events is None or group is None:
            return
        sample: int | None = None
        ends = isinstance(event, PathEnded) and not event.again
        if isinstance(event, PathEnded):
            playing = (
                s for s, planned in group.planned.items() if planned.start.path == event.path
            )
            sample = next(playing, None)
        self._events.note(number, event_note(event), sample=sample, with_end=ends)

    # --- what plays -------------------------------------------------------------------------------

    async def play(self, slot: RolloutSlot) -> Leaf:
        """Play what the topology has for a slot."""
        number, sample = slot.attempt.group, slot.attempt.sample
        group = self._groups.get(number)
        if group is None:
            return await self._play_alone(slot)
        if group.growing is None:
            self._note(number, _build_opened_note(group.topology, group.target))
            group.tree = slot.tree
            group.growing = self._growing(group.topology, number, slot.tree.task)
            group.pending += group.growing.start()
        resumes = slot.stand is not None
        start = None if sample in group.chains else group.next(sample, resumes=resumes)
        self._close_later(group.growing, group.growing.release())
        if start is None:
            if sample not in group.chains:
                self._note(number, ExtraRolloutNote(), sample=sample)
            group.chains.add(sample)
            return await self._play_alone(slot)
        group.planned[sample] = _PlannedSlot(start)
        if slot.stand is None:
            self._note(number, TreeRolloutNote(start=start), sample=sample)
        return await self._play(group, group.growing, slot)

    async def _play_alone(self, slot: RolloutSlot) -> Leaf:
        world = await self._rollouts.restore_env(slot)
        return await self._rollouts.episode(slot, self._sampling, world=world).run()

    async def _restore_env(self, group: _Group, slot: RolloutSlot) -> EnvFork | None:
        """Return the world of a trajectory that goes on, None for one that begins.

        One whose world does not come back begins again, as the topology says.
        """
        sample = slot.attempt.sample
        planned = group.planned[sample]
        if slot.stand is None or group.kept is None:
            return None
        decided = group.kept.is_decided(planned.start, slot.stand.turn)
        slot.resume_at(_find_resume_point(slot, decided=decided))
        env = await self._rollouts.restore_env(slot)
        if env is not None:
            place = replace(place_of(slot.tree, slot.stand), decided=decided)
            begun = group.kept.context_tokens(planned.start.origin)
            planned.tokens = 0 if begun is None else place.context_tokens - begun
            return EnvFork(place, env)
        planned.start = group.restart(sample)
        self._note(slot.attempt.group, TreeRolloutNote(start=planned.start), sample=sample)
        return None

    async def _play(
        self,
        group: _Group,
        growing: TreeGrowth[Any],
        slot: RolloutSlot,
        *,
        is_told: bool = False,
    ) -> Leaf:
        """Play a slot's start; `is_told` when events have told of it as a branch."""
        sample = slot.attempt.sample
        planned = group.planned[sample]
        world = await self._restore_env(group, slot)
        is_told = is_told or world is not None
        while not world and (world := await growing.world(planned.start, slot.watch_env)) is None:
            instead = growing.fork_failed(planned.start)
            if not instead:
                del group.planned[sample]
                why = (
                    "its environment could not be forked, and the token budget of the tree is spent"
                )
                return Leaf(node=None, outcome=Failed("cancelled", why), sample=sample)
            planned.start, *others = instead
            group.pending += others
            self._note(slot.attempt.group, TreeRolloutNote(start=planned.start), sample=sample)
        start, env, before = planned.start, world.env, planned.tokens
        assert env is not None
        env = slot.watch_env(env)
        if not is_told:
            _tell_of_branch(slot, growing, start, world.place)
        if world.place is not None and (versions := _collect_versions(slot.tree, world.place.node)):
            slot.scheduler.inherit_version(slot, min(versions))
        episode = replace(
            self._rollouts.episode(slot, self._sampling),
            env=env,
            seed=start.seed,
            env_seed=growing.env_seed(start),
            begin=world.place,
            boundaries=BranchPointReporter(
                growing,
                start,
                env,
                partial(self._fork, group, growing, slot),
                slot.continue_turn,
                before_tokens=before,
            ),
        )
        try:
            return replace(await episode.run(), root=start.path[0])
        finally:
            planned.tokens = before + episode.added_tokens

    def _fork(
        self,
        group: _Group,
        growing: TreeGrowth[Any],
        parent: RolloutSlot,
        starts: Sequence[PlannedRollout],
    ) -> None:
        for start in starts:
            fork = _fork_point(parent, growing, start)
            play = partial(self._play, group, growing, is_told=fork is not None)
            slot = parent.scheduler.fork(parent, play, fork)
            # Before it has run at all it may be told to begin again.
            group.planned[slot.attempt.sample] = _PlannedSlot(start)
            if fork is None:
                self._note(
                    slot.attempt.group, TreeRolloutNote(start=start), sample=slot.attempt.sample
                )

    def _growing(self, topology: AnyTopology, number: int, task: Task) -> TreeGrowth[Any]:
        return TreeGrowth(
            topology=topology,
            task=task,
            seed=self._seed(number, task),
            on_event=partial(self._note_event, number),
            on_copy=partial(self._note, number),
            make_env=self._rollouts.make_env,
            limits=self._rollouts.limits,
            fork_s=self._rollouts.fork_s,
            clock=asyncio.get_running_loop().time,
            # A branch has its slot when it begins: its world must not fail any more.
            replays_late=False,
        )

    def _close_later(self, growing: TreeGrowth[Any], worlds: Iterable[Env]) -> None:
        if worlds := [*worlds]:
            task = asyncio.create_task(growing.close(worlds))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _resize_topology(topology: AnyTopology, target: int) -> AnyTopology:
    if isinstance(topology, EntropyBalancedTopology | FanOutTopology):
        return replace(topology, budget=replace(topology.budget, leaves=target))
    return topology


def _collect_versions(tree: Tree, node: int | None) -> list[int]:
    return [] if node is None else [v for part in tree.path(node) for v in part.versions]


def _fork_point(
    parent: RolloutSlot, growing: TreeGrowth[Any], start: PlannedRollout
) -> ForkPoint | None:
    """Return the fork that a start begins at; None where it has no decision or copy, or nobody
    keeps turns."""
    why = next((d for d in reversed(growing.decisions) if start in d.children), None)
    copied = next((c for c in reversed(growing.copies) if c.path == start.path), None)
    if why is None or copied is None or why.boundary.node is None:
        return None
    return parent.events.fork_point(
        why.boundary.node,
        strategy=copied.strategy,
        why={**asdict(why), "plays": as_note(TreeRolloutNote(start=start))},
    )


def _tell_of_branch(
    slot: RolloutSlot,
    growing: TreeGrowth[Any],
    start: PlannedRollout,
    place: EpisodePosition | None,
) -> None:
    """Tell that a trajectory which began by itself begins where another one has been."""
    if place is None or place.node is None:
        return
    copied = next((c for c in reversed(growing.copies) if c.path == start.path), None)
    why = next((d for d in growing.decisions if _is_at(d, start.origin)), None)
    slot.events.plan_branch(
        place.node,
        strategy="replay" if copied is None else copied.strategy,
        why={**(asdict(why) if why else {}), "plays": as_note(TreeRolloutNote(start=start))},
    )


def _is_at(decision: BranchDecision, origin: BranchPoint) -> bool:
    boundary = decision.boundary
    return (boundary.path, boundary.turn) == (origin.path, origin.turn)


def _build_opened_note(topology: AnyTopology, target: int) -> TreeOpenedNote:
    prior = topology.prior if isinstance(topology, EntropyBalancedTopology) else None
    return TreeOpenedNote(leaves=target, prior=prior)


def _find_position(
    group: GroupState, tree: RestoredTree, origin: BranchPoint
) -> EpisodePosition | None:
    stand = tree.stand(origin)
    if stand is None:
        return None
    return place_of(group.tree, stand)


def _find_resume_point(slot: RolloutSlot, *, decided: bool) -> ResumePoint:
    """Return the point at which a kept trajectory resumes.

    The first tokens of a turn that has not been decided about are sampled again: what they were
    measured by is gone.
    """
    stand = slot.stand
    assert stand is not None
    if decided or not stand.begun or stand.node is None:
        return stand
    remaining_tokens, at = len(stand.begun), stand.node
    while at is not None and remaining_tokens > 0:
        node = slot.tree.node(at)
        remaining_tokens, at = remaining_tokens - len(node.token_ids), node.parent
    return replace(stand, begun=(), node=at)

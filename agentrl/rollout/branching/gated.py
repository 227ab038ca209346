"""Trees behind the gate: their trajectories sit on its seats, and it says what begins again.

    the gate                                  here
    ----------------------------------------  ----------------------------------------------------
    opens a group                             `wanted`: as many seats as the topology has roots
    `play` of a new seat                      the next start: a root, or a branch of a held world
    a boundary that branches                  the worlds are copied, then `Seat.fork` per branch
    `play` of a seat again (retry, too old)   what the topology says: its root again, or another
    a trajectory ended for good               `ended`, then `wanted`: what begins now gets its seats
                                              before the gate asks whether the group is complete
    a group is over                           `over`: its worlds are closed, its decisions handed on

A group has exactly the leaves of the topology's budget, which is the gate's target, and a leaf's
sample is its seat's. A branch waits for its place before all that has not begun, and
its world with it, which was copied while the parent stood still. A group that was kept by a record
goes on without branching further.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from agentrl.env import Env
from agentrl.policy import Sampling
from agentrl.rollout.branching.aepo import Observed
from agentrl.rollout.branching.balanced import Balanced, BalancedState
from agentrl.rollout.branching.decision import BranchDecision, Start
from agentrl.rollout.branching.growing import Copied, Growing, Watch
from agentrl.rollout.branching.growth import Ended
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.branching.tree import FanOut
from agentrl.rollout.gate.seat import Seat
from agentrl.rollout.pool import Rollouts
from agentrl.rollout.recorder import Leaving
from agentrl.scheduler import Attempt, GroupState, Topology
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """One group's tree, when it is over, and why it has its shape."""

    group: int
    tree: Tree
    decisions: tuple[BranchDecision, ...]
    copies: tuple[Copied, ...]
    observed: Observed | None
    """What the group adds to the topology's `prior`; None for one that learns nothing."""


@dataclass(slots=True)
class _Seated:
    """What a seat plays."""

    start: Start
    tokens: int = 0
    """Added by its latest attempt."""
    ended: bool = False


@dataclass(slots=True)
class _Group:
    """One group of the gate."""

    topology: AnyTopology
    target: int
    owed: int
    """Seats that were asked for and have not come to play yet."""
    growing: Growing[Any] | None = None
    """None until its first seat plays."""
    tree: Tree | None = None
    pending: deque[Start] = field(default_factory=deque[Start])
    """What the topology has begun and no seat plays yet."""
    seated: dict[int, _Seated] = field(default_factory=dict[int, _Seated])
    chains: set[int] = field(default_factory=set[int])
    """Seats beyond the topology's budget, because the group was made larger."""

    def next(self, sample: int) -> Start | None:
        """Return what a seat plays; None when the topology has nothing for it."""
        seated, growing = self.seated.get(sample), self.growing
        assert growing is not None
        if seated is None:
            self.owed -= 1
            return self.pending.popleft() if self.pending else None
        if seated.ended:
            (start,) = growing.reopened(seated.start)
        else:
            path = seated.start.path
            ended = Ended(path=path, tokens=seated.tokens, failed=True, again=True)
            (start,) = growing.finished(ended)
        return start


class GatedTrees(Topology):
    """A branching topology as the gate's own, and what plays its seats. The gate closes it."""

    def __init__(
        self,
        *,
        topology: AnyTopology,
        rollouts: Rollouts,
        sampling: Sampling,
        seed: Callable[[int, Task], int],
        on_over: Callable[[Shaped], None] = lambda shaped: None,
    ) -> None:
        """Take what grows, and what plays it.

        `seed` makes a tree's seed of its group's number and its task; `on_over` hears of every
        group once it is over, in the order in which they are.
        """
        self.topology = topology
        """What the next group grows by: its `prior` is what the groups before it have shown."""
        self._rollouts = rollouts
        self._sampling = sampling
        self._seed = seed
        self._on_over = on_over
        self._groups: dict[int, _Group] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._latest: list[Shaped] = []

    # --- what the gate asks and tells -------------------------------------------------------------

    def wanted(self, group: GroupState) -> int:
        """Return the roots at first, then what the topology begins without a fork."""
        known = self._groups.get(group.number)
        if known is None and group.started:
            # It was kept by a record, its tree's state was not: it is filled up with chains.
            return max(0, group.target - group.started)
        if known is None:
            topology = _for_target(self.topology, group.target)
            _, starts = topology.start("", seed=0)
            self._groups[group.number] = _Group(topology, group.target, owed=len(starts))
            return len(starts)
        more = group.target - known.target if known.growing is not None else 0
        missing = more + max(0, len(known.pending) - known.owed) if known.growing else 0
        known.owed += missing
        known.target += more
        return missing

    def ended(self, attempt: Attempt, leaf: Leaf) -> None:
        """Report the end of a trajectory to its topology."""
        group = self._groups.get(attempt.group)
        if group is None or group.growing is None or attempt.sample in group.chains:
            return
        seated = group.seated.get(attempt.sample)
        if seated is None:
            # It was stopped before it came to play: its start is the next one.
            group.owed -= 1
            if not group.pending:
                return
            seated = group.seated[attempt.sample] = _Seated(group.pending.popleft())
        if seated.ended:
            return
        seated.ended = True
        failed = isinstance(leaf.outcome, Failed)
        ended = Ended(path=seated.start.path, tokens=seated.tokens, failed=failed, again=False)
        group.pending += group.growing.finished(ended)
        self._close_later(group.growing, group.growing.release())

    def over(self, group: int) -> None:
        """Close a group's worlds, learn from it, and hand its decisions on."""
        gone = self._groups.pop(group, None)
        if gone is None or gone.growing is None or gone.tree is None:
            return
        growing = gone.growing
        self._close_later(growing, growing.abandon())
        observed = growing.state.observed if isinstance(growing.state, BalancedState) else None
        if observed is not None and isinstance(self.topology, Balanced):
            self.topology = replace(self.topology, prior=self.topology.prior + observed)
        shaped = Shaped(
            group=group,
            tree=gone.tree,
            decisions=tuple(growing.decisions),
            copies=tuple(growing.copies),
            observed=observed,
        )
        self._latest.append(shaped)
        self._on_over(shaped)

    def figures(self) -> Mapping[str, float]:
        """Return what came of the groups that were over since the last call."""
        latest, self._latest = self._latest, []
        return branching_figures(latest)

    async def close(self) -> None:
        """Close every world, and hand on what the unfinished groups have decided."""
        for number in [*self._groups]:
            self.over(number)
        if self._closing:
            await asyncio.wait(self._closing)

    # --- what plays -------------------------------------------------------------------------------

    async def play(self, seat: Seat) -> Leaf:
        """Play what the topology has for a seat."""
        group = self._groups.get(seat.attempt.group)
        if group is None:
            return await self._rollouts.episode(seat, self._sampling).run()
        if group.growing is None:
            group.tree = seat.tree
            group.growing = self._growing(group.topology, seat)
            group.pending += group.growing.start()
        sample = seat.attempt.sample
        start = None if sample in group.chains else group.next(sample)
        self._close_later(group.growing, group.growing.release())
        if start is None:
            group.chains.add(sample)
            return await self._rollouts.episode(seat, self._sampling).run()
        group.seated[sample] = _Seated(start)
        return await self._play(group, group.growing, seat)

    async def _play(self, group: _Group, growing: Growing[Any], seat: Seat) -> Leaf:
        sample = seat.attempt.sample
        seated = group.seated[sample]
        while (world := await growing.world(seated.start, seat.watched)) is None:
            instead = growing.fork_failed(seated.start)
            if not instead:
                del group.seated[sample]
                why = "its world could not be copied, and the tree's tokens are used up"
                return Leaf(node=None, outcome=Failed("cancelled", why), sample=sample)
            seated.start, *others = instead
            group.pending += others
        start, env = seated.start, world.env
        assert env is not None
        env = seat.watched(env)
        if world.place is not None and (versions := _versions(seat.tree, world.place.node)):
            seat.doorkeeper.inherits(seat, min(versions))
        episode = replace(
            self._rollouts.episode(seat, self._sampling),
            env=env,
            seed=start.seed,
            env_seed=growing.env_seed(start),
            begin=world.place,
            boundaries=Watch(
                growing, start, env, partial(self._fork, group, growing, seat), seat.goes_on
            ),
        )
        try:
            return await episode.run()
        finally:
            seated.tokens = episode.added_tokens

    def _fork(
        self, group: _Group, growing: Growing[Any], parent: Seat, starts: Sequence[Start]
    ) -> None:
        """Give branches of a parent's trajectory their seats."""
        for start in starts:
            seat = parent.doorkeeper.fork(
                parent, partial(self._play, group, growing), _leaving(parent, growing, start)
            )
            # Before it has run at all it may be told to begin again.
            group.seated[seat.attempt.sample] = _Seated(start)

    def _growing(self, topology: AnyTopology, seat: Seat) -> Growing[Any]:
        return Growing(
            topology=topology,
            task=seat.tree.task,
            seed=self._seed(seat.attempt.group, seat.tree.task),
            make_env=self._rollouts.make_env,
            limits=self._rollouts.limits,
            fork_s=self._rollouts.fork_s,
            clock=asyncio.get_running_loop().time,
            # A branch has its seat when it begins: its world must not fail any more.
            replays_late=False,
        )

    def _close_later(self, growing: Growing[Any], worlds: Iterable[Env]) -> None:
        if worlds := [*worlds]:
            task = asyncio.create_task(growing.close(worlds))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def branching_figures(shaped: Sequence[Shaped]) -> dict[str, float]:
    """Return branches and failed copies per tree, seconds per copy, and the share of tokens that
    several trajectories share."""
    if not shaped:
        return {}
    copies = [copied for one in shaped for copied in one.copies]
    made = sum(len(decision.children) for one in shaped for decision in one.decisions)
    failed = Counter(copied.reason for copied in copies if copied.reason)
    figures: dict[str, float] = {
        "branching/branches_mean": made / len(shaped),
        "branching/copies": len(copies),
        **{f"branching/failed_copies/{reason}": n for reason, n in sorted(failed.items())},
    }
    if copies:
        seconds = [copied.seconds for copied in copies]
        figures["branching/copy_seconds_mean"] = sum(seconds) / len(seconds)
        figures["branching/copy_seconds_max"] = max(seconds)
    played = sum(len(t.token_ids) for one in shaped for t in one.tree.trajectories())
    stored = sum(_stored(one.tree) for one in shaped)
    if played:
        figures["branching/shared_tokens"] = 1 - stored / played
    return figures


def _stored(tree: Tree) -> int:
    """Return the tokens of what ended, shared ones once."""
    nodes = tree.nodes
    used = {i for leaf in tree.leaves if leaf.node is not None for i in tree.path_ids(leaf.node)}
    return sum(len(nodes[i].token_ids) for i in used)


def _for_target(topology: AnyTopology, target: int) -> AnyTopology:
    """Return the topology with the budget of a group that has its own number of trajectories."""
    if isinstance(topology, Balanced | FanOut):
        return replace(topology, budget=replace(topology.budget, leaves=target))
    return topology


def _versions(tree: Tree, node: int | None) -> list[int]:
    return [] if node is None else [v for part in tree.path(node) for v in part.versions]


def _leaving(parent: Seat, growing: Growing[Any], start: Start) -> Leaving | None:
    """Return what a record keeps of a branch."""
    why = next((d for d in reversed(growing.decisions) if start in d.children), None)
    copied = next((c for c in reversed(growing.copies) if c.path == start.path), None)
    if parent.record is None or why is None or copied is None or why.boundary.node is None:
        return None
    return Leaving(
        parent=parent.record,
        node=why.boundary.node,
        strategy=copied.strategy,
        why=asdict(why),
    )

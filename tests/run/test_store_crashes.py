"""A store beside a model of it, killed at any moment: hypothesis looks for the run that breaks it.

A kill is what `kill -9` leaves: files as the kernel has them. The last record is cut at any byte,
where the ledger had not entered it yet; the ledger's own log is cut anywhere.
"""

import copy
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agentrl.env import Action, Observation
from agentrl.events.kinds import EnvExchange
from agentrl.events.state import GroupState
from agentrl.message import Message
from agentrl.store.reader import StoreReader
from agentrl.store.segment import segments
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.scripted_store import ScriptedStore, complete_groups, open_groups

SETTINGS = StoreSettings(segment_bytes=4000)


@dataclass
class Played:
    """What the model knows of a trajectory."""

    sample: int
    at: int | None = None
    """The node it stands at."""
    context: tuple[int, ...] = ()
    turns: tuple[str, ...] = ()
    """The world's answers, the reset's first."""
    state: str = "open"
    mid_turn: bool = False
    stops: tuple[tuple[int, ...], ...] = ()
    """The context after each answer."""


@dataclass
class Model:
    """What has to be in the store after each record."""

    groups: dict[int, dict[int, Played]] = field(default_factory=dict[int, dict[int, Played]])
    states: dict[int, str] = field(default_factory=dict[int, str])
    weights: list[int] = field(default_factory=list[int])
    """The groups that trained the weights as they are."""
    step: int = 0
    checkpoints: list[tuple[int, int, tuple[int, ...]]] = field(
        default_factory=lambda: [(0, 0, ())]
    )
    trajectories: int = 0
    records: int = 0


@dataclass
class Live:
    """The group as the run has it in memory."""

    tree: Tree
    at: dict[int, int] = field(default_factory=dict[int, int])
    """Of each trajectory, tokens of an unfinished turn included."""


class Crashes(RuleBasedStateMachine):
    """Random runs of a few groups."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="agentrl-store-"))
        self.lives = 0
        self.tokens = 0
        self.model = Model()
        self.before = Model()
        """As of the record before the last."""
        self.wal_before = 0
        self.live: dict[int, Live] = {}

    @initialize()
    def start(self) -> None:
        self.store = ScriptedStore.open(self.base / "0", SETTINGS)
        self.open_group()
        for _ in range(2):
            self.begin_one(0, reset=True)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    def wal(self) -> int:
        return self.store.folder.joinpath("ledger.sqlite-wal").stat().st_size

    def recording(self) -> Model:
        """Return the model to change along with the one record that follows."""
        self.before = copy.deepcopy(self.model)
        self.wal_before = self.wal()
        self.model.records += 1
        return self.model

    def fresh(self, count: int) -> tuple[int, ...]:
        self.tokens += count
        return tuple(range(self.tokens - count, self.tokens))

    def open_groups(self) -> list[int]:
        return [group for group, state in self.model.states.items() if state == "open"]

    def open_ones(self) -> list[tuple[int, int]]:
        return [
            (group, trajectory)
            for group in self.open_groups()
            for trajectory, played in self.model.groups[group].items()
            if played.state == "open"
        ]

    @rule()
    def open_group(self) -> None:
        model = self.recording()
        task = Task(prompt="q", id=str(len(model.states)))
        group = self.store.open_group(
            task, order=len(model.states), seed=1, size=2, step=model.step
        )
        assert group == len(model.states)
        model.groups[group] = {}
        model.states[group] = "open"
        self.live[group] = Live(Tree(task))

    @precondition(lambda self: self.open_groups())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.begin_one(
            data.draw(st.sampled_from(self.open_groups())), reset=data.draw(st.booleans())
        )

    def begin_one(self, group: int, *, reset: bool) -> None:
        model = self.recording()
        sample = len(model.groups[group])
        trajectory = self.store.begin(group, sample=sample, seed=sample)
        assert trajectory == model.trajectories
        model.trajectories += 1
        model.groups[group][trajectory] = Played(sample)
        live = self.live[group]
        prompt = live.tree.share(Node(parent=None, source="prompt", token_ids=(10**6,), turn=0))
        live.at[trajectory] = prompt
        if reset:
            self.exchange(group, trajectory)

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), count=st.integers(1, 5))
    def sample(self, data: st.DataObject, count: int) -> None:
        """Tokens of a turn that may never be finished: nothing is recorded."""
        group, trajectory = data.draw(st.sampled_from(self.open_ones()))
        self.grow(group, trajectory, count)

    def grow(self, group: int, trajectory: int, count: int) -> None:
        ids = self.fresh(count)
        live = self.live[group]
        live.at[trajectory] = live.tree.add(
            Node(
                parent=live.at[trajectory],
                source="sampled",
                token_ids=ids,
                turn=0,
                logprobs=tuple(-1 / (1 + i) for i in ids),
                versions=(self.model.step,) * count,
            )
        )

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        group, trajectory = data.draw(st.sampled_from(self.open_ones()))
        self.grow(group, trajectory, data.draw(st.integers(1, 3)))
        self.exchange(group, trajectory)

    def exchange(self, group: int, trajectory: int) -> None:
        model, live = self.recording(), self.live[group]
        answer = str(self.tokens)
        exchange = self.answered(answer, opens=not model.groups[group][trajectory].turns)
        self.store.turn(trajectory, live.tree, live.at[trajectory], exchange)
        self.stand(group, trajectory, answer)

    def answered(self, answer: str, *, opens: bool) -> EnvExchange:
        seen = Observation((Message("user", answer),))
        if opens:
            return EnvExchange.resetting(seen)
        return EnvExchange.stepping(Action(answer), (seen, 0.0, False, False, {}))

    def stand(self, group: int, trajectory: int, answer: str) -> None:
        played, live = self.model.groups[group][trajectory], self.live[group]
        played.at = live.at[trajectory]
        played.context = live.tree.tokens(played.at)
        played.turns += (answer,)
        played.stops += (played.context,)
        played.mid_turn = False

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def part(self, data: st.DataObject) -> None:
        group, trajectory = data.draw(st.sampled_from(self.open_ones()))
        model, live = self.recording(), self.live[group]
        self.store.part(trajectory, live.tree, live.at[trajectory])
        played = model.groups[group][trajectory]
        played.at = live.at[trajectory]
        played.context = live.tree.tokens(played.at)
        played.mid_turn = True

    @precondition(
        lambda self: any(p.turns for g in self.open_groups() for p in self.model.groups[g].values())
    )
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """At any node of a trajectory's path, open or ended, from the first answer on."""
        ready = [
            (g, t)
            for g in self.open_groups()
            for t, played in self.model.groups[g].items()
            if played.turns and played.state != "abandoned"
        ]
        if not ready:
            return
        group, parent = data.draw(st.sampled_from(ready))
        live, played = self.live[group], self.model.groups[group][parent]
        path = live.tree.path_ids(live.at[parent])
        nodes = [n for n in path if len(live.tree.tokens(n)) >= len(played.stops[0])]
        node = data.draw(st.sampled_from(nodes))
        model = self.recording()
        sample = len(model.groups[group])
        child = self.store.fork(
            parent, live.tree, node, sample=sample, seed=sample, strategy="native", why={"p": 0.5}
        )
        context = live.tree.tokens(node)
        shared = [stop for stop in played.stops if context[: len(stop)] == stop]
        model.groups[group][child] = Played(
            sample,
            node,
            context,
            played.turns[: len(shared)],
            stops=tuple(shared),
            mid_turn=shared[-1] != context,
        )
        model.trajectories += 1
        live.at[child] = node

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        group, trajectory = data.draw(st.sampled_from(self.open_ones()))
        self.grow(group, trajectory, 1)
        model, live = self.recording(), self.live[group]
        played = model.groups[group][trajectory]
        leaf = Leaf(node=live.at[trajectory], outcome=Finished(1.0), sample=played.sample)
        answer = str(self.tokens)
        exchange = self.answered(answer, opens=not played.turns)
        self.store.finish(trajectory, live.tree, leaf, exchange)
        self.stand(group, trajectory, answer)
        played.state = "ended"

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        group, trajectory = data.draw(st.sampled_from(self.open_ones()))
        self.recording().groups[group][trajectory].state = "abandoned"
        self.store.abandon(trajectory, "rerun")

    @precondition(lambda self: self.open_groups())
    @rule(data=st.data())
    def complete_or_drop(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.open_groups()))
        if any(played.state == "open" for played in self.model.groups[group].values()):
            return
        if data.draw(st.booleans()):
            self.recording().states[group] = "complete"
            self.store.group_complete(group)
        else:
            self.recording().states[group] = "dropped"
            self.store.drop(group, "no spread")

    @precondition(lambda self: "complete" in self.model.states.values())
    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        ready = [g for g, state in self.model.states.items() if state == "complete"]
        groups = data.draw(st.lists(st.sampled_from(ready), unique=True, min_size=1))
        model = self.recording()
        model.step += 1
        self.store.trained(groups, step=model.step)
        model.weights = model.weights + groups
        model.states |= dict.fromkeys(groups, "trained")

    @rule()
    def checkpoint(self) -> None:
        model = self.recording()
        position = self.store.checkpoint(model.step)
        assert position == model.records
        model.checkpoints.append((position, model.step, tuple(model.weights)))

    @rule()
    def look(self) -> None:
        """Another process sees every record."""
        with StoreReader(self.store.folder) as reader:
            for group in self.model.states:
                self.compare(reader.group(group), shows_all=True)

    @rule(data=st.data(), torn=st.booleans())
    def kill(self, data: st.DataObject, torn: bool) -> None:
        folder = self.copy_of_the_files()
        wal = folder / "ledger.sqlite-wal"
        if torn and self.model.records > 0:
            # In the middle of the last record, which the ledger therefore knows nothing of.
            whole = max(segments(folder / "segments").values())
            size = whole.stat().st_size
            length = self.last_length(folder)
            left = data.draw(st.integers(0, length - 1))
            with whole.open("rb+") as file:
                file.truncate(size - length + left)
            limit = self.wal_before
            self.model, torn_bytes = self.before, left
        else:
            limit, torn_bytes = wal.stat().st_size, 0
        with wal.open("rb+") as file:
            file.truncate(data.draw(st.integers(0, limit) | st.just(limit)))
        self.resume(folder, torn_bytes=torn_bytes, checkpoint=data.draw(st.integers(-2, -1)))

    def copy_of_the_files(self) -> Path:
        self.lives += 1
        folder = self.base / str(self.lives)
        ignore = shutil.ignore_patterns("*-shm")
        shutil.copytree(self.store.folder, folder, ignore=ignore)
        self.store.close()
        return folder

    def last_length(self, folder: Path) -> int:
        with StoreReader(self.store.folder) as reader:
            ((_, place),) = reader._ledger.places_after(self.model.records - 2, limit=2)  # pyright: ignore[reportPrivateUsage]
        return place.length

    def resume(self, folder: Path, *, torn_bytes: int, checkpoint: int) -> None:
        self.store = ScriptedStore.open(folder, SETTINGS, resume=True)
        known = self.model.checkpoints
        position, step, weights = known[max(checkpoint, -len(known))]
        if not self.model.records:
            self.live = {}
            self.before, self.wal_before = copy.deepcopy(self.model), self.wal()
            return
        model = self.recording()
        state = self.store.restore(position=position, step=step)
        model.step, model.weights = step, list(weights)
        for group, was in model.states.items():
            if was in ("trained", "complete"):
                model.states[group] = "trained" if group in weights else "complete"
        assert self.store.torn_bytes == torn_bytes
        assert state.task_position == len(model.states)
        assert (state.next_group, state.next_rollout) == (len(model.states), model.trajectories)
        assert {g.id for g in complete_groups(state)} == {
            g for g, was in model.states.items() if was == "complete"
        }
        assert {g.id for g in open_groups(state)} == {*self.open_groups()}
        for group in state.groups.values():
            self.compare(group, shows_all=False)
        self.live = {
            group.id: Live(
                group.tree, {t.id: self.at(group, t.at) for t in group.rollouts.values()}
            )
            for group in open_groups(state)
        }

    def at(self, group: GroupState, node: int | None) -> int:
        prompt = Node(parent=None, source="prompt", token_ids=(10**6,), turn=0)
        return group.tree.share(prompt) if node is None else node

    def compare(self, group: GroupState, *, shows_all: bool) -> None:
        """Compare a group with the model; what goes on knows answers by their fingerprints."""
        wanted = self.model.groups[group.id]
        assert [*group.rollouts] == [*wanted]
        for found in group.rollouts.values():
            played = wanted[found.id]
            context = () if found.at is None else group.tree.tokens(found.at)
            exchanges = [
                self.answered(answer, opens=place == 0) for place, answer in enumerate(played.turns)
            ]
            if not shows_all:
                exchanges = [replace(one, observation=Observation(())) for one in exchanges]
            assert (found.sample, found.status, found.at, context) == (
                *(played.sample, played.state),
                *(played.at, played.context),
            )
            assert (found.exchanges, found.mid_turn) == (exchanges, played.mid_turn)
            for part in () if found.at is None else group.tree.path(found.at):
                if part.source == "sampled":
                    assert part.logprobs == tuple(-1 / (1 + i) for i in part.token_ids)
        known = {id for id, node in enumerate(group.tree.nodes) if node.token_ids}
        assert known == group.told


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)

"""One task's tree, grown: shared prefixes, probes kept, worlds copied, failures paid for.

Mutants seen caught: the fork deadline off; a child in its parent's own world; a branch asked
about the place it began from; its parent's rewards or history lost; the probe thrown away; the
place taken after the probe; the environment's seed ignored; in a replay: first observation, answers
or reward not compared, a failed world left open.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, ForkStrategy, Info, Observation, Step, say
from agentrl.errors import ConfigError, ForkUnsupported
from agentrl.events.history import ActionHistory
from agentrl.message import Message
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.branching.aepo import StaticRootSplit
from agentrl.rollout.branching.arpo import ArpoPaperRule, ArpoRule
from agentrl.rollout.branching.balanced import EntropyBalancedTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.fixed_topologies import FanOutTopology, TreeGrpoTopology, chains
from agentrl.rollout.branching.topology import AnyTopology, restore
from agentrl.rollout.env_replay import ReplayMismatch, replay
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task
from agentrl.testing import ScriptedEnv, ScriptedTurn
from agentrl.trajectory import Failed, Finished, Tree
from benchmarks.letters import END, LetterChat
from benchmarks.tree_grower import GrownTree, TreeGrower

TURN = ord(">")
TASK = Task(prompt="ab", answer="x", id="task")
PROBE = 3
SIGNAL = EntropySignal(vocabulary=200, tokens=PROBE)


class Counting(BaseEnv):
    """Adds up what it is told, and answers with the sum; ends after so many turns.

    Knows of all its copies: how many are open, and which broke.
    """

    def __init__(
        self,
        *,
        turns: int = 4,
        strategy: ForkStrategy = "copy",
        opened: list["Counting"] | None = None,
        on_step: Callable[["Counting"], None] = lambda env: None,
        on_fork: Callable[["Counting"], None] = lambda env: None,
    ) -> None:
        self.fork_strategy: ForkStrategy = strategy
        self.heard: tuple[str, ...] = ()
        self.seed = 0
        self.everyone = [] if opened is None else opened
        self.is_open = False
        self._turns, self._on_step, self._on_fork = turns, on_step, on_fork

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert options is not None
        self.seed, self.is_open = seed or 0, True
        self.everyone.append(self)
        return Observation(options["task"].messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(0)
        self._on_step(self)
        self.heard = (*self.heard, action.text)
        told = Message("tool", str(sum(map(len, self.heard))))
        return Observation((told,)), 0.5, len(self.heard) == self._turns, False, {}

    async def fork(self) -> Self:
        self._on_fork(self)
        made = type(self)(
            turns=self._turns,
            strategy=self.fork_strategy,
            opened=self.everyone,
            on_step=self._on_step,
            on_fork=self._on_fork,
        )
        made.heard, made.seed, made.is_open = self.heard, self.seed, True
        self.everyone.append(made)
        return made

    async def close(self) -> None:
        self.is_open = False


def spoken(request: GenerateRequest) -> Sequence[int]:
    """Say what seed and position ask for, as an engine does: a request cut in two says the same."""
    at = len(request.prompt) - 1 - request.prompt[::-1].index(TURN)
    said = len(request.prompt) - at - 1
    length = 4 + Random(derive(request.seed, at)).randrange(4)
    letters = [97 + derive(request.seed, at + i) % 26 for i in range(length)]
    return (*letters, END)[said:]


def surprise(request: GenerateRequest, place: int, token: int) -> float:
    """A log-prob of a token that depends on where it stands."""
    return -0.05 - (derive("surprise", request.seed, len(request.prompt) + place) % 100) / 50


def grower(
    topology: AnyTopology, make_env: Callable[[], Any] | None = None, **changes: Any
) -> TreeGrower[Any]:
    return TreeGrower(
        topology=topology,
        make_env=make_env or Counting,
        engine=changes.pop("engine", None) or ScriptedEngine(spoken, logprob=surprise),
        chat=LetterChat(),
        limits=changes.pop("limits", EpisodeLimits()),
        **changes,
    )


async def grow(topology: AnyTopology, *args: Any, seed: int = 0, **changes: Any) -> GrownTree:
    return await grower(topology, *args, **changes).grow(TASK, seed=seed, sampling=Sampling())


def aepo(leaves: int = 8, **changes: Any) -> EntropyBalancedTopology:
    changes = {"rule": ArpoRule(weight=0.5), "split": StaticRootSplit(roots=2)} | changes
    return EntropyBalancedTopology(budget=BranchBudget(leaves=leaves), signal=SIGNAL, **changes)


def always(leaves: int = 8, **changes: Any) -> EntropyBalancedTopology:
    return aepo(leaves, rule=ArpoPaperRule(threshold=-100), **changes)


def check_shared(grown: GrownTree, *, unbroken: bool = True) -> None:
    """Every child has its parent's exact tokens, mask and versions up to where it began.

    A parent that broke and was begun again has another path: the child still lies on the old one.
    """
    by_path = {start.path: start for start in grown.starts}
    origins = {c.path: c.origin.turn for d in grown.decisions for c in d.children}
    for decision in grown.decisions:
        here = decision.boundary
        assert here.turn > origins.get(here.path, -1), "asked about the place it began from"
    trajectories = {t.sample: t for t in grown.tree.trajectories()}
    nodes = {leaf.sample: grown.tree.path_ids(leaf.node or 0) for leaf in grown.tree.leaves}
    places: dict[tuple[Any, int], list[Any]] = {}
    for decision in grown.decisions:
        here = decision.boundary
        places.setdefault((here.path, here.turn), []).append(here)
    for start in grown.starts:
        if start.origin.turn == 0:
            continue
        passed = places[start.origin.path, start.origin.turn]
        (here,) = [place for place in passed if place.node in nodes[start.sample]]
        cut, parent = here.context_tokens, by_path.get(start.origin.path)
        child = trajectories[start.sample]
        assert child.token_ids[:cut] == grown.tree.tokens(here.node)
        assert child.token_ids[cut - 1] == TURN
        if parent is None or here.node not in nodes[parent.sample]:
            assert not unbroken
            continue
        other = trajectories[parent.sample]
        for kind in ("token_ids", "mask", "versions", "logprobs", "sources", "turns"):
            assert getattr(child, kind)[:cut] == getattr(other, kind)[:cut], kind
        assert child.token_ids[cut : cut + 4] != other.token_ids[cut : cut + 4], "same noise"


@pytest.mark.parametrize("strategy", ["copy", "native", "replay"])
async def test_children_share_the_exact_prefix_and_their_world(strategy: ForkStrategy) -> None:
    everyone: list[Counting] = []
    grown = await grow(always(), lambda: Counting(strategy=strategy, opened=everyone))
    assert len(grown.tree.leaves) == 8
    assert sorted(leaf.sample for leaf in grown.tree.leaves) == list(range(8))
    assert {type(leaf.outcome) for leaf in grown.tree.leaves} == {Finished}
    assert [copied.strategy for copied in grown.copies] == [strategy] * 6
    assert not any(copied.error for copied in grown.copies)
    check_shared(grown)
    assert not any(env.is_open for env in everyone)
    for trajectory in grown.tree.trajectories():
        assert len(trajectory.turn_rewards) == 4
        check_world(trajectory.token_ids)


def check_world(token_ids: tuple[int, ...]) -> None:
    """What the world answered is the sum of what this very path had said."""
    text = "".join(chr(t) if t else "." for t in token_ids)
    said = 0
    for turn in text.split(">")[1:]:
        words, _, answer = turn.partition(".")
        said += len(words)
        assert answer in (str(said), "")


async def test_prefixes_are_stored_once() -> None:
    grown = await grow(always())
    stored = sum(len(node.token_ids) for node in grown.tree.nodes)
    expanded = sum(len(t.token_ids) for t in grown.tree.trajectories())
    assert stored < expanded
    ended = {leaf.node for leaf in grown.tree.leaves}
    used = {i for leaf in grown.tree.leaves for i in grown.tree.path_ids(leaf.node or 0)}
    assert len(ended) == 8
    assert used == set(range(len(grown.tree.nodes))), "nothing that was sampled is thrown away"


async def test_a_probe_changes_no_token_of_its_trajectory() -> None:
    never = aepo(4, rule=ArpoPaperRule(threshold=100), split=StaticRootSplit(roots=4))
    engine = ScriptedEngine(spoken, logprob=-1.0)
    probed = await grow(never, engine=engine)
    plain = await grow(chains(BranchBudget(leaves=4)), engine=ScriptedEngine(spoken, logprob=-1.0))
    assert [t.token_ids for t in probed.tree.trajectories()] == [
        t.token_ids for t in plain.tree.trajectories()
    ]
    asked = {(r.top_logprobs, r.max_new_tokens == PROBE) for r in engine.requests}
    assert asked == {(10, True), (0, False)}


async def test_chains_are_what_the_pool_plays() -> None:
    grown = await grow(chains(BranchBudget(leaves=3)), seed=7)
    for sample in range(3):
        tree = Tree(TASK)
        leaf = await EpisodeRunner(
            env=Counting(),
            engine=ScriptedEngine(spoken, logprob=surprise),
            chat=LetterChat(),
            tree=tree,
            sample=sample,
            seed=derive(7, TASK.id, sample),
        ).run()
        tree.end(leaf)
        (alone,) = tree.trajectories()
        assert grown.tree.trajectories()[sample].token_ids == alone.token_ids


def topology_of(kind: str, leaves: int) -> AnyTopology:
    match kind:
        case "fan":
            return FanOutTopology(budget=BranchBudget(leaves=leaves), turns=(1, 2))
        case "tree":
            return TreeGrpoTopology(trees=leaves, rounds=1, width=2)
        case "always":
            return always(leaves)
        case _:
            return aepo(leaves)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    leaves=st.integers(1, 10),
    kind=st.sampled_from(["aepo", "always", "fan", "tree"]),
    breaking=st.integers(0, 3),
)
async def test_whatever_breaks_the_leaves_are_as_many_as_budgeted(
    seed: int, leaves: int, kind: str, breaking: int
) -> None:
    rng, everyone = Random(seed), list[Counting]()

    def sometimes(env: Counting) -> None:
        if rng.random() < breaking / 10:
            raise RuntimeError("boom")

    topology = topology_of(kind, leaves)
    grown = await grow(
        topology,
        lambda: Counting(opened=everyone, on_step=sometimes, on_fork=sometimes),
        seed=seed,
    )
    wanted = topology.start("t", seed=0)[0]
    assert len(grown.tree.leaves) == topology.growth(wanted).ledger.budget.leaves
    assert not any(env.is_open for env in everyone)
    check_shared(grown, unbroken=not breaking)
    state, decisions = restore(topology, TASK.id, seed=seed, events=grown.events)
    assert decisions == grown.decisions
    assert state == grown.state
    assert not topology.growth(state).lines


async def test_same_seed_same_tree_and_another_seed_another() -> None:
    one, two, other = [await grow(aepo(), seed=seed) for seed in (3, 3, 4)]
    assert one.tree.trajectories() != other.tree.trajectories()
    assert (one.decisions, one.starts) == (two.decisions, two.starts)
    assert [t.token_ids for t in one.tree.trajectories()] == [
        t.token_ids for t in two.tree.trajectories()
    ]


async def test_a_fork_that_fails_costs_the_branch_and_not_the_trajectory() -> None:
    def refuse(env: Counting) -> None:
        raise ForkUnsupported("threads run in it")

    grown = await grow(always(), lambda: Counting(on_fork=refuse))
    assert {type(leaf.outcome) for leaf in grown.tree.leaves} == {Finished}
    assert [start.origin.turn for start in grown.starts] == [0] * 8
    assert {copied.error for copied in grown.copies} == {"threads run in it"}


async def test_a_fork_that_hangs_misses_its_deadline() -> None:
    class Hangs(Counting):
        async def fork(self) -> Self:
            await asyncio.Event().wait()
            raise AssertionError

    grown = await grow(always(3, split=StaticRootSplit(roots=1)), Hangs, fork_s=0.01)
    assert len(grown.tree.leaves) == 3
    assert all("deadline" in copied.error for copied in grown.copies)


async def test_a_world_that_does_not_repeat_itself_is_not_replayed() -> None:
    class Moody(Counting):
        async def step(self, action: Action) -> Step:
            answer = await super().step(action)
            mood = Message("tool", str(len(self.everyone)))
            return replace(answer[0], messages=(mood,)), *answer[1:]

    everyone: list[Counting] = []
    grown = await grow(
        always(4, split=StaticRootSplit(roots=1)), lambda: Moody(strategy="replay", opened=everyone)
    )
    assert len(grown.tree.leaves) == 4
    errors = {copied.error.split(" has fingerprint")[0] for copied in grown.copies if copied.error}
    assert "replay of task task: the answer to action 1 of 1" in errors
    assert not any(env.is_open for env in everyone)


class Jammed(Counting):
    """Does not close, and hangs at the action `hang`."""

    async def step(self, action: Action) -> Step:
        if action.text == "hang":
            await asyncio.Event().wait()
        return await super().step(action)

    async def close(self) -> None:
        await super().close()
        raise RuntimeError("jammed")


async def test_a_replayed_world_that_does_not_close_hides_neither_why_nor_a_cancellation() -> None:
    everyone: list[Counting] = []
    env = Counting(opened=everyone)
    observation, _ = await env.reset(seed=5, options={"task": TASK, "sample": 0})
    history = ActionHistory.from_reset(TASK, sample=0, seed=5, observation=observation)
    with pytest.raises(ReplayMismatch, match="the first observation"):
        await replay(Jammed, replace(history, opening="0"), reset_s=5, step_s=5)
    history = history.add_step(say("hang"), (observation, 0.0, False, False, {}))
    playing = asyncio.create_task(
        replay(lambda: Jammed(opened=everyone), history, reset_s=60, step_s=60)
    )
    while len(everyone) < 2:  # noqa: ASYNC110 - there is nothing else to wait on
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_replay_says_what_differs_and_closes() -> None:
    everyone: list[Counting] = []
    env = Counting(opened=everyone)
    options = {"task": TASK, "sample": 0}
    observation, _ = await env.reset(seed=5, options=options)
    history = ActionHistory.from_reset(TASK, sample=0, seed=5, observation=observation)
    for text in ("a", "bc"):
        history = history.add_step(say(text), await env.step(say(text)))
    again = await replay(lambda: Counting(opened=everyone), history, reset_s=5, step_s=5)
    assert isinstance(again, Counting)
    assert (again.heard, again.seed) == (("a", "bc"), 5)
    wrong = replace(history, steps=(history.steps[0], replace(history.steps[1], answer="0")))
    with pytest.raises(ReplayMismatch, match="the answer to action 2 of 2"):
        await replay(lambda: Counting(opened=everyone), wrong, reset_s=5, step_s=5)
    with pytest.raises(ReplayMismatch, match="the first observation"):
        await replay(Counting, replace(history, opening="0"), reset_s=5, step_s=5)
    assert [one.is_open for one in everyone] == [True, True, False]
    other_reward = (Observation(()), 1.0, False, False, {"seconds": 1})
    same = (Observation(()), 1.0, False, False, {"seconds": 2})
    assert history.add_step(say("x"), other_reward) == history.add_step(say("x"), same)
    less = (Observation(()), 0.5, False, False, {})
    assert history.add_step(say("x"), less) != history.add_step(say("x"), same)


async def test_tree_grpo_branches_from_places_that_have_passed() -> None:
    everyone: list[Counting] = []
    found: set[int] = set()
    for seed in range(6):
        topology = TreeGrpoTopology(trees=2, rounds=2, width=2)
        grown = await grow(topology, lambda: Counting(opened=everyone), seed=seed)
        assert len(grown.tree.leaves) == 10
        check_shared(grown)
        found |= {start.origin.turn for start in grown.starts}
        assert Counter(leaf.root for leaf in grown.tree.leaves) == {0: 5, 1: 5}
        for trajectory in grown.tree.trajectories():
            check_world(trajectory.token_ids)
    assert found == {0, 1, 2, 3}
    assert not any(env.is_open for env in everyone)


async def test_all_that_begins_at_a_root_begins_in_its_world() -> None:
    everyone: list[Counting] = []
    await grow(TreeGrpoTopology(trees=2, rounds=2, width=3), lambda: Counting(opened=everyone))
    assert {env.seed for env in everyone} == {derive(0, TASK.id, tree) for tree in (0, 1)}


async def test_cancelling_closes_every_world() -> None:
    everyone: list[Counting] = []
    waiting = asyncio.Semaphore(0)

    class Waits(Counting):
        async def step(self, action: Action) -> Step:
            if len(self.heard) == 2:
                waiting.release()
                await asyncio.Event().wait()
            return await super().step(action)

    running = asyncio.create_task(grow(always(), lambda: Waits(opened=everyone)))
    for _ in range(4):
        await waiting.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(env.is_open for env in everyone)


async def test_branches_that_wait_for_a_place_are_closed_too() -> None:
    everyone: list[Counting] = []
    free = asyncio.Semaphore(1)
    stuck = asyncio.Event()

    def fork(env: Counting) -> None:
        stuck.set()

    class Waits(Counting):
        async def step(self, action: Action) -> Step:
            if stuck.is_set():
                await asyncio.Event().wait()
            return await super().step(action)

    one = grower(always(), lambda: Waits(opened=everyone, on_fork=fork))
    running = asyncio.create_task(one.grow(TASK, seed=0, sampling=Sampling(), slot=lambda: free))
    await stuck.wait()
    await asyncio.sleep(0.01)
    assert sum(env.is_open for env in everyone) >= 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(env.is_open for env in everyone)


async def test_a_config_error_rises() -> None:
    wanted = pytest.RaisesExc(ConfigError, match="context_tokens")
    with pytest.RaisesGroup(wanted, flatten_subgroups=True):
        await grow(chains(BranchBudget(leaves=1)), limits=EpisodeLimits(context_tokens=2))


async def test_what_fails_for_good_is_a_leaf_and_the_rest_is_told_apart() -> None:
    def broken(env: Counting) -> None:
        raise RuntimeError("boom")

    grown = await grow(chains(BranchBudget(leaves=2, retries=1)), lambda: Counting(on_step=broken))
    assert [type(leaf.outcome) for leaf in grown.tree.leaves] == [Failed, Failed]
    assert len(grown.discarded) == 2


async def test_the_scripted_environment_grows_too() -> None:
    turns = [ScriptedTurn(reply=f"r{i}") for i in range(3)] + [ScriptedTurn(reward=1.0)]
    grown = await grow(always(), lambda: ScriptedEnv(turns, prompt="ab"))
    assert [leaf.outcome for leaf in grown.tree.leaves] == [Finished(1.0)] * 8
    check_shared(grown)


async def test_events_are_heard_in_order() -> None:
    heard: list[Any] = []
    one = grower(always())
    grown = await one.grow(
        TASK, seed=0, sampling=Sampling(), on_event=lambda event, decision: heard.append(event)
    )
    assert tuple(heard) == grown.events


async def test_cancelling_closes_places_held_for_later() -> None:
    everyone: list[Counting] = []
    held = asyncio.Semaphore(0)

    class Waits(Counting):
        async def step(self, action: Action) -> Step:
            if len(self.heard) == 3:
                held.release()
                await asyncio.Event().wait()
            return await super().step(action)

    topology = TreeGrpoTopology(trees=2, rounds=2, width=3)
    running = asyncio.create_task(grow(topology, lambda: Waits(opened=everyone)))
    for _ in range(2):
        await held.acquire()
    assert sum(env.is_open for env in everyone) > 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(env.is_open for env in everyone)

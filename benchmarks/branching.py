"""What a tree of 16 leaves costs beside 16 chains: tokens, and seconds of real environments.

The code environment with its real sandbox, and a scripted policy that runs a cell of 50 ms in each
of six turns and then answers. A token is a character. Its log-probs, and so its entropies, are
drawn at random: the figures show what each topology shares, not how well it chooses.

- `sampled`: tokens the policy sampled. `to train`: tokens of the tree, shared ones once. The peer
  of a ratio is 16 chains, played in the same round.
- `env s`: wall seconds inside `reset`, `step`, `fork` and `close` of all environments.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any, Self, TypeVar

from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Info, Observation, Step, call, say
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.branching.aepo import AepoRule, OnlineRootSplit, StaticRootSplit
from agentrl.rollout.branching.balanced import EntropyBalancedTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.fixed_topologies import FanOutTopology, TreeGrpoTopology, chains
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.episode import EpisodeLimits
from agentrl.runtime.scope import run_scope
from agentrl.runtime.seeds import derive
from agentrl_envs.code import CodeEnv
from benchmarks.harness import Benchmark
from benchmarks.letters import END, LetterChat, ids, said
from benchmarks.tree_grower import GrownTree, TreeGrower

T = TypeVar("T")

LEAVES, TURNS, CELL_S = 16, 6, 0.05
TURN = 1
BUDGET = BranchBudget(leaves=LEAVES)
SIGNAL = EntropySignal(vocabulary=1000)
FAMILIES = {"chain_sum": {"min_terms": 2, "max_terms": 2}}
CELL = "import time; time.sleep({seconds}); marks = [*globals().get('marks', []), {mark}]; marks"

TOPOLOGIES: dict[str, AnyTopology] = {
    "chains": chains(BUDGET),
    "AEPO, roots online": EntropyBalancedTopology(
        budget=BUDGET, signal=SIGNAL, split=OnlineRootSplit()
    ),
    "AEPO, 8 roots": EntropyBalancedTopology(
        budget=BUDGET, signal=SIGNAL, split=StaticRootSplit(roots=8)
    ),
    "AEPO, 2 roots": EntropyBalancedTopology(
        budget=BUDGET, signal=SIGNAL, rule=AepoRule(base=0.3), split=StaticRootSplit(roots=2)
    ),
    "Tree-GRPO, 4 x (1 + 3)": TreeGrpoTopology(trees=4, rounds=1, width=3),
    "fan-out at turns 1 to 4": FanOutTopology(budget=BUDGET, width=2, turns=(1, 2, 3, 4)),
}


@dataclass(frozen=True)
class CellChat(LetterChat):
    """A turn is a number that becomes a cell, or `!`, the answer."""

    turn: int = TURN
    between: str = "\n"

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a turn."""
        text = said(token_ids)
        if text.startswith("!"):
            return say(text)
        return call("python", code=CELL.format(seconds=CELL_S, mark=int(text[:8])))


def speak(request: GenerateRequest) -> Sequence[int]:
    """Say a turn of 80 characters; the rest of it when a probe has said the beginning."""
    begins = [i for i, token in enumerate(request.prompt) if token == TURN]
    done = len(request.prompt) - begins[-1] - 1
    if len(begins) > TURNS:
        return (*ids("!" + "a" * 20), END)[done:]
    mark = 10**7 + derive(request.seed, len(begins)) % (9 * 10**7)
    return (*ids(f"{mark}".ljust(80, "+")), END)[done:]


def surprise(request: GenerateRequest, place: int, token: int) -> float:
    """Return a log-prob that is low in some turns and high in others."""
    turn = request.prompt.count(TURN)
    mean = Random(derive(request.seed, turn)).random() * 1.5
    return -mean * (0.5 + Random(derive(request.seed, turn, place)).random())


@dataclass
class Meter:
    """Wall seconds inside environments, and how often what was asked of them."""

    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter[str])

    async def time(self, what: str, doing: Awaitable[T]) -> T:
        """Await and take down how long it took."""
        start_s = time.perf_counter()
        try:
            return await doing
        finally:
            self.seconds += time.perf_counter() - start_s
            self.calls[what] += 1


class MeteredEnv(CodeEnv):
    """The code environment with a meter that its forks share."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(families=FAMILIES)
        self.meter = meter

    async def reset(self, **options: Any) -> tuple[Observation, Info]:
        """Reset, timed."""
        return await self.meter.time("reset", super().reset(**options))

    async def step(self, action: Action) -> Step:
        """Step, timed."""
        return await self.meter.time("step", super().step(action))

    async def fork(self) -> Self:
        """Fork, timed."""
        return await self.meter.time("fork", super().fork())

    async def close(self) -> None:
        """Close, timed."""
        await self.meter.time("close", super().close())


@dataclass(frozen=True)
class Cost:
    """Of one tree."""

    sampled_tokens: int
    train_tokens: int
    env_s: float
    wall_s: float
    steps: int
    forks: int
    leaves: int

    @classmethod
    def of(cls, grown: GrownTree, meter: Meter, wall_s: float) -> "Cost":
        """Count a tree's tokens."""
        nodes = grown.tree.nodes
        return cls(
            sampled_tokens=sum(len(n.token_ids) for n in nodes if n.source == "sampled"),
            train_tokens=sum(len(n.token_ids) for n in nodes),
            env_s=meter.seconds,
            wall_s=wall_s,
            steps=meter.calls["step"],
            forks=meter.calls["fork"],
            leaves=len(grown.tree.leaves),
        )


async def play(topology: AnyTopology, seed: int) -> tuple[Cost, GrownTree]:
    """Grow the tree of one task, four trajectories at a time."""
    meter, free = Meter(), asyncio.Semaphore(4)

    def metered() -> MeteredEnv:
        return MeteredEnv(meter)

    (task,) = islice(metered().tasks("train", seed=seed), 1)
    grower = TreeGrower(
        topology=topology,
        make_env=metered,
        engine=ScriptedEngine(speak, logprob=surprise),
        chat=CellChat(),
        limits=EpisodeLimits(max_turns=TURNS + 2, context_tokens=16_384),
    )
    start_s = time.perf_counter()
    grown = await grower.grow(task, seed=seed, sampling=Sampling(), slot=lambda: free)
    return Cost.of(grown, meter, time.perf_counter() - start_s), grown


async def compare(tasks: int) -> dict[str, list[Cost]]:
    """Grow the tree of every task under every topology, in one pool of sandboxes."""
    costs: dict[str, list[Cost]] = {name: [] for name in TOPOLOGIES}
    topologies, order = dict(TOPOLOGIES), Random(0)
    async with run_scope():
        await play(TOPOLOGIES["chains"], seed=tasks)  # the first one starts the sandboxes
        for seed in range(tasks):
            for name in order.sample(sorted(TOPOLOGIES), len(TOPOLOGIES)):
                cost, grown = await play(topologies[name], seed)
                costs[name].append(cost)
                topologies[name] = taught(topologies[name], grown)
    return costs


def taught(topology: AnyTopology, grown: GrownTree) -> AnyTopology:
    """Return the topology with what a tree has shown, where it learns from that."""
    if not isinstance(topology, EntropyBalancedTopology):
        return topology
    return replace(topology, prior=topology.prior + grown.state.observed)


def state(bench: Benchmark, costs: dict[str, list[Cost]]) -> None:
    """State the rows, means over tasks."""
    means: list[tuple[str, str, Callable[[Cost], float]]] = [
        ("sampled", "tokens", lambda c: c.sampled_tokens),
        ("to train", "tokens", lambda c: c.train_tokens),
        ("env steps", "steps", lambda c: c.steps),
        ("env s", "s", lambda c: c.env_s),
        ("forks", "forks", lambda c: c.forks),
        ("wall", "s", lambda c: c.wall_s),
    ]
    for name, own in costs.items():
        assert {cost.leaves for cost in own} == {LEAVES}
        for what, unit, of in means:
            mean = fmean(map(of, own))
            bench.row(f"{name}: {what}", mean, unit=unit)
            if name != "chains" and what in ("sampled", "to train", "env s"):
                peer = fmean(map(of, costs["chains"]))
                bench.row(f"{name}: {what}", mean / peer, unit="x", peer="16 chains")


if __name__ == "__main__":
    bench = Benchmark.from_command_line("branching", __doc__)
    state(bench, asyncio.run(compare(2 if bench.quick else 4 * bench.rounds)))
    bench.finish()

"""Budgets of an evaluation: counted as they are spent, for a trajectory and for all of them.

A trajectory that has spent its budget is truncated before its next turn and keeps what it has
earned. When all together have spent theirs, no further task is begun; those that are under way play
on, since ending them would leave out the long ones and favour what is short.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agentrl.config.evaluate import BudgetSection, BudgetsSection, PricesSection
from agentrl.env import Action, Env, Info, Observation, Step
from agentrl.policy import Completion, GenerateRequest
from agentrl.rollout.env_wrapper import EnvWrapper
from agentrl.rollout.episode import StoppedTrajectory
from agentrl.rollout.scheduler.slot import TurnSampler
from agentrl.trajectory import Leaf, Limit, Tree

What = Literal["tokens", "turns", "tool_calls", "env_s", "money"]

_LIMITS: Mapping[What, Limit] = {
    "tokens": "tokens",
    "turns": "turns",
    "tool_calls": "tool_calls",
    "env_s": "seconds",
    "money": "money",
}
"""Limit that truncates a trajectory which has spent its budget, by kind of budget."""


def compute_cost(prices: PricesSection, *, prompt_tokens: int, sampled_tokens: int) -> float:
    """Return the cost of a turn."""
    prompt = prompt_tokens * prices.prompt_per_million
    return (prompt + sampled_tokens * prices.sampled_per_million) / 1e6


def has_bounds(budget: BudgetSection) -> bool:
    """Return whether a budget bounds anything."""
    return any(getattr(budget, what) is not None for what in _LIMITS)


def find_exhausted(budget: BudgetSection, spent: "BudgetUsage") -> What | None:
    """Return the first bound of a budget that is spent."""
    for what in _LIMITS:
        most = getattr(budget, what)
        if most is not None and getattr(spent, what) >= most:
            return what
    return None


@dataclass(slots=True, kw_only=True)
class BudgetUsage:
    """Amounts spent so far."""

    tokens: int = 0
    turns: int = 0
    tool_calls: int = 0
    env_s: float = 0.0
    money: float = 0.0


@dataclass(slots=True, eq=False)
class BudgetMeter:
    """Counts what an evaluation spends, tries that broke among it."""

    budgets: BudgetsSection
    spent: BudgetUsage = field(default_factory=BudgetUsage)

    @property
    def exhausted(self) -> What | None:
        """Budget that all trajectories together have used up; None while there is none."""
        return find_exhausted(self.budgets.total, self.spent)

    def begin(self, tree: Tree, at: int | None, *, tool_calls: int = 0) -> "TrajectoryMeter":
        """Return the meter of a trajectory that stands at `at`, which is None for a new one."""
        return TrajectoryMeter(self, self._count_usage(tree, at, tool_calls))

    def keep(self, tree: Tree, leaf: Leaf) -> None:
        """Count a trajectory that was played before, as far as its record tells."""
        usage = self._count_usage(tree, leaf.node, leaf.tool_calls)
        for name, value in asdict(usage).items():
            self.add(name, value)

    def add(self, name: str, amount: float) -> None:
        """Count what was spent."""
        setattr(self.spent, name, getattr(self.spent, name) + amount)

    def _count_usage(self, tree: Tree, at: int | None, tool_calls: int) -> BudgetUsage:
        spent, turns, context = BudgetUsage(tool_calls=tool_calls), dict[int, float](), 0
        for node in () if at is None else tree.path(at):
            if node.source == "sampled":
                sampled = len(node.token_ids)
                prices = self.budgets.prices
                spent.money += compute_cost(prices, prompt_tokens=context, sampled_tokens=sampled)
                spent.tokens += sampled
                turns.setdefault(node.turn, 0.0)
            elif node.source == "tool":
                # A reply of several messages has the seconds of its step on each.
                turns[node.turn - 1] = node.seconds
            context += len(node.token_ids)
        spent.turns, spent.env_s = len(turns), sum(turns.values())
        return spent


@dataclass(slots=True, eq=False)
class TrajectoryMeter:
    """Counts what one trajectory spends."""

    meter: BudgetMeter
    spent: BudgetUsage

    def add(self, name: str, amount: float) -> None:
        """Count what was spent, here and for all."""
        setattr(self.spent, name, getattr(self.spent, name) + amount)
        self.meter.add(name, amount)

    def check(self) -> None:
        """Raise `StoppedTrajectory` if the trajectory has spent its budget."""
        each = self.meter.budgets.each
        if (what := find_exhausted(each, self.spent)) is not None:
            most, spent = getattr(each, what), getattr(self.spent, what)
            raise StoppedTrajectory(
                _LIMITS[what], f"spent {spent:g} of evaluate.budget.each.{what}: {most:g}"
            )


@dataclass(frozen=True, slots=True)
class MeteredSampler:
    """Samples the turns of one trajectory, as far as its budget goes."""

    inner: TurnSampler
    meter: TrajectoryMeter

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one turn within the tokens left; raise `StoppedTrajectory` where none are."""
        meter, budgets = self.meter, self.meter.meter.budgets
        meter.check()
        most = budgets.each.tokens
        if most is not None:
            max_new_tokens = min(request.max_new_tokens, most - meter.spent.tokens)
            request = replace(request, max_new_tokens=max_new_tokens)
        completion = await self.inner.generate(request)
        sampled = len(completion.token_ids)
        meter.add("tokens", sampled)
        meter.add("turns", completion.finish != "aborted")
        prompt = len(request.prompt)
        money = compute_cost(budgets.prices, prompt_tokens=prompt, sampled_tokens=sampled)
        meter.add("money", money)
        return completion


class MeteredEnv(EnvWrapper):
    """An environment whose time and tool calls are counted."""

    def __init__(self, inner: Env, meter: TrajectoryMeter) -> None:
        super().__init__(inner)
        self.meter = meter

    def around(self, inner: Env) -> "MeteredEnv":
        return MeteredEnv(inner, self.meter)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        with self._count_seconds():
            return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        with self._count_seconds():
            answer = await super().step(action)
        self.meter.add("tool_calls", len(answer[4].get("tool_results", ())))
        return answer

    @contextmanager
    def _count_seconds(self) -> Generator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.meter.add("env_s", time.monotonic() - began)

"""An evaluation that is stored, goes on, has a budget, and stops when it knows enough.

Seen caught: a broken trajectory that is complete, or whose group is; what is stored played again;
another seed for what is played again; a changed key let through; a policy of the same name and
other weights; a budget of all checked never, of one by `>`; tokens not cut to what is left; what
was kept not counted as spent; a look at what has ended instead of the first tasks; the whole width
for half of it; what was played beyond the stop in the report.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.evaluate import BudgetSection, BudgetsSection, PricesSection, UntilSection
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Info, Observation, Step
from agentrl.errors import ConfigError
from agentrl.evaluation.budget import BudgetUsage, find_exhausted, has_bounds
from agentrl.evaluation.held_out import HeldOutEvaluation, OrderedStopTracker, is_enough
from agentrl.evaluation.record import EvaluationRecord
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.scores import ScoringRules
from agentrl.message import Message
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.runner import RolloutRunner
from agentrl.run.evaluation_folder import open_record, policy_digest
from agentrl.runtime.progress import SilentProgress
from agentrl.store.reader import StoreReader
from agentrl.store.settings import StoreSettings
from agentrl.task import Split, Task
from agentrl.tool import ToolResult
from benchmarks.intervals import simulated
from benchmarks.letters import END, LetterChat, ids

TASKS = tuple(Task(prompt=f"task {n}", id=f"t{n}", answer=n) for n in range(12))
SETTINGS = StoreSettings(keep="all")


class World:
    """What every environment of a test shares: who was played, and who breaks."""

    def __init__(self, breaks: Callable[[str, int], bool] = lambda task, sample: False) -> None:
        self.played: list[tuple[str, int, int]] = []
        self.breaks = breaks
        self.after = 10**9
        """Plays after which everything hangs."""
        self.hangs = asyncio.Event()

    def make(self) -> "Guess":
        return Guess(self)

    @property
    def counts(self) -> Counter[tuple[str, int]]:
        return Counter((task, sample) for task, sample, _ in self.played)


class Guess(BaseEnv):
    """Three turns, one tool call in each; the seed decides whether the last pays."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turn, self.pays, self.task = 0, False, ""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return TASKS

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert options is not None
        assert seed is not None
        task, sample = options["task"], options["sample"]
        if len(self.world.played) >= self.world.after:
            self.world.hangs.set()
            await asyncio.Event().wait()
        self.world.played.append((task.id, sample, seed))
        if self.world.breaks(task.id, sample):
            raise RuntimeError("boom")
        self.turn, self.pays = 0, seed % 3 > 0
        return Observation(task.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        self.turn += 1
        over = self.turn == 3
        info: Info = {
            "tool_results": (ToolResult(call_id="c", name="f", content="hi", status="ok"),)
        }
        said = Observation((Message("tool", "ok"),))
        return said, float(over and self.pays), over, False, info


def talk(request: GenerateRequest) -> Sequence[int]:
    return (*ids("abcd"), END)


def rollouts(world: World, concurrency: int = 4) -> RolloutRunner:
    return RolloutRunner(
        make_env=world.make,
        engine=ScriptedEngine(talk),
        chat=LetterChat(),
        concurrency=concurrency,
        retries=0,
    )


def evaluation(**changes: Any) -> HeldOutEvaluation:
    settings: dict[str, Any] = {
        "tasks": TASKS,
        "samples_per_task": 2,
        "k": (1,),
        "threshold": 1.0,
        "confidence": 0.95,
        "sampling": Sampling(),
        "seed": 5,
    }
    return HeldOutEvaluation(**settings | changes)


async def run(
    world: World, record: EvaluationRecord | None = None, *, concurrency: int = 4, **changes: Any
) -> EvaluationReport:
    own = rollouts(world, concurrency)
    return await evaluation(**changes).run(own, SilentProgress(), record=record)


def opened(folder: Path, *, resume: bool = False) -> EvaluationRecord:
    return EvaluationRecord.open(folder / "store", SETTINGS, seed=0, resume=resume)


async def test_a_stored_evaluation_is_the_one_that_is_not(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        stored = await run(World(), record)
    assert stored.to_json() | {"seconds": 0} == (await run(World())).to_json() | {"seconds": 0}
    with StoreReader(tmp_path / "store") as reader:
        assert len(reader.groups("complete")) == 12
        assert sum(len(reader.group(n).rollouts) for n in reader.groups()) == 24


@pytest.mark.parametrize("after", [1, 9, 20])
async def test_killed_anywhere_it_plays_only_what_is_missing(tmp_path: Path, after: int) -> None:
    world = World()
    world.after = after
    with opened(tmp_path) as record:
        playing = asyncio.ensure_future(run(world, record))
        await world.hangs.wait()
        playing.cancel()
        await asyncio.wait([playing])
    again = World()
    with opened(tmp_path, resume=True) as record:
        resumed = await run(again, record)
    whole = World()
    assert resumed.summary() == (await run(whole)).summary()
    assert set(again.played) <= set(whole.played), "with the seeds of one that was not killed"
    assert len(again.played) <= 24 - after + 4
    third = World()
    with opened(tmp_path, resume=True) as record:
        assert (await run(third, record)).summary() == resumed.summary()
    assert not third.played


async def test_what_broke_is_played_again_and_nothing_else(tmp_path: Path) -> None:
    broken = {("t3", 1), ("t7", 0)}
    first = World(lambda task, sample: (task, sample) in broken)
    with opened(tmp_path) as record:
        report = await run(first, record)
    assert report.overall.failed == 2
    assert report.to_json()["outcome_rates"] == {"failed_env": 2 / 24, "finished": 22 / 24}
    second = World()
    with opened(tmp_path, resume=True) as record:
        mended = await run(second, record)
    assert second.counts == Counter(broken)
    assert {seed for *_, seed in second.played} <= {seed for *_, seed in first.played}
    assert mended.summary() == (await run(World())).summary()
    with opened(tmp_path, resume=True) as record:
        assert (await run(World(), record)).summary() == mended.summary()


async def test_more_tasks_are_added_and_fewer_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        await run(World(), record, tasks=TASKS[:5])
    world = World()
    with opened(tmp_path, resume=True) as record:
        more = await run(world, record, tasks=TASKS[:8])
    assert {task for task, _ in world.counts} == {"t5", "t6", "t7"}
    assert more.overall.tasks == 8
    with opened(tmp_path, resume=True) as record:
        assert (await run(World(), record, tasks=TASKS[:3])).overall.tasks == 3


def config(tmp_path: Path, **changes: object) -> RunConfig:
    (tmp_path / "c.yaml").write_text("env: {id: demo/Guess-v0}\nrun: {name: one}\n")
    return load_config(tmp_path / "c.yaml", changes)


def policy(tmp_path: Path, weights: bytes = b"abc") -> Path:
    folder = tmp_path / "policy"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "optimizer.bin").write_bytes(weights)
    return folder


def test_another_config_is_refused_by_its_keys(tmp_path: Path) -> None:
    path, out = policy(tmp_path), tmp_path / "out"
    with pytest.raises(ConfigError, match="holds no evaluation to resume"):
        open_record(out, config(tmp_path), path, resume=True)
    open_record(out, config(tmp_path), path, resume=False).run.store.close()
    with pytest.raises(ConfigError, match="resume it with --resume"):
        open_record(out, config(tmp_path), path, resume=False)
    changed = config(tmp_path, **{"evaluate.temperature": 0.5, "rollout.max_turns": 3})
    says = r"evaluate\.temperature was 1\.0 and is 0\.5; rollout\.max_turns was 8 and is 3"
    with pytest.raises(ConfigError, match=says):
        open_record(out, changed, path, resume=True)
    same = {"evaluate.tasks": 9, "rollout.concurrency": 2, "learn.minibatches": 2, "run.name": "x"}
    open_record(out, config(tmp_path, **same), path, resume=True).run.store.close()
    policy(tmp_path, b"abd")
    with pytest.raises(ConfigError, match=r"digest .*resume with that --checkpoint"):
        open_record(out, config(tmp_path), path, resume=True)


def test_a_policy_is_known_by_its_weights(tmp_path: Path) -> None:
    one = policy_digest(policy(tmp_path))
    (tmp_path / "policy" / "optimizer.bin").write_bytes(b"other")
    assert policy_digest(tmp_path / "policy") == one
    assert policy_digest(policy(tmp_path, b"abd")) != one
    assert policy_digest("org/a") != policy_digest("org/b")


@pytest.mark.parametrize(
    ("each", "outcome", "spent"),
    [
        (BudgetSection(turns=2), "truncated_turns", {"turns": 2, "tokens": 10}),
        (BudgetSection(tokens=7), "truncated_tokens", {"turns": 2, "tokens": 7}),
        (BudgetSection(tokens=10), "truncated_tokens", {"turns": 2, "tokens": 10}),
        (BudgetSection(tool_calls=1), "truncated_tool_calls", {"turns": 1, "tool_calls": 1}),
        (BudgetSection(money=12e-6), "truncated_money", {"turns": 2}),
        (BudgetSection(env_s=1e-9), "truncated_seconds", {"turns": 0, "tokens": 0}),
        (BudgetSection(turns=3), "finished", {"turns": 3, "tokens": 15, "tool_calls": 3}),
    ],
)
async def test_a_trajectory_ends_when_its_budget_is_spent(
    each: BudgetSection, outcome: str, spent: dict[str, float]
) -> None:
    budgets = BudgetsSection(each=each, prices=PricesSection(sampled_per_million=2.0))
    report = await run(World(), budgets=budgets, tasks=TASKS[:1], samples_per_task=1)
    assert report.overall.outcomes == {outcome: 1}
    assert report.spent is not None
    assert {name: report.spent[name] for name in spent} == spent


async def test_money_is_of_prompts_and_of_samples() -> None:
    """Prompt `task 0>` has 7 tokens; a turn adds 5 sampled and `ok>`: 7, 15 and 23 are read."""
    prices = PricesSection(prompt_per_million=1e6, sampled_per_million=1e4)
    budgets = BudgetsSection(each=BudgetSection(turns=9), prices=prices)
    report = await run(World(), budgets=budgets, tasks=TASKS[:1], samples_per_task=1)
    assert report.spent is not None
    assert report.spent["money"] == pytest.approx(7 + 15 + 23 + 0.15)


async def test_the_whole_evaluation_stops_at_its_budget(tmp_path: Path) -> None:
    """40 tokens are spent in the third trajectory; those under way, and their tasks, play on."""
    budgets = BudgetsSection(total=BudgetSection(tokens=40))
    with opened(tmp_path) as record:
        report = await run(World(), record, budgets=budgets, concurrency=1)
    assert report.stopped == {"by": "budget.tokens", "at": 40, "tasks": 2, "of": 12}
    assert report.overall.outcomes == {"finished": 4}
    assert report.spent is not None
    assert report.spent["tokens"] == 60
    assert ("stopped by budget.tokens", "40", "", "2") in report.rows()
    world, budgets = World(), BudgetsSection(total=BudgetSection(tokens=100))
    with opened(tmp_path, resume=True) as record:
        more = await run(world, record, budgets=budgets, concurrency=1)
    assert more.stopped is not None
    assert more.stopped["tasks"] == 4, "60 of the 100 were spent before"
    assert len(world.played) == 4
    with opened(tmp_path, resume=True) as record:
        assert (await run(World(), record)).stopped is None


async def test_what_was_kept_costs_what_it_cost(tmp_path: Path) -> None:
    """The seconds and calls of a last turn, which leaves no reply, are not on the record."""
    prices = PricesSection(prompt_per_million=3.0, sampled_per_million=7.0)
    budgets = BudgetsSection(each=BudgetSection(turns=9), prices=prices)
    with opened(tmp_path) as record:
        first = await run(World(), record, budgets=budgets)
    with opened(tmp_path, resume=True) as record:
        again = await run(World(), record, budgets=budgets)
    assert first.spent is not None
    assert again.spent is not None
    for name in ("tokens", "turns", "money"):
        assert again.spent[name] == pytest.approx(first.spent[name])
    assert (first.spent["tool_calls"], again.spent["tool_calls"]) == (72, 48)


def test_no_budget_is_never_spent() -> None:
    assert not has_bounds(BudgetSection())
    assert find_exhausted(BudgetSection(), BudgetUsage(tokens=10**9)) is None
    spent = BudgetUsage(tokens=5, turns=2)
    assert find_exhausted(BudgetSection(turns=2, tokens=5), spent) == "tokens"


async def test_the_report_is_of_the_first_tasks_that_were_enough() -> None:
    """What was under way beyond them is not in the report, however many that are."""
    until = UntilSection(half_width=0.4, min_tasks=4, every=1)
    reports = [
        await run(World(), until=until, concurrency=concurrency, samples_per_task=1)
        for concurrency in (1, 3, 12)
    ]
    one, some, wide = reports
    assert one.overall.tasks == some.overall.tasks == wide.overall.tasks < 12
    assert one.stopped is not None
    assert wide.stopped is not None
    assert "played_beyond" not in one.stopped
    assert wide.stopped["played_beyond"] == 12 - wide.overall.tasks
    assert one.summary() == wide.summary()
    found = one.overall.pass_at[1]
    assert (found.high - found.low) / 2 <= 0.4


def test_looks_wait_for_the_first_tasks() -> None:
    """Five tasks end before task 0, and nothing is looked at until that has ended, broken."""
    rules = ScoringRules(k=(1,), threshold=1.0, confidence=0.95)
    first = OrderedStopTracker(UntilSection(half_width=0.35, min_tasks=6, every=1), rules, 1)
    for task in (3, 1, 2, 5, 4):
        first.record_end(task, 1.0)
    assert first.stopped_at is None
    first.record_end(0, None)
    assert first.stopped_at == 6


@pytest.mark.parametrize(("samples", "agreement", "rate"), [(1, 0.0, 0.3), (4, 0.3, 0.9)])
def test_stopping_early_still_covers(rate: float, samples: int, agreement: float) -> None:
    """95 % intervals at the moment of stopping, of evaluations that stop at half a width of 7 %."""
    rng, hits, runs, most = np.random.default_rng(3), 0, 400, 250
    passes = simulated(rng, tasks=most, samples=samples, rate=rate, agreement=agreement, runs=runs)
    rules = ScoringRules(k=(1,), threshold=1.0, confidence=0.95)
    rule = UntilSection(half_width=0.07)
    for row in passes.tolist():
        rewards = [[1.0] * c + [0.0] * (samples - c) for c in row]
        stop = next((n for n in range(1, most) if is_enough(rule, rewards[:n], rules)), most)
        found = covering(rewards[:stop], rules)
        hits += found[0] <= rate <= found[1]
    assert 0.93 <= hits / runs <= 0.975


def covering(rewards: Sequence[Sequence[float]], rules: ScoringRules) -> tuple[float, float]:
    from agentrl.evaluation.scores import passes

    found = passes(rewards, rules)
    assert found is not None
    return found.low, found.high

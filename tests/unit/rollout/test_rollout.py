"""Episodes and the pool: what is recorded, when it stops, and how failures become data.

Mutants seen caught: reward of the last turn only; `ended` always true; budget not reduced after an
abort; a failure scored 0; the environment closed only on success; no retry; retry with a new seed;
entropies kept in an evaluation; calls counted per message of a reply, or one per reply.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from agentrl.chat.renderer import TokenSegment
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Info, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, EngineError, RolloutError, ToolFailure
from agentrl.evaluation.held_out import HeldOutEvaluation
from agentrl.message import Message
from agentrl.metrics.rollout_metrics import rollout_figures
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.rollout.episode import (
    CHARACTERS_PER_TOKEN,
    LONGEST_OBSERVATION,
    EpisodeLimits,
    EpisodeRunner,
)
from agentrl.rollout.runner import RolloutRunner
from agentrl.runtime.progress import SilentProgress
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Leaf, Limit, Node, Source, Tree, Truncated
from benchmarks.letters import END, LetterChat, ids
from tests.support.watchdog import watched

TASK = Task(prompt="ab", answer="x")


class ClosingChat(LetterChat):
    """Closes a turn that the policy has not ended."""

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        close = [] if ended else [TokenSegment("template", (END,))]
        return [*close, *super().reply(messages, ended=ended, tools=tools)]


class Echo(BaseEnv):
    """Answers each turn with `ok` and half a point; `done` ends the episode. Counts its closes."""

    def __init__(self, on_step: Callable[[str], None] = lambda text: None) -> None:
        self.closed = 0
        self._on_step = on_step

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        assert options is not None
        return Observation(options["task"].messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        self._on_step(action.text)
        over = action.text == "done"
        return Observation((Message("tool", "ok"),)), 0.5, over, False, {}

    async def close(self) -> None:
        self.closed += 1


def says(*turns: str) -> Callable[[GenerateRequest], Sequence[int]]:
    """Reply with the turns in order, counting the turns already in the context."""

    def reply(request: GenerateRequest) -> Sequence[int]:
        turn = sum(token == ord(">") for token in request.prompt) - 1
        return (*ids(turns[turn]), END)

    return reply


async def play(
    env: Echo, *turns: str, limits: EpisodeLimits | None = None, **changes: Any
) -> tuple[Tree, Leaf]:
    tree = Tree(TASK)
    episode = EpisodeRunner(
        env=env,
        engine=ScriptedEngine(says(*turns)),
        chat=ClosingChat(),
        tree=tree,
        sample=0,
        seed=1,
        limits=limits or EpisodeLimits(),
        **changes,
    )
    return tree, await episode.run()


async def test_two_turns_are_recorded_token_for_token() -> None:
    env = Echo()
    tree, leaf = await play(env, "hi", "done")
    assert leaf.outcome == Finished(1.0)
    assert leaf.turn_rewards == (0.5, 0.5)
    assert env.closed == 1
    tree.end(leaf)
    (trajectory,) = tree.trajectories()
    #                                   prompt        sampled         tool  template  sampled
    assert trajectory.token_ids == (*ids("ab>"), *ids("hi"), END, *ids("ok>"), *ids("done"), END)
    assert trajectory.mask == (False,) * 3 + (True,) * 3 + (False,) * 3 + (True,) * 5
    assert trajectory.turns == (0,) * 6 + (1,) * 8


class Tenth(Echo):
    """Pays a tenth for every turn."""

    async def step(self, action: Action) -> Step:
        observation, _, *rest = await super().step(action)
        return observation, 0.1, *rest  # pyright: ignore[reportReturnType]


async def test_ten_tenths_are_one() -> None:
    """Kills: rewards added one after the other, 0.9999999999999999 of a threshold of 1."""
    _, leaf = await play(Tenth(), *["hi"] * 9, "done", limits=EpisodeLimits(max_turns=10))
    assert leaf.outcome == Finished(1.0)


class Answering(Echo):
    """Reports what was said last as the answer, at every turn."""

    async def step(self, action: Action) -> Step:
        return *(await super().step(action))[:4], {"answer": action.text}


async def test_the_answer_is_that_of_the_step_that_ends_the_episode() -> None:
    _, leaf = await play(Answering(), "hi", "done")
    assert leaf.answer == "done"
    _, leaf = await play(Answering(), "hi", "ho", limits=EpisodeLimits(max_turns=2))
    assert leaf.answer is None


async def test_turns_run_out() -> None:
    _, leaf = await play(Echo(), "hi", "hi", "hi", limits=EpisodeLimits(max_turns=2))
    assert leaf.outcome == Truncated("turns", 1.0)


async def test_a_turn_that_is_cut_is_closed_by_the_template() -> None:
    tree, leaf = await play(
        Echo(), "long", "done", limits=EpisodeLimits(max_turns=1, max_turn_tokens=3)
    )
    assert leaf.node is not None
    closed = [node for node in tree.path(leaf.node) if node.token_ids == (END,)]
    assert [node.source for node in closed] == ["template"]


async def test_the_context_runs_out() -> None:
    limits = EpisodeLimits(context_tokens=8)
    _, leaf = await play(Echo(), "hi", "done", limits=limits)
    assert leaf.outcome == Truncated("tokens", 0.5)
    _, leaf = await play(Echo(), "very long", limits=limits)
    assert leaf.outcome == Truncated("tokens", 0.0)


async def test_time_runs_out_after_the_turn_at_hand() -> None:
    times = iter(float(second) for second in range(0, 1000, 10))
    limits = EpisodeLimits(episode_s=15, turn_s=1e9)
    _, leaf = await play(Echo(), *["hi"] * 8, limits=limits, clock=lambda: next(times))
    assert leaf.outcome == Truncated("seconds", 0.5)


async def test_a_prompt_that_leaves_no_room_is_a_config_error() -> None:
    env = Echo()
    with pytest.raises(ConfigError, match=r"3 tokens.*engine\.context_tokens is 3"):
        await play(env, "hi", limits=EpisodeLimits(context_tokens=3))
    assert env.closed == 1


@pytest.mark.parametrize(("more", "limit"), [(0, "tokens"), (1, "observation")])
@watched
async def test_an_observation_that_cannot_fit_ends_the_trajectory_unread(
    more: int, limit: Limit
) -> None:
    """It ends as one that did not fit, and the limit has a name, which metrics count."""

    class Long(Echo):
        async def step(self, action: Action) -> Step:
            text = "x" * (CHARACTERS_PER_TOKEN * 64 + more)
            return Observation((Message("tool", text),)), 0.5, False, False, {}

    tree, leaf = await play(Long(), "hi", "hi", limits=EpisodeLimits(context_tokens=64))
    assert leaf.outcome == Truncated(limit, 0.5)
    tree.end(leaf)
    assert rollout_figures([tree])[f"outcome/truncated_{limit}"] == 1
    (trajectory,) = tree.trajectories()
    assert (len(trajectory.token_ids) > 64) == (limit == "tokens")


async def test_no_observation_is_longer_than_any_context_reads() -> None:
    """As with an endpoint, whose contexts have no bound of ours."""

    class Long(Echo):
        async def step(self, action: Action) -> Step:
            text = "x" * (LONGEST_OBSERVATION + 1)
            return Observation((Message("tool", text),)), 0.5, False, False, {}

    _, leaf = await play(Long(), "hi", "hi", limits=EpisodeLimits(context_tokens=2**31))
    assert leaf.outcome == Truncated("observation", 0.5)


async def test_a_prompt_of_absurd_length_is_a_config_error_before_it_is_read() -> None:
    class Long(Echo):
        async def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            return Observation((Message("user", "x" * (CHARACTERS_PER_TOKEN * 64 + 1)),), ()), {}

    with pytest.raises(ConfigError, match=r"1025 characters, but engine\.context_tokens is 64"):
        await play(Long(), "hi", limits=EpisodeLimits(context_tokens=64))


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def breaks(error: BaseException) -> Callable[[str], None]:
    def on_step(text: str) -> None:
        raise error

    return on_step


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (RuntimeError("boom"), "env", "RuntimeError: boom"),
        (ToolFailure("the tool broke"), "tool", "the tool broke"),
        (TimeoutError("of a socket"), "env", "TimeoutError: of a socket"),
        (RuntimeError("m" * 10**6), "env", "RuntimeError: " + "m" * 2000 + "... (998000 more)"),
        (Untold(), "env", ": Untold, whose __str__ raised RuntimeError"),
    ],
)
async def test_what_breaks_is_recorded_and_never_a_reward(
    error: Exception, kind: str, says: str
) -> None:
    env = Echo(breaks(error))
    _, leaf = await play(env, "hi")
    assert isinstance(leaf.outcome, Failed)
    assert leaf.outcome.kind == kind
    assert says in leaf.outcome.error
    assert env.closed == 1


async def test_a_hanging_step_misses_its_deadline() -> None:
    class Hangs(Echo):
        async def step(self, action: Action) -> Step:
            await asyncio.Event().wait()
            raise AssertionError

    env = Hangs()
    _, leaf = await play(env, "hi", limits=EpisodeLimits(step_s=0.01))
    assert isinstance(leaf.outcome, Failed)
    assert "deadline (rollout.step_s, 0.01 s)" in leaf.outcome.error
    assert env.closed == 1


async def test_a_hanging_reset_misses_its_deadline() -> None:
    class Hangs(Echo):
        async def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            await asyncio.Event().wait()
            raise AssertionError

    _, leaf = await play(Hangs(), "hi", limits=EpisodeLimits(reset_s=0.01))
    assert isinstance(leaf.outcome, Failed)
    assert "deadline (rollout.reset_s, 0.01 s)" in leaf.outcome.error


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_fails_the_trajectory(reward: float) -> None:
    class Odd(Echo):
        async def step(self, action: Action) -> Step:
            return Observation(()), reward, True, False, {}

    _, leaf = await play(Odd(), "hi")
    assert isinstance(leaf.outcome, Failed)
    assert f"rewards are finite: the reward of a step is {reward}" in leaf.outcome.error


async def test_a_close_that_breaks_fails_the_trajectory() -> None:
    class Sticky(Echo):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    _, leaf = await play(Sticky(), "done")
    assert isinstance(leaf.outcome, Failed)
    assert "stuck" in leaf.outcome.error


async def test_a_close_that_hangs_keeps_the_reward_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Mutants: the error rises; a time-out of the environment's own is taken for the deadline.
    monkeypatch.setattr("agentrl.authoring.env_contract.CLOSE_S", 0.01)

    class Hangs(Echo):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    for _ in range(2):
        _, leaf = await play(Hangs(), "done")
        assert leaf.outcome == Finished(0.5)
    (record,) = caplog.records
    assert "close (at tests/unit/rollout/test_rollout.py:" in record.getMessage()

    class TimesOut(Echo):
        async def close(self) -> None:
            raise TimeoutError("the socket is silent")

    _, leaf = await play(TimesOut(), "done")
    assert isinstance(leaf.outcome, Failed)
    assert "the socket is silent" in leaf.outcome.error


@pytest.mark.parametrize("error", [ToolFailure("the tool broke"), EngineError("it is gone")])
async def test_a_close_that_breaks_too_does_not_hide_why(error: RolloutError) -> None:
    class Twice(Echo):
        async def step(self, action: Action) -> Step:
            raise error

        async def close(self) -> None:
            raise RuntimeError("stuck")

    _, leaf = await play(Twice(), "hi")
    assert isinstance(leaf.outcome, Failed)
    assert leaf.outcome.kind == error.kind
    assert leaf.outcome.error.startswith(f"{error}; at tests/unit/rollout/test_rollout.py:")


async def test_a_config_error_stops_the_run_also_where_the_close_breaks() -> None:
    class Wrong(Echo):
        async def step(self, action: Action) -> Step:
            raise ConfigError("no such tool")

        async def close(self) -> None:
            raise RuntimeError("stuck")

    with pytest.raises(ConfigError, match="no such tool"):
        await play(Wrong(), "hi")


async def test_cancelling_rises_also_where_the_close_breaks() -> None:
    class Hangs(Echo):
        stepping = asyncio.Event()

        async def step(self, action: Action) -> Step:
            self.stepping.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def close(self) -> None:
            raise RuntimeError("stuck")

    env = Hangs()
    task = asyncio.create_task(play(env, "hi"))
    await env.stepping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("method", ["reset", "step", "close"])
async def test_an_environment_that_awaits_a_cancelled_task_fails_and_is_named(method: str) -> None:
    """A mutant that takes it for the trajectory's own cancellation is caught."""

    class Stray(Echo):
        async def await_cancelled(self, name: str) -> None:
            if name == method:
                inner = asyncio.create_task(asyncio.sleep(9))
                inner.cancel()
                await inner

        async def reset(self, **given: Any) -> tuple[Observation, Info]:
            await self.await_cancelled("reset")
            return await super().reset(**given)

        async def step(self, action: Action) -> Step:
            await self.await_cancelled("step")
            return await super().step(action)

        async def close(self) -> None:
            await super().close()
            await self.await_cancelled("close")

    leaf = (await play(Stray(), "hi", "done"))[1]
    assert isinstance(leaf.outcome, Failed)
    assert leaf.outcome.kind == "env"
    assert leaf.outcome.error.startswith(f"{method} of task {TASK.id}: CancelledError, but nobody")
    assert "in await_cancelled" in leaf.outcome.error


async def test_cancelling_closes_the_environment_and_rises() -> None:
    class Hangs(Echo):
        async def step(self, action: Action) -> Step:
            await asyncio.Event().wait()
            raise AssertionError

    env = Hangs()
    task = asyncio.create_task(play(env, "hi"))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert env.closed == 1


class Interrupting(ScriptedEngine):
    """Hands back two tokens of every request as aborted, the rest on the next one."""

    async def generate(self, request: GenerateRequest) -> Completion:
        done = len(request.prompt) - request.prompt.index(ord(">")) - 1
        rest = (*ids("done"), END)[done : done + 2]
        asked = (request.max_new_tokens, request.begun_tokens)
        self.asked = [*getattr(self, "asked", []), asked]
        return Completion(
            token_ids=rest,
            logprobs=(-1.0,) * len(rest),
            versions=(done,) * len(rest),
            finish="stop" if END in rest else "aborted",
        )


async def test_an_interrupted_turn_goes_on_from_its_last_token() -> None:
    tree = Tree(TASK)
    engine = Interrupting(says("done"))
    leaf = await EpisodeRunner(
        env=Echo(),
        engine=engine,
        chat=ClosingChat(),
        tree=tree,
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turn_tokens=9),
    ).run()
    tree.end(leaf)
    (trajectory,) = tree.trajectories()
    assert trajectory.token_ids == (*ids("ab>"), *ids("done"), END)
    assert trajectory.versions == (-1, -1, -1, 0, 0, 2, 2, 4)
    assert engine.asked == [(9, 0), (7, 2), (5, 4)]


def rollouts(
    make_env: Callable[[], Echo], *, turns: Sequence[str] = ("done",), **changes: Any
) -> RolloutRunner:
    engine = ScriptedEngine(says(*turns))
    return RolloutRunner(make_env=make_env, engine=engine, chat=ClosingChat(), **changes)


async def test_groups_share_their_prompt_and_have_every_sample() -> None:
    tasks = [Task(prompt=f"q{i}") for i in range(3)]
    trees = await rollouts(Echo).collect(tasks, group_size=4, seed=0, sampling=Sampling())
    assert [tree.task for tree in trees] == tasks
    for tree in trees:
        assert [t.sample for t in tree.trajectories()] == [0, 1, 2, 3]
        assert sum(node.source == "prompt" for node in tree.nodes) == 1


async def test_concurrency_is_bounded() -> None:
    running, most = 0, 0

    class Slow(Echo):
        async def step(self, action: Action) -> Step:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return await super().step(action)

    pool = rollouts(Slow, concurrency=3)
    await pool.collect([TASK], group_size=20, seed=0, sampling=Sampling())
    assert most == 3


async def test_a_failed_trajectory_is_started_again_alone() -> None:
    made: list[Echo] = []

    def flaky() -> Echo:
        made.append(Echo(breaks(RuntimeError("boom"))) if not made else Echo())
        return made[-1]

    (tree,) = await rollouts(flaky).collect([TASK], group_size=3, seed=0, sampling=Sampling())
    assert [leaf.outcome for leaf in tree.leaves] == [Finished(0.5)] * 3
    assert len(made) == 4
    assert all(env.closed == 1 for env in made)


async def test_failures_for_good_are_leaves() -> None:
    pool = rollouts(lambda: Echo(breaks(RuntimeError("boom"))), retries=1)
    (tree,) = await pool.collect([TASK], group_size=2, seed=0, sampling=Sampling())
    assert [type(leaf.outcome) for leaf in tree.leaves] == [Failed, Failed]


async def test_one_config_error_stops_the_step_and_rises_alone() -> None:
    pool = rollouts(Echo, limits=EpisodeLimits(context_tokens=2))
    with pytest.raises(ConfigError, match="context_tokens"):
        await pool.collect([TASK], group_size=5, seed=0, sampling=Sampling())


async def test_seeds_tell_samples_tasks_and_steps_apart_and_retries_together() -> None:
    seeds: list[int] = []

    def record(request: GenerateRequest) -> Sequence[int]:
        seeds.append(request.seed)
        return (*ids("done"), END)

    pool = RolloutRunner(make_env=Echo, engine=ScriptedEngine(record), chat=ClosingChat())
    tasks = [Task(prompt="a"), Task(prompt="b")]
    await pool.collect(tasks, group_size=2, seed=0, sampling=Sampling())
    await pool.collect(tasks, group_size=2, seed=1, sampling=Sampling())
    assert len(set(seeds)) == 8
    first = set(seeds[:4])
    seeds.clear()
    fail = iter([True])

    def once() -> Echo:
        return Echo(breaks(RuntimeError("boom"))) if next(fail, False) else Echo()

    pool = RolloutRunner(make_env=once, engine=ScriptedEngine(record), chat=ClosingChat())
    await pool.collect(tasks, group_size=2, seed=0, sampling=Sampling())
    assert len(seeds) == 5
    assert set(seeds) == first


def test_figures_say_how_trajectories_ended_and_what_they_cost() -> None:
    tree = Tree(TASK)
    outcomes = [Finished(1.0), Finished(0.0), Truncated("turns", 0.0), Failed("tool", "boom")]
    for sample, outcome in enumerate(outcomes):
        leaf = Leaf(
            node=None, outcome=outcome, sample=sample, tool_calls=sample, seconds=2.0 * sample
        )
        tree.end(leaf)
    assert rollout_figures([tree]) == {
        "outcome/finished": 0.5,
        "outcome/truncated_turns": 0.25,
        "outcome/failed_tool": 0.25,
        "rollout/sampled_tokens": 0,
        "rollout/tool_calls": 0,
        "rollout/tool_calls_mean": 1.5,
        "rollout/seconds_mean": 3.0,
        "rollout/seconds_max": 6.0,
    }
    assert rollout_figures([]) == {}


def test_what_branches_share_costs_once() -> None:
    """Two calls are answered by two messages, each with the status of both; then a branch."""
    tree, at = Tree(TASK), None
    events: list[tuple[Source, int, str]] = [
        ("prompt", 0, ""),
        ("sampled", 0, ""),
        ("template", 1, ""),
        ("tool", 1, "ok,error"),
        ("template", 1, ""),
        ("tool", 1, "ok,error"),
        ("sampled", 1, ""),
        ("tool", 2, "ok"),
    ]

    def add(source: Source, turn: int, status: str = "") -> int:
        spoken = source == "sampled"
        return tree.add(
            Node(
                parent=at,
                source=source,
                token_ids=(1, 2),
                turn=turn,
                logprobs=(-0.5, -0.5) if spoken else (),
                versions=(0, 0) if spoken else (),
                tool_status=status,
            )
        )

    for event in events:
        at = add(*event)
    for sample in range(2):
        end = add("sampled", 2)
        tree.end(Leaf(node=end, outcome=Finished(1.0), sample=sample, tool_calls=3))
    figures = rollout_figures([tree, tree])
    assert figures["rollout/sampled_tokens"] == 2 * 8  # and 12 along the paths
    assert figures["rollout/tool_calls"] == 2 * 3  # and 6 along the paths


async def test_an_evaluation_keeps_no_entropies_whatever_training_keeps() -> None:
    engine = ScriptedEngine(says("hi", "done"))
    rollouts = RolloutRunner(make_env=Echo, engine=engine, chat=ClosingChat(), entropies=True)
    evaluation = HeldOutEvaluation(
        tasks=(TASK,),
        samples_per_task=2,
        k=(1,),
        threshold=0.5,
        confidence=0.95,
        sampling=Sampling(),
        seed=0,
    )
    report = await evaluation.run(rollouts, SilentProgress())
    assert report.figures()["reward"] == 1
    assert [request.entropies for request in engine.requests] == [False] * 4
    await rollouts.collect([TASK], group_size=1, seed=0, sampling=Sampling())
    assert [request.entropies for request in engine.requests[4:]] == [True] * 2

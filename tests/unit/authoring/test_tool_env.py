"""ToolEnv: tasks, tools and a reward make an environment."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

from agentrl import rewards
from agentrl.authoring.gold import play_gold
from agentrl.authoring.task_choice import sample_pairs
from agentrl.authoring.tool_env import ScoredAnswer, ToolEnv
from agentrl.authoring.toolset import ToolSet
from agentrl.env import Action, Env, GoldPlayer, call, say
from agentrl.errors import ConfigError, EnvError, ToolFailure
from agentrl.message import Message, ToolCall
from agentrl.task import Split, Task
from agentrl.testing import check_env, check_tool
from agentrl.tool import ToolContext, tool


@tool
def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


class Memory:
    def __init__(self) -> None:
        self.kept: list[str] = []

    @tool
    async def keep(self, word: str, context: ToolContext) -> str:
        """Keep a word."""
        self.kept.append(word)
        return f"{context.sample}:{' '.join(self.kept)}"


def products(split: Split, seed: int) -> Iterator[Task]:
    for a, b in sample_pairs(split, seed):
        yield Task(prompt=f"What is {a} * {b}?", answer=str(a * b), data={"a": a, "b": b})


def solve(task: Task, seen: Sequence[Message]) -> Action:
    if seen[-1].role == "user":
        return call("multiply", **task.data)
    return say(f"Answer: {seen[-1].text}")


def env_of(**parts: Any) -> ToolEnv:
    settings: dict[str, Any] = {
        "tasks": products,
        "reward": rewards.exact_answer,
        "tools": [multiply, Memory],
        **parts,
    }
    return ToolEnv(**settings)


TASK = Task(prompt="What is 6 * 7?", answer="42", data={"a": 6, "b": 7})


async def test_it_keeps_the_promises_of_an_environment() -> None:
    proven = await check_env(env_of(gold=solve, system="Use the tool."))
    assert "gold scores" in proven
    assert "forks do not interfere" in proven


class Factors:
    """Opened for its task."""

    async def open(self, context: ToolContext) -> None:
        self.a, self.b = context.data["a"], context.data["b"]

    @tool
    def show(self, context: ToolContext) -> list[int]:
        """Show them."""
        return [self.a, self.b, context.data["a"]]


async def test_a_tool_is_opened_for_the_data_of_its_task() -> None:
    env = env_of(tools=[Factors])
    await env.reset(options={"task": TASK})
    observation, *_ = await env.step(call("show"))
    assert observation.messages[0].text == "[6, 7, 6]"
    await env.close()
    context = ToolContext(task_id="t", sample=0, seed=0, data=TASK.data)
    assert await check_tool(Factors, calls=[ToolCall("c", "show", {})], context=context)


async def test_an_episode_message_by_message() -> None:
    env = env_of(system="Be brief.")
    opening, info = await env.reset(options={"task": TASK})
    assert opening.messages == (Message("system", "Be brief."), Message("user", "What is 6 * 7?"))
    assert [s["function"]["name"] for s in opening.tools or ()] == ["multiply", "keep"]
    assert info == {}
    reply, *rest, info = await env.step(call("multiply", a=6, b=7))
    assert reply.messages == (Message("tool", "42", tool_call_id="call_0", name="multiply"),)
    assert reply.tools is None
    assert rest == [0.0, False, False]
    assert [r.status for r in info["tool_results"]] == ["ok"]
    reply, *rest, info = await env.step(say("42"))
    assert (reply.messages, rest, info) == ((), [1.0, True, False], {})
    await env.close()


class Paint(Enum):
    RED = 1


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b", "a", "c"}, '["a", "b", "c"]'),
        ([frozenset({2, 1}), {"x": {(3, "y")}}], '[[1, 2], {"x": [[3, "y"]]}]'),
        ({"on": date(2026, 1, 2), "of": Paint.RED}, '{"on": "2026-01-02", "of": "Paint.RED"}'),
        (date(2026, 1, 2), "2026-01-02"),
        (None, "null"),
        ({1: True}, '{"1": true}'),
        (CIRCLE, "list, which is neither text nor JSON .Circular reference"),
        ({(1, 2): 3}, "dict, which is neither text nor JSON .keys must be str.*not tuple"),
        ([object()], "list, which is neither text nor JSON .object has no text of its own"),
        ((i for i in "ab"), "generator, which is neither text nor JSON .generator has no text"),
    ],
)
async def test_what_a_tool_returns_is_the_same_text_in_every_process(value: Any, text: str) -> None:
    """Mutants seen caught: sets as they come, or refused within a list; any value as its repr."""

    @tool
    def show() -> Any:
        """Show it."""
        return value

    env = env_of(tools=[show])
    await env.reset(options={"task": TASK})
    if "neither" in text:
        with pytest.raises(ToolFailure, match=text):
            await env.step(call("show"))
    else:
        reply, *_ = await env.step(call("show"))
        assert reply.messages[0].text == text
    await env.close()


async def test_calls_of_one_message_run_in_order_after_the_malformed_ones() -> None:
    env = env_of()
    await env.reset(options={"task": TASK, "sample": 5})
    calls = tuple(ToolCall(f"c{i}", "keep", {"word": word}) for i, word in enumerate("ab"))
    reply, reward, terminated, _, info = await env.step(Action("", calls, ("not JSON",)))
    assert [m.text for m in reply.messages] == ["not JSON", "5:a", "5:a b"]
    assert [m.tool_call_id for m in reply.messages] == ["malformed_0", "c0", "c1"]
    assert {m.role for m in reply.messages} == {"tool"}
    assert (reward, terminated) == (0.0, False)
    assert [r.status for r in info["tool_results"]] == ["error", "ok", "ok"]
    await env.close()


async def test_every_episode_has_fresh_tools_and_a_fork_its_own() -> None:
    env = env_of()
    for _ in range(2):
        await env.reset(options={"task": TASK})
        reply, *_ = await env.step(call("keep", word="a"))
        assert reply.messages[0].text == "0:a"
    fork = await env.fork()
    assert (await fork.step(call("keep", word="b")))[0].messages[0].text == "0:a b"
    assert (await env.step(call("keep", word="c")))[0].messages[0].text == "0:a c"
    await env.close()
    assert (await fork.step(say("42")))[1] == 1.0
    await fork.close()


async def test_a_fork_and_its_original_each_score_their_own_conversation() -> None:
    """The conversation grows in place; caught: a fork that shares it, a reset that keeps it."""

    def said(task: Task, messages: Sequence[Message]) -> float:
        return float(len(messages))

    env = env_of(reward=said)
    for _ in range(2):
        opening, _ = await env.reset(options={"task": TASK})
        await env.step(call("keep", word="a"))
        fork = await env.fork()
        for _ in range(2):
            await fork.step(call("keep", word="b"))
        assert len(opening.messages) == 1, "what was shown does not grow"
        assert (await env.step(say("42")))[1] == 4.0
        assert (await fork.step(say("42")))[1] == 8.0
        await fork.close()
    await env.close()


async def test_the_reward_sees_the_whole_conversation_and_may_have_parts() -> None:
    seen: list[Message] = []

    async def reward(task: Task, messages: Sequence[Message]) -> Mapping[str, float]:
        await asyncio.sleep(0)
        seen.extend(messages)
        return {"right": 0.75, "brief": 0.125}

    env = env_of(reward=reward)
    await env.reset(options={"task": TASK})
    await env.step(call("multiply", a=1, b=2))
    _, paid, _, _, info = await env.step(say("2"))
    assert paid == 0.875
    assert info["reward_components"] == {"right": 0.75, "brief": 0.125}
    assert [m.role for m in seen] == ["user", "assistant", "tool", "assistant"]
    await env.close()


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (math.nan, f"task '{TASK.id}' is nan"),
        (math.inf, "is inf"),
        ({"right": 1.0, "style": -math.inf}, "component 'style' .* is -inf"),
        ("one", "the reward of task .* is .one.; return a number"),
        (None, "the reward of task .* is None; return a number"),
        ("1.0", "the reward of task .* is '1.0'; return a number"),
        ({"right": b"1"}, "component 'right' .* is b'1'; return a number"),
        ({}, "the reward of task .* is a mapping without a number; return one"),
        (-1e308, rf"task '{TASK.id}' is -1e\+308, but a reward may be at most 1e\+100"),
        (10**400, "is an integer of 1329 bits, but a reward may be"),
        ({"right": 1e101}, r"component 'right' .* is 1e\+101, but a reward may be"),
        ({"right": 6e99, "style": 6e99}, r"the reward of task .* is 1.2e\+100, but a reward may"),
    ],
)
async def test_a_reward_that_is_no_finite_number_is_an_error(verdict: Any, words: str) -> None:
    env = env_of(reward=lambda task, messages: verdict)  # pyright: ignore[reportUnknownLambdaType]
    await env.reset(options={"task": TASK})
    with pytest.raises(EnvError, match=words):
        await env.step(say("42"))
    await env.close()


@pytest.mark.parametrize(
    "verdict",
    [True, 1, np.float32(1.0), np.bool_(True), np.array(1.0), torch.tensor(1.0)],
    ids=repr,
)
async def test_a_scalar_of_another_library_is_a_reward(verdict: Any) -> None:
    env = env_of(reward=lambda task, messages: verdict)  # pyright: ignore[reportUnknownLambdaType]
    await env.reset(options={"task": TASK})
    step = await env.step(say("42"))
    assert (type(step[1]), step[1]) == (float, 1.0)
    await env.close()


async def test_a_reward_that_raises_is_an_error_that_names_the_task() -> None:
    def reward(task: Task, messages: Sequence[Message]) -> float:
        raise KeyError("answer")

    env = env_of(reward=reward)
    await env.reset(options={"task": TASK})
    with pytest.raises(EnvError, match=rf"reward of task '{TASK.id}': KeyError: 'answer'"):
        await env.step(say("42"))
    await env.close()


async def test_steps_outside_an_episode_say_what_to_do() -> None:
    env = env_of()
    with pytest.raises(RuntimeError, match=r"await env.reset\(\) first"):
        await env.step(say("42"))
    with pytest.raises(RuntimeError, match=r"await env.reset\(\) first"):
        await env.fork()
    await env.reset(options={"task": TASK})
    await env.step(say("42"))
    with pytest.raises(RuntimeError, match=rf"episode of task '{TASK.id}' has ended"):
        await env.step(say("42"))
    await env.close()


def test_tasks_are_put_into_the_split_they_were_asked_for() -> None:
    env = env_of()
    heldout = next(iter(env.tasks("heldout")))
    assert heldout.split == "heldout"
    assert next(iter(env.tasks("train"))).split == "train"


def test_a_task_that_is_none_is_refused() -> None:
    env = env_of(tasks=lambda split, seed: ["What is 1 + 1?"])  # pyright: ignore
    with pytest.raises(ConfigError, match=r"tasks\('train', 0\) yielded a str"):
        next(iter(env.tasks("train")))


async def test_an_empty_task_set_is_refused() -> None:
    env = env_of(tasks=lambda split, seed: [])  # pyright: ignore
    with pytest.raises(ConfigError, match="no train tasks"):
        await env.reset()


async def test_the_seed_chooses_among_a_fixed_list_of_tasks() -> None:
    fixed = [Task(prompt=f"{i}?", answer=str(i)) for i in range(5)]
    env = env_of(tasks=lambda split, seed: fixed)  # pyright: ignore
    texts: list[str] = []
    for seed in (*range(8), *range(8)):
        opening, _ = await env.reset(seed=seed)
        texts.append(opening.messages[0].text)
    await env.close()
    assert texts[:8] == texts[8:]
    assert len(set(texts)) > 1


async def test_an_option_that_is_no_task_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"options.*is a str"):
        await env_of().reset(options={"task": "What is 1 + 1?"})


def test_only_an_environment_with_a_gold_player_is_one() -> None:
    assert isinstance(env_of(), Env)
    assert not isinstance(env_of(), GoldPlayer)
    assert isinstance(env_of(gold=solve), GoldPlayer)


async def test_a_gold_episode_is_a_whole_conversation() -> None:
    env = env_of(gold=solve)
    episode = await play_gold(env, TASK)
    await env.close()
    assert episode.reward == 1.0
    assert [m.text for m in episode.messages] == ["What is 6 * 7?", "", "42", "Answer: 42"]
    assert len(episode.actions) == len(episode.replies) == 2
    with pytest.raises(ConfigError, match="has no gold player"):
        await play_gold(env_of(), TASK)


async def test_a_gold_player_that_never_ends_is_stopped() -> None:
    env = env_of(gold=lambda task, seen: call("multiply", a=1, b=1))  # pyright: ignore
    episode = await play_gold(env, TASK, max_turns=3)
    await env.close()
    assert (len(episode.actions), episode.reward) == (3, 0.0)


def test_a_product_is_in_one_split_whatever_the_seeds() -> None:
    def pairs(split: Split, seed: int) -> list[tuple[int, int]]:
        endless = sample_pairs(split, seed)
        return [next(endless) for _ in range(300)]

    train = {pair for seed in range(3) for pair in pairs("train", seed)}
    heldout = {pair for seed in range(3) for pair in pairs("heldout", seed)}
    assert not train & heldout
    assert pairs("train", 1) == pairs("train", 1) != pairs("train", 2)
    assert all(2 <= number <= 99 for pair in train | heldout for number in pair)


async def kept(task: Task, messages: Sequence[Message], toolbox: ToolSet) -> ScoredAnswer:
    words = toolbox.instance(Memory).kept
    return ScoredAnswer(reward={task.id: float(len(words))}, info={"kept": [*words]})


async def test_a_reward_may_see_the_tools_and_tell_more_than_a_number() -> None:
    env = env_of(reward=kept)
    await env.reset(options={"task": TASK})
    await env.step(call("keep", word="left"))
    fork = await env.fork()
    await fork.step(call("keep", word="alone"))
    _, reward, _, _, info = await env.step(say("done"))
    assert (reward, info) == (1.0, {"kept": ["left"], "reward_components": {TASK.id: 1.0}})
    _, reward, _, _, info = await fork.step(say("done"))
    assert (reward, info["kept"]) == (2.0, ["left", "alone"])
    await env.close()
    await fork.close()


async def test_a_parameter_with_a_default_is_the_authors_own() -> None:
    def reward(task: Task, messages: Sequence[Message], scale: float = 2.0) -> float:
        return scale * rewards.exact_answer(task, messages)

    env = env_of(reward=reward)
    await env.reset(options={"task": TASK})
    assert (await env.step(say("42")))[1] == 2.0
    await env.close()


async def test_a_tool_that_is_not_among_the_tools_is_a_configuration_error() -> None:
    env = env_of(reward=kept, tools=[multiply])
    await env.reset(options={"task": TASK})
    with pytest.raises(ConfigError, match="Memory is not among these tools"):
        await env.step(say("done"))
    await env.close()


async def test_the_conversation_ends_scored_after_so_many_turns() -> None:
    env = env_of(reward=kept, max_turns=2)
    for _ in range(2):
        await env.reset(options={"task": TASK})
        assert (await env.step(call("keep", word="a")))[1:4] == (0.0, False, False)
        fork = await env.fork()
        for world in (fork, env):
            reply, *step, info = await world.step(call("keep", word="b"))
            assert step == [2.0, False, True]
            assert reply.messages[0].text == "0:a b"
            assert len(info["tool_results"]) == 1
            with pytest.raises(RuntimeError, match="has ended"):
                await world.step(say("more"))
        await fork.close()
    await env.close()
    with pytest.raises(ConfigError, match="max_turns must be at least 1, got 0"):
        env_of(max_turns=0)


def last_word(task: Task, messages: Sequence[Message]) -> str | None:
    words = messages[-1].text.split()
    return words[-1] if words else None


def answer_number(task: Task, messages: Sequence[Message]) -> int:
    return 42


async def test_the_answer_is_reported_when_the_agent_gives_it_and_not_when_turns_run_out() -> None:
    env = env_of(answer=last_word, max_turns=2)
    assert env.reports_answer
    assert not env_of().reports_answer
    await env.reset(options={"task": TASK})
    _, _, _, _, info = await env.step(call("multiply", a=6, b=7))
    assert "answer" not in info
    _, _, terminated, _, info = await env.step(say("It is 42"))
    assert (terminated, info["answer"]) == (True, "42")
    await env.reset(options={"task": TASK})
    await env.step(call("multiply", a=6, b=7))
    _, _, _, truncated, info = await env.step(call("multiply", a=6, b=7))
    assert truncated
    assert "answer" not in info


async def test_an_answer_that_is_no_text_is_an_error_of_the_environment() -> None:
    env = env_of(answer=answer_number)
    await env.reset(options={"task": TASK})
    with pytest.raises(EnvError, match="is 42, but an answer must be a text"):
        await env.step(say("42"))

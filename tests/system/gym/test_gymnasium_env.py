"""agentrl environments through gymnasium.make, and their spaces."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.env import Action, Env, Observation, call, say
from agentrl.errors import ConfigError
from agentrl.gym.synchronous import SynchronousEnv, show_to_gymnasium
from agentrl.gym.text_form import (
    ActionSpace,
    ObservationSpace,
    action_of,
    action_text,
    observation_of,
    observation_text,
)
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.scope import run_scope, shared
from agentrl.sandbox import SandboxSettings, sandbox_settings, using_sandbox
from agentrl.task import Split, Task
from agentrl.testing.scripted_env import ScriptedEnv, ScriptedTurn


@agentrl.tool
def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


def tasks(split: Split, seed: int) -> Iterator[Task]:
    for a, b in agentrl.sample_pairs(split, seed):
        yield Task(prompt=f"What is {a} * {b}?", answer=str(a * b))


agentrl.register_tool_env(
    "gym/Multiply-v0", tools=[multiply], tasks=tasks, reward=agentrl.rewards.exact_answer
)


def sync(id: str = "gym/Multiply-v0", **kwargs: Any) -> SynchronousEnv:
    made = gymnasium.make(id, **kwargs).unwrapped
    assert isinstance(made, SynchronousEnv)
    return made


def test_a_registered_environment_passes_gymnasiums_own_check() -> None:
    env = sync()
    check_env(env)
    env.close()


def test_an_episode_through_gymnasium() -> None:
    env = gymnasium.make("gym/Multiply-v0")
    opening, info = env.reset(seed=1, options={"task": Task(prompt="6 * 7?", answer="42")})
    assert json.loads(opening)["messages"] == [{"role": "user", "content": "6 * 7?"}]
    assert json.loads(opening)["tools"][0]["function"]["name"] == "multiply"
    assert info == {}
    action = '{"tool_calls": [{"name": "multiply", "arguments": {"a": 6, "b": 7}}]}'
    reply, reward, terminated, truncated, info = env.step(action)
    assert json.loads(reply)["messages"][0]["content"] == "42"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["tool_results"] == [{"name": "multiply", "status": "ok", "call_id": "call_0"}]
    assert env.step("42")[1:] == (1.0, True, False, {})
    env.close()


def test_settings_are_passed_on() -> None:
    env = sync(system="Use the tool.")
    assert "Use the tool." in env.reset(seed=1)[0]
    env.close()


def test_the_conversation_can_be_rendered() -> None:
    env = sync(render_mode="ansi")
    env.reset(options={"task": Task(prompt="6 * 7?", answer="42")})
    env.step("hm")
    assert env.render() == "[user] 6 * 7?\n[assistant] hm"
    env.close()


def test_seeds_choose_tasks_and_without_one_they_vary() -> None:
    env = sync()
    assert env.reset(seed=5)[0] == env.reset(seed=5)[0]
    assert len({env.reset()[0] for _ in range(8)}) > 1
    env.close()


def test_its_loop_ends_with_it_and_it_can_begin_again() -> None:
    before = threading.active_count()
    env = sync()
    assert threading.active_count() == before
    env.reset(seed=1)
    assert threading.active_count() == before + 1
    env.close()
    env.close()
    assert threading.active_count() == before
    env.reset(seed=1)
    env.close()


def test_a_loop_whose_environment_is_forgotten_ends() -> None:
    before = threading.active_count()
    env = sync()
    env.reset(seed=1)
    del env
    assert threading.active_count() == before


async def test_it_works_inside_a_running_loop_and_many_at_once() -> None:
    envs = gymnasium.make_vec("gym/Multiply-v0", num_envs=3, vectorization_mode="sync")
    observations, _ = envs.reset(seed=1)
    assert len(observations) == 3
    _, rewards, terminated, _, _ = envs.step(("a", "b", "c"))
    assert rewards.tolist() == [0.0] * 3
    assert terminated.tolist() == [True] * 3
    envs.close()


def test_what_is_no_action_and_no_options_is_refused() -> None:
    env = sync()
    env.reset(seed=0)
    not_text: Any = 42
    with pytest.raises(TypeError, match=r"an action is a text, .* got 42"):
        env.step(not_text)
    with pytest.raises(TypeError, match=r"options are a dict, .* got 42"):
        env.reset(options=not_text)
    env.close()


def test_what_the_environment_raises_is_raised() -> None:
    env = SynchronousEnv(ScriptedEnv([ScriptedTurn(raises=KeyError("lost"))]))
    env.reset()
    with pytest.raises(KeyError, match="lost"):
        env.step("x")
    env.close()


def test_every_call_has_a_deadline() -> None:
    env = SynchronousEnv(ScriptedEnv([ScriptedTurn(seconds=60)]), timeout_s=3.0)
    env.reset()
    with pytest.raises(TimeoutError):
        env.step("x")
    env.close()


class Curious(ScriptedEnv):
    """Notes what it can see of its caller."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        opening, _ = await super().reset(seed=seed, options=options)
        unscoped = await shared("x", asyncio.sleep) is None  # pyright: ignore
        return opening, {"backend": sandbox_settings().backend, "unscoped": unscoped}


async def test_it_sees_the_callers_settings_and_not_the_scope_of_another_loop() -> None:
    env = SynchronousEnv(Curious())
    settings = SandboxSettings(backend="process", allow_unisolated=True)
    async with run_scope():
        with using_sandbox(settings):
            assert env.reset()[1] == {"backend": "process", "unscoped": True}
    env.close()


def make_scripted() -> Env:
    return ScriptedEnv()


def test_an_id_that_gymnasium_has_for_something_else_is_refused() -> None:
    gymnasium.register("gym/Taken-v0", entry_point="gymnasium.envs.toy_text:TaxiEnv")
    with pytest.raises(ConfigError, match=r"already Gymnasium's name for .*TaxiEnv"):
        show_to_gymnasium("gym/Taken-v0")
    del gymnasium.registry["gym/Taken-v0"]


def test_registering_before_gymnasium_is_imported_shows_it_too() -> None:
    code = (
        "import agentrl;"
        "agentrl.register('late/Env-v0', 'agentrl.testing.scripted_env:ScriptedEnv');"
        "import gymnasium; env = gymnasium.make('late/Env-v0'); print(len(env.reset(seed=1)))"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr


def test_environments_of_distributions_are_shown_on_request_though_they_were_listed_before() -> (
    None
):
    code = (
        "import sys, agentrl; len(agentrl.registry); assert 'gymnasium' not in sys.modules;"
        "import gymnasium; print(gymnasium.make('agentrl.gymnasium_envs:reasoning/ChainSum-v0'))"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, "reasoning/ChainSum-v0" in ran.stdout) == (0, True), ran.stderr


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
"""Texts that a call may hold."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
IMAGES = st.builds(Image, st.binary(max_size=8))
CONTENT = st.text() | st.lists(st.text() | IMAGES, max_size=3).map(tuple)
CALLS = st.lists(
    st.builds(
        ToolCall,
        st.just(""),
        WORDS.filter(bool),
        st.dictionaries(WORDS, JSON, max_size=2),
    ),
    max_size=3,
).map(lambda calls: tuple(ToolCall(f"call_{i}", c.name, c.arguments) for i, c in enumerate(calls)))
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    CONTENT,
    tool_calls=CALLS,
    tool_call_id=st.none() | st.text(),
    name=st.none() | st.text(),
)
TOOLS = st.none() | st.lists(st.dictionaries(st.text(), JSON, max_size=2), max_size=2).map(tuple)


@given(st.builds(Action, WORDS | st.sampled_from(['{"tool_calls": []}', "{"]), CALLS))
def test_an_action_is_its_text(action: Action) -> None:
    """A mutant of action_text that never quotes words is caught: they may look like calls."""
    assert action_of(action_text(action)) == action


@given(st.builds(Observation, st.lists(MESSAGES, max_size=3).map(tuple), TOOLS))
def test_an_observation_is_its_text(observation: Observation) -> None:
    text = observation_text(observation)
    assert observation_of(text) == observation
    assert text in ObservationSpace()


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_an_action(text: str) -> None:
    action = action_of(text)
    assert action.text or action.tool_calls or action.malformed or not json.loads(text or "{}")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("42", say("42")),
        ("{42}", say("{42}")),
        ('{"answer": 42}', say('{"answer": 42}')),
        ('{"tool_calls": [{"name": "f", "arguments": {"a": 1}}]}', call("f", a=1)),
        ('{"tool_calls": {"name": "f", "arguments": {}}}', call("f")),
    ],
)
def test_actions_as_text(text: str, action: Action) -> None:
    assert action_of(text) == action


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"tool_calls": [{"name": "f"}]}', '"arguments" is missing'),
        ('{"tool_calls": 3}', "a call must be a JSON object, not a number"),
        ('{"tool_calls": [', "not JSON"),
    ],
)
def test_calls_that_cannot_be_read_are_malformed(text: str, error: str) -> None:
    (told,) = action_of(text).malformed
    assert error in told


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"messages": 3, "tools": []}', "\ud800"])
def test_what_is_no_observation_is_not_in_their_space(text: str) -> None:
    assert text not in ObservationSpace()


def test_spaces_sample_what_they_contain_and_repeat_with_a_seed() -> None:
    for space in (ActionSpace(), ObservationSpace()):
        space.seed(3)
        first = [space.sample() for _ in range(20)]
        space.seed(3)
        assert first == [space.sample() for _ in range(20)]
        assert len(set(first)) > 1
        assert all(text in space for text in first)
        assert space == type(space)()
        assert 3 not in space
    assert ActionSpace() != ObservationSpace()
    assert "\ud800" not in ActionSpace()
    with pytest.raises(ValueError, match="no finite set"):
        ActionSpace().sample(mask=1)

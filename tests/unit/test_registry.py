"""Environments by name."""

import functools
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.authoring.env_id import EnvId
from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.registry import (
    EnvSpec,
    kinds,
    make,
    register,
    register_kind,
    register_tool_env,
    registry,
    spec,
)
from agentrl.runtime.imports import import_callable
from agentrl.task import Split, Task
from agentrl.testing.scripted_env import ScriptedEnv, ScriptedTurn

SCRIPTED = "agentrl.testing.scripted_env:ScriptedEnv"


def scripted(prompt: str = "Hello.", turns: int = 1) -> Env:
    return ScriptedEnv([ScriptedTurn()] * turns, prompt=prompt)


register("test/Scripted-v0", scripted, kwargs={"prompt": "Zero."}, description="Says things.")
register("test/Scripted-v2", scripted, kwargs={"prompt": "Two."})
register("test/Scripted-v10", SCRIPTED, kwargs={"prompt": "Ten."})


async def prompt_of(env: Env) -> str:
    opening, _ = await env.reset(seed=1)
    await env.close()
    return opening.messages[0].text.partition(" ")[0]


async def test_a_registered_environment_is_made_with_its_settings() -> None:
    assert await prompt_of(make("test/Scripted-v0")) == "Zero."
    assert await prompt_of(make("test/Scripted-v0", prompt="Mine.")) == "Mine."
    assert await prompt_of(make("test/Scripted-v10")) == "Ten."


async def test_without_a_version_it_is_the_newest() -> None:
    """A mutant that compares versions as text takes v2 for the newest and is caught."""
    assert await prompt_of(make("test/Scripted")) == "Ten."
    assert spec("test/Scripted").id == "test/Scripted-v10"


def test_every_make_is_a_new_environment() -> None:
    assert make("test/Scripted-v0") is not make("test/Scripted-v0")


async def test_a_class_is_made_with_no_registration() -> None:
    assert await prompt_of(make(SCRIPTED, prompt="Mine.")) == "Mine."
    assert spec(SCRIPTED) == EnvSpec(id=SCRIPTED, entry_point=SCRIPTED)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module that registers when it is imported."""
    source = f"import agentrl\nagentrl.register('user/World-v3', {SCRIPTED!r})\n"
    (tmp_path / "users_worlds.py").write_text(source)
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_worlds"
    sys.modules.pop("users_worlds", None)


def test_a_module_can_be_imported_first(module: str) -> None:
    assert isinstance(make(f"{module}:user/World-v3"), ScriptedEnv)
    assert isinstance(make(f"{module}:user/World"), ScriptedEnv)


def test_what_a_module_fails_to_import_is_the_error_to_see(module: str) -> None:
    words = (
        "needs_more:World: the module needs_more cannot be imported: ModuleNotFoundError: .*where"
    )
    with pytest.raises(ConfigError, match=words) as raised:
        make("needs_more:World")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_module_that_calls_exit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="exits_at_once cannot be imported: SystemExit: 0"):
        make("exits_at_once:World")


def test_a_gymnasium_environment_is_told_its_prefix() -> None:
    with pytest.raises(ConfigError, match=r"created a gymnasium\.Env; name it gymnas"):
        make("gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv")


def test_a_setting_may_be_called_id() -> None:
    made = make("agentrl.gym.text_env:GymnasiumTextEnv", id="FrozenLake-v1")
    assert next(iter(made.tasks("train"))).prompt


def test_gymnasiums_environments_have_a_prefix() -> None:
    from agentrl.gym.text_env import GymnasiumTextEnv

    assert isinstance(make("gymnasium:FrozenLake-v1"), GymnasiumTextEnv)
    assert spec("gymnasium:FrozenLake-v1").kwargs == {"id": "FrozenLake-v1"}


def test_a_kind_is_one_line_and_fills_one_keyword(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants seen caught: the module wins over the kind; WHAT is cut at its own colon."""
    (tmp_path / "spoken.py").write_text("raise RuntimeError('a module of the name of the kind')")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        register_kind(
            "spoken",
            "agentrl.testing:ScriptedEnv",
            keyword="prompt",
            description="a prompt",
            needs=["my:missing"],
        )
    entry = spec("spoken:Say: it.")
    assert entry.kwargs == {"prompt": "Say: it."}
    assert (entry.needs, entry.description) == (("my:missing",), "a prompt")
    assert "Say: it. (" in str(next(iter(make("spoken:Say: it.").tasks("train"))).prompt)
    assert spec("spoken").kwargs == {}
    assert "Else. (" in str(next(iter(make("spoken", prompt="Else.").tasks("train"))).prompt)
    assert kinds()["spoken"].keyword == "prompt"
    with pytest.raises(ConfigError, match="spoken:a:b says that prompt is 'a:b', and the setting"):
        make("spoken:a:b", prompt="c")
    with pytest.raises(ConfigError, match=r"'spoken' is registered twice.*another name"):
        register_kind("spoken", "agentrl.testing:ScriptedEnv", keyword="turns", description="")
    with pytest.raises(ConfigError, match="'a/b' must be letters"):
        register_kind("a/b", "x:Y", keyword="z", description="")


def test_kinds_of_distributions_are_known() -> None:
    assert {"gem", "gymnasium", "openenv", "verifiers"} <= kinds().keys()
    assert spec("openenv:http://localhost:8000").kwargs == {"url": "http://localhost:8000"}
    for kind in kinds().values():
        entry_point = import_callable(kind.entry_point)
        assert kind.keyword in inspect.signature(entry_point).parameters
        assert not kind.recogniser or import_callable(kind.recogniser)("words") is False


def test_the_registry_is_a_mapping_to_specs() -> None:
    assert "test/Scripted-v0" in registry
    assert "test/Scripted-v1" not in registry
    found = registry["test/Scripted-v0"]
    assert found.description == "Says things."
    assert found.entry_point.endswith("test_registry:scripted")
    assert json.loads(found.to_json())["kwargs"] == {"prompt": "Zero."}
    assert list(registry) == sorted(registry)
    assert len(registry) == len(list(registry))
    with pytest.raises(KeyError):
        registry["test/Nothing-v0"]


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("test/Scripted-v1", "unknown environment 'test/Scripted-v1'; the newest version is 'test"),
        ("test/scripted-v0", r"most similar ids are \['test/Scripted-v0"),
        ("test/Scriptde", r"most similar ids are .*test/Scripted-v"),
        (
            "zzzz/Qqqqqqqq-v0",
            r"environments are registered \(agentrl envs lists them\).*module:Class",
        ),
        (
            "Scripted",
            "'Scripted' does not have the form namespace/Name-v0 .*; name a class as module:Class",
        ),
        ("", "does not have the form"),
        ("no_such_module:World", "there is no module 'no_such_module' on the import path"),
        ("agentrl.nothing_here:World", "there is no module 'agentrl.nothing_here'"),
        ("agentrl.testing.scripted_env:ScriptedEvn", "did you mean 'ScriptedEnv'"),
        ("agentrl.testing:", "not have the form module:Class"),
        ("agentrl.registry:registry", "is a _Registry; name a class or a function"),
        ("agentrl.task:Task", "Task"),
        ("gymnasium:NoSuchGame-v0", "gymnasium:NoSuchGame-v0: .*NoSuchGame"),
    ],
)
def test_what_cannot_be_made_says_why(id: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(id)


def no_env() -> Any:
    return object()


def test_what_is_no_environment_is_refused() -> None:
    register("test/NoEnv-v0", no_env)
    with pytest.raises(
        ConfigError, match="created a object, which lacks fork_strategy, tasks, reset"
    ):
        make("test/NoEnv-v0")


def test_unknown_settings_name_the_known_ones() -> None:
    words = r"'promt'; did you mean 'prompt'\? the keyword arguments .* are: prompt, turns"
    with pytest.raises(ConfigError, match=words):
        make("test/Scripted-v0", promt="x")


def other() -> Env:
    return ScriptedEnv()


def test_an_id_keeps_its_entry_point() -> None:
    register("test/Twice-v0", scripted)
    register("test/Twice-v0", scripted, description="Said again.")
    assert spec("test/Twice-v0").description == "Said again."
    with pytest.raises(
        ConfigError,
        match=r"test/Twice-v0 is registered twice: as .*another name or a new version",
    ):
        register("test/Twice-v0", other)
    with pytest.raises(ConfigError, match="registered twice"):
        register("test/Twice-v0", scripted, kwargs={"turns": 2})


@pytest.mark.parametrize(
    "id", ["Name-v0", "a/b/C-v0", "a/B C-v0", "a/-v0", "é/Name-v0", "a.b/C-v0", "a/B"]
)
def test_ids_that_are_none_are_refused(id: str) -> None:
    with pytest.raises(ConfigError, match=r"namespace/Name-v0|has no version; register 'a/B-v0'"):
        register(id, scripted)
    assert id not in registry


def test_settings_that_are_not_json_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kwargs must be JSON-serialisable.*functools.partial"):
        register("test/Object-v0", scripted, kwargs={"prompt": object()})
    assert "test/Object-v0" not in registry
    register("test/Object-v0", functools.partial(scripted, prompt="p"))
    assert make("test/Object-v0")


def tasks(split: Split, seed: int) -> Iterator[Task]:
    for a, b in agentrl.sample_pairs(split, seed):
        yield Task(prompt=f"{a} + {b}?", answer=str(a + b))


async def test_a_tool_environment_is_registered_from_its_parts() -> None:
    register_tool_env("test/Plus-v0", tasks=tasks, reward=agentrl.rewards.exact_answer)
    env = make("test/Plus-v0", system="Add.")
    opening, _ = await env.reset()
    await env.close()
    assert opening.messages[0].text == "Add."
    register_tool_env("test/Plus-v0", tasks=tasks, reward=agentrl.rewards.exact_answer)
    with pytest.raises(ConfigError, match="registered twice"):
        register_tool_env("test/Plus-v0", tasks=tasks, reward=agentrl.rewards.contains_answer)


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,6}/[A-Za-z][A-Za-z0-9_.]{0,8}", fullmatch=True)


@given(NAMES, st.none() | st.integers(0, 999))
def test_an_id_is_its_parts(name: str, version: int | None) -> None:
    parsed = EnvId(name=name, version=version)
    assert EnvId.parse(str(parsed)) == parsed


@given(st.text() | st.text("aB./-_:v01", max_size=12))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    """And what is an id for us is one for Gymnasium, with the same parts.

    A mutant that allows a dot in the namespace is caught: Gymnasium does not.
    """
    from gymnasium.envs.registration import parse_env_id

    if not EnvId.is_id(text):
        with pytest.raises(ConfigError):
            EnvId.parse(text)
        return
    namespace, name, version = parse_env_id(text)
    assert EnvId.parse(text) == EnvId(name=f"{namespace}/{name}", version=version)

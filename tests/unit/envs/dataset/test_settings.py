"""Settings of a data set that break their rule say which, and how it is written.

Mutants seen caught: a truth value taken for a number, or for a count; names of splits not looked
at; a key that is not known without a hint; settings of a class of TRL's not checked.
"""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.registry import make
from agentrl.run.preflight import check_env
from agentrl_envs.dataset.llm_judge import JudgeSettings
from agentrl_envs.dataset.settings import (
    DATASET_RULES,
    JUDGE_RULES,
    check_settings,
    find_key_fault,
)

NAN = float("nan")
GOOD: dict[str, list[Any]] = {
    "path": ["a.jsonl", {"train": "a", "heldout": "b"}],
    "prompt": ["question", "{a} {b}"],
    "answer": [None, "gold"],
    "reward": [None, "exact", ["exact"], {"name": "exact"}, len],
    "tools": [[], ["m:f"], ({"source": "m:f"},)],
    "subset": [None, "main"],
    "split": [None, "train", {"train": "a", "heldout": "b"}],
    "split_column": ["part"],
    "heldout_fraction": [0.1, 1e-9],
    "system": ["", "Be short."],
    "gold": [None, "m:f", len],
    "max_turns": [None, 1],
    "tool_timeout_s": [1, 0.5],
    "reuse": [True],
}
BAD: dict[str, list[Any]] = {
    "path": [None, 3, "", " ", ["a"], {"train": "a"}, {"train": "a", "heldout": 1}],
    "prompt": [None, 3, "", ["a"]],
    "answer": [3, "", True],
    "reward": [3, True],
    "tools": [None, "m:f", {"source": "m:f"}, 3, [3], [None], [["m:f"]]],
    "subset": [3, ""],
    "split": [3, "", {"train": "a", "test": "b"}, {"train": "a", "heldout": None}],
    "split_column": [None, 3, ""],
    "heldout_fraction": ["0.1", 0, 1, 1.0, -0.5, NAN, None, True],
    "system": [None, 3, ["a"]],
    "gold": [3, "", ["m:f"]],
    "max_turns": [0, -1, 1.5, "3", True],
    "tool_timeout_s": [0, -1, "30", NAN, float("inf"), None, True],
    "reuse": [1, "yes", None],
}
JUDGE = {"prompt": "p", "url": "u", "model": "m"}
BAD_JUDGE: dict[str, list[Any]] = {
    "prompt": [3, ""],
    "url": [3, ""],
    "model": [None, ""],
    "key_variable": [3, ""],
    "scale": [3, [0], [1, 1], [2, 1], ["0", "1"], [0, NAN]],
    "max_tokens": [0, "10", 1.5],
    "temperature": ["0", -1, NAN],
    "deadline_s": [0, "ten", None],
    "budget_calls": [0, "9", True],
    "budget_tokens": [-1, 1.5],
    "cache": [3, ""],
    "concurrency": [0, "8"],
    "retries": [-1, "3", 1.5],
}


def cases(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, several in values.items() for value in several]


def test_every_setting_has_a_rule_and_cases() -> None:
    assert DATASET_RULES.keys() == GOOD.keys() == BAD.keys()
    assert JUDGE_RULES.keys() == BAD_JUDGE.keys()


@pytest.mark.parametrize(("key", "value"), cases(GOOD))
def test_a_value_that_keeps_its_rule_passes(key: str, value: Any) -> None:
    check_settings({key: value}, DATASET_RULES, of="the data set")


@pytest.mark.parametrize(("key", "value"), cases(BAD))
def test_a_value_that_breaks_its_rule_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as failed:
        check_settings({key: value}, DATASET_RULES, of="the data set")
    assert f"{key} of the data set is {value!r:.80}; it must be " in str(failed.value)


@pytest.mark.parametrize(("key", "value"), cases(BAD_JUDGE))
def test_a_judge_has_rules_too(key: str, value: Any) -> None:
    arguments: dict[str, Any] = {**JUDGE, key: value}
    with pytest.raises(ConfigError, match=f"{key} of a judge is .*; it must be "):
        JudgeSettings(**arguments)


def test_a_key_that_is_not_known_has_a_hint() -> None:
    assert find_key_fault({"name": 1, "modle": 2}, ["name", "model"]) == (
        "has the unknown key 'modle'; did you mean model? its keys are name, model"
    )
    assert find_key_fault({"name": 1}, ["name"]) == ""
    with pytest.raises(ConfigError, match="unexpected keyword argument 'promt'; did you mean 'pro"):
        make("dataset:a.jsonl", promt="question")


@pytest.mark.parametrize("id", ["dataset", "trl:tests.support.counter_factory:IncrementEnv"])
def test_an_environment_checks_them_too(id: str) -> None:
    with pytest.raises(ConfigError, match="max_turns of the data set is 0; it must be a whole"):
        make(id, path="rows.jsonl", max_turns=0)


@pytest.mark.parametrize(
    ("id", "settings", "words"),
    [
        ("dataset:rows.jsonl", {"max_turns": "3"}, "max_turns of the data set is '3'; it must be"),
        ("dataset:rows.jsonl", {"reward": 3}, "reward of the data set is 3; it must be exact"),
        ("dataset:rows.jsonl", {"reward": [3]}, "reward 3 is none; name exact"),
        ("dataset:rows.jsonl", {"reward": []}, "reward is an empty list"),
        ("dataset", {"path": 3}, "path of the data set is 3; it must be the path of a file"),
        ("dataset:no.jsonl", {}, "there is no data file no.jsonl"),
        (
            "trl:tests.support.counter_factory:IncrementEnv",
            {"path": "rows.jsonl", "reuse": "no"},
            "reuse of the data set is 'no'; it must be true or false",
        ),
    ],
)
def test_a_run_names_it_before_it_begins(
    id: str, settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "a", "answer": "1"}\n')
    config = RunConfig.model_validate(
        {"run": {"name": "x"}, "env": {"id": id, "kwargs": settings}, "policy": {"path": "none"}}
    )
    with pytest.raises(ConfigError, match=words):
        check_env(config)

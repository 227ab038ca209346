"""`agentrl import`: the kind of what somebody has, what it offers, and the config that is written.

Mutants seen caught: a kind that is named is looked up by its recogniser; a gold player that earns
what silence earns passes.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agentrl.cli.app import main
from agentrl.cli.import_env import find_env_id
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.registry import kinds, make

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["agentrl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.mark.parametrize(
    ("what", "kind", "id"),
    [
        ("a/tasks.parquet", None, "dataset:a/tasks.parquet"),
        ("http://localhost:8000", None, "openenv:http://localhost:8000"),
        ("FrozenLake-v1", None, "gymnasium:FrozenLake-v1"),
        (
            "gymnasium.envs.toy_text:FrozenLakeEnv",
            None,
            "gymnasium:gymnasium.envs.toy_text:FrozenLakeEnv",
        ),
        (
            "tests.support.counter_factory:IncrementEnv",
            None,
            "trl:tests.support.counter_factory:IncrementEnv",
        ),
        ("agentrl.testing:ScriptedEnv", None, "agentrl.testing:ScriptedEnv"),
        ("reasoning/ChainSum-v0", None, "reasoning/ChainSum-v0"),
        ("dataset:openai/gsm8k", None, "dataset:openai/gsm8k"),
        ("openai/gsm8k", "dataset", "dataset:openai/gsm8k"),
    ],
)
def test_a_kind_is_recognised_or_named(what: str, kind: str | None, id: str) -> None:
    assert find_env_id(what, kind, kinds()) == id


def test_a_file_of_any_format_is_taken_for_rows(tmp_path: Path) -> None:
    for name in ("rows.jsonl.gz", "rows.tsv", "rows.txt"):
        (tmp_path / name).write_text("question\n")
        file = str(tmp_path / name)
        assert find_env_id(file, None, kinds()) == f"dataset:{file}"


def test_what_nobody_recognises_names_the_kinds() -> None:
    with pytest.raises(ConfigError, match=r"no kind recognises openai/gsm8k; .* dataset, gem, gym"):
        find_env_id("openai/gsm8k", None, kinds())
    with pytest.raises(ConfigError, match="--kind datset is none; the kinds are dataset, gem"):
        find_env_id("x", "datset", kinds())


def test_a_data_set_is_shown_and_its_config_trains(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = json.dumps({"prompt": "question", "heldout_fraction": 0.3})
    assert command("import", "sums.jsonl", "--kwargs", settings, "--write", "sums.yaml") == 0
    shown = capsys.readouterr().out
    assert "id      dataset:sums.jsonl" in shown
    assert "tools   none" in shown
    assert "says nothing: 0 0 0 0 0 0" in shown
    assert "gold player: 1 1 1 1 1 1" in shown
    config = load_config(Path("sums.yaml"))
    assert make(config.env.id, **config.env.kwargs)
    assert config.warmstart is not None
    written = yaml.safe_load(Path("sums.yaml").read_text())
    assert written["env"] == {"id": "dataset:sums.jsonl", "kwargs": json.loads(settings)}
    assert command("import", "sums.jsonl", "--kwargs", settings, "--write", "sums.yaml") == 2
    assert "--write sums.yaml is there already" in capsys.readouterr().err


def test_tools_are_shown_with_their_schemas(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text(
        "".join(
            json.dumps({"prompt": f"p{n}", "start": n, "target": n + 5}) + "\n" for n in range(30)
        )
    )
    what = "tests.support.counter_factory:IncrementEnv"
    settings = json.dumps({"path": "rows.jsonl", "heldout_fraction": 0.3})
    assert command("import", what, "--kwargs", settings, "--write", "counter.yaml") == 0
    shown = capsys.readouterr().out
    assert '"name": "increment"' in shown
    assert "Value to add to the counter." in shown
    assert "gold player: none" in shown
    config = load_config(Path("counter.yaml"))
    assert (config.warmstart, config.rollout.max_turns) == (None, 8)


def test_a_gymnasium_environment_is_shown_in_its_words(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("import", "FrozenLake-v1", "--episodes", "1", "--write", "lake.yaml") == 0
    shown = capsys.readouterr().out
    assert "id      gymnasium:FrozenLake-v1" in shown
    assert "tasks   train at least 10000" in shown
    assert "Answer with one action: left, down, right, up." in shown
    config = load_config(Path("lake.yaml"))
    assert config.env.id == "gymnasium:FrozenLake-v1"
    settings = json.dumps({"describe": "nowhere:tell"})
    assert command("import", "gymnasium:FrozenLake-v1", "--kwargs", settings) == 2
    assert "nowhere:tell: there is no module 'nowhere'" in capsys.readouterr().err
    settings = json.dumps({"python": "no-such-venv/bin/python"})
    assert command("import", "gymnasium:FrozenLake-v1", "--kwargs", settings) == 2
    assert "'no-such-venv/bin/python', but there is no such program" in capsys.readouterr().err


def test_a_reward_that_silence_earns_is_a_warning(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"prompt": "question", "reward": "tests.unit.cli.test_import:always"}
    settings |= {"gold": "agentrl_envs.dataset.env:say_reference"}
    assert command("import", "sums.jsonl", "--kwargs", json.dumps(settings)) == 1
    assert "the gold player earned 4 and an agent that says nothing 4" in capsys.readouterr().err


def test_a_column_that_is_missing_is_an_error(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("import", "sums.jsonl") == 2
    assert "line 1 of sums.jsonl has no column 'prompt'" in capsys.readouterr().err
    assert command("import", "sums.jsonl", "--kind", "trl") == 2
    advice = "set it in env.kwargs, or with --kwargs '{\"path\": ...}'; the keyword arguments"
    missing = f"trl:sums.jsonl: missing a required argument: 'path'; {advice}"
    assert missing in capsys.readouterr().err


def always(task: object, messages: object) -> float:
    """Pay whatever is said."""
    return 1.0

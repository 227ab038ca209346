"""A first hour: names of other frameworks, slips on the command line, parts that are missing."""

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl import Action, Task, register, register_tool_env, rewards, say
from agentrl.authoring.tool_env import ToolEnv
from agentrl.cli.app import main
from agentrl.config.load import load_config
from agentrl.errors import ConfigError, EnvError
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.reports import StoredReport, compare_reports
from agentrl.evaluation.sample import EvaluationSample
from agentrl.rollout.scheduler.topology import TooManyFailures
from agentrl.run.evaluate import evaluate
from agentrl.run.player import random_arguments
from agentrl.task import Split
from agentrl.view.run_status import reward_curve
from tests.support.doubles import double, doubles, gold
from tests.support.tiny_run import config_file

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("steps=3", "run.steps"),
        ("run.folders=x", "run.folder"),
        ("rollout.group_sizes=3", "rollout.group_size"),
    ],
)
def test_a_wrong_key_leads_to_the_right_one(override: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
        load_config(CONFIG, [override])


def test_a_warm_start_of_no_steps_is_left_out_another_way() -> None:
    with pytest.raises(ConfigError, match="write warmstart=null to disable the warm start"):
        load_config(CONFIG, ["warmstart.steps=0"])


def test_a_key_with_dashes_is_told_how_keys_are_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentrl", "train", str(CONFIG), "--run.name=c14"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--run.name=c14 is not an option" in said
    assert "as run.name=c14" in said


# --- what is not there ----------------------------------------------------------------------------


# --- players --------------------------------------------------------------------------------------


register_tool_env(
    "test/Doubled-v0",
    tools=[double],
    tasks=doubles,
    gold=gold,
    reward=rewards.exact_answer,
)


def constant_player(messages: Any, tools: Any) -> str:
    del tools
    return str(len(messages))


@pytest.mark.parametrize(
    ("player", "reward"),
    [("gold", 1.0), ("tests.unit.cli.test_first_hour:constant_player", 0.0), ("random", None)],
)
def test_a_player_without_a_model_is_evaluated(
    tmp_path: Path, player: str, reward: float | None
) -> None:
    changes = {"env.id": "test/Doubled-v0", "env.kwargs": {}}
    config = load_config(config_file(tmp_path), changes)
    report = evaluate(config, player=player)
    assert report.about["policy"] == player
    assert report.overall.failed == 0
    if reward is not None:
        assert report.overall.reward is not None
        assert report.overall.reward.mean == reward
    assert evaluate(config, player=player).samples == report.samples


def breaking_player(messages: Any, tools: Any) -> str:
    raise KeyError("no such thing")


def test_a_player_that_always_breaks_is_told_with_its_line(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path))
    with pytest.raises(TooManyFailures, match=r"no such thing.*test_first_hour\.py:\d+"):
        evaluate(config, player="tests.unit.cli.test_first_hour:breaking_player")


async def never_ends(task: Task, messages: Any) -> float:
    await asyncio.Event().wait()
    raise AssertionError


async def cancels_itself(task: Task, messages: Any) -> float:
    if task.prompt == "Double 9":
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)
    return 1.0


def leaves(*given: Any) -> Any:
    sys.exit(0)


def nothing(*given: Any) -> Any:
    return None


def text(*given: Any) -> Any:
    return "six"


def says_nothing(*given: Any) -> Any:
    return say(nothing())


def numbers(split: Split, seed: int) -> Iterator[Task]:
    yield from [Task(prompt=f"Double {number}", answer=str(2 * number)) for number in (7, 8, 9)]


def stops_tasks(split: Split, seed: int) -> Iterator[Task]:
    yield from numbers(split, seed)
    sys.exit(0)


class Panic(BaseException):
    """As extensions in Rust, and `pytest.fail`, raise it."""


class Leaving(ToolEnv):
    """Calls `sys.exit`, or panics, where it is told to."""

    def __init__(self, where: str = "") -> None:
        self.where = where
        self._leave("init")
        super().__init__(tools=[double], tasks=doubles, gold=gold, reward=rewards.exact_answer)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._leave("reset")
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Any:
        self._leave("step")
        return await super().step(action)

    async def close(self) -> None:
        await super().close()
        self._leave("close")

    def _leave(self, where: str) -> None:
        match self.where.split("-"):
            case [place] if place == where:
                sys.exit(0)
            case [place, "panic"] if place == where:
                raise Panic("in Rust")
            case [place, "generator"] if place == where:
                raise GeneratorExit
            case _:
                pass


register("test/Leaving-v0", Leaving)
make_numbers = partial(
    ToolEnv, tools=[double], tasks=numbers, gold=gold, reward=rewards.exact_answer
)
for name, changes in {
    "Endless": {"reward": never_ends},
    "Cancelled": {"reward": cancels_itself},
    "GoldLeaves": {"gold": leaves},
    "RewardLeaves": {"reward": leaves},
    "TasksLeave": {"tasks": stops_tasks},
    "Short": {"max_turns": 1},
    "GoldNothing": {"gold": nothing},
    "GoldText": {"gold": text},
    "GoldSaysNothing": {"gold": says_nothing},
}.items():
    register(f"test/{name}-v0", partial(make_numbers, **changes))


def evaluate_gold(folder: Path, env: str, **changes: Any) -> EvaluationReport:
    given = {"env.id": f"test/{env}-v0", "env.kwargs": {}, "split_guard.allow": True, **changes}
    return evaluate(load_config(config_file(folder), given), player="gold")


HERE = r"tests/unit/cli/test_first_hour\.py:\d+"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Endless", r"step of task .* missed its deadline \(rollout\.step_s, 0\.05 s\)"),
        ("GoldLeaves", rf"gold of task .*: SystemExit: 0; at {HERE}, in leaves"),
        ("RewardLeaves", r"reward of task .*leaves raised SystemExit\(0\)"),
        (
            "GoldNothing",
            rf"gold must return an Action, .* it returned None; .*at {HERE}, in nothing",
        ),
        ("GoldText", rf"it returned 'six'; return agentrl\.say.*at {HERE}, in text"),
        (
            "GoldSaysNothing",
            rf"agentrl\.say expects text, got a NoneType: None; at {HERE}, in says",
        ),
    ],
)
def test_what_breaks_under_a_player_is_told_in_one_sentence(
    tmp_path: Path, env: str, words: str
) -> None:
    with pytest.raises(TooManyFailures, match=words):
        evaluate_gold(tmp_path, env, **{"rollout.step_s": 0.05})


def test_tasks_that_call_exit_end_an_evaluation_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"^tasks\('heldout', \d+\): SystemExit: 0$"):
        evaluate_gold(tmp_path, "TasksLeave")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("init", r"^test/Leaving-v0 raised SystemExit: 0 when it was created"),
        ("init-panic", r"^test/Leaving-v0 raised Panic: in Rust when it was created"),
        ("reset-panic", rf"reset of .*: Panic: in Rust; at {HERE}, in _leave"),
        ("step-panic", rf"step of .*: Panic: in Rust; at {HERE}, in _leave"),
        ("close", rf"close of .*: SystemExit: 0; at {HERE}, in _leave"),
        ("close-panic", rf"close of .*: Panic: in Rust; at {HERE}, in _leave"),
    ],
)
def test_an_environment_that_leaves_is_an_error(tmp_path: Path, where: str, words: str) -> None:
    with pytest.raises((ConfigError, TooManyFailures), match=words):
        evaluate_gold(tmp_path, "Leaving", **{"env.kwargs": {"where": where}})


def test_an_episode_that_the_environment_cuts_short_is_truncated(tmp_path: Path) -> None:
    report = evaluate_gold(tmp_path, "Short")
    assert set(report.overall.outcomes) == {"truncated_turns"}


def one_argument(messages: object) -> str:
    return "5"


def any_arguments(*seen: object) -> str:
    return "5"


def test_a_player_of_other_arguments_is_told_before_it_plays(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path), {"env.id": "test/Short-v0", "env.kwargs": {}})
    with pytest.raises(
        ConfigError, match=r"one_argument: too many .*; a player is called with two"
    ):
        evaluate(config, player=f"{__name__}:one_argument")
    assert evaluate(config, player=f"{__name__}:any_arguments").samples


def test_what_no_trajectory_can_be_blamed_for_ends_the_evaluation(tmp_path: Path) -> None:
    """Kills: an evaluation that waits for a trajectory whose task has ended."""
    with pytest.raises(GeneratorExit):
        evaluate_gold(tmp_path, "Leaving", **{"env.kwargs": {"where": "step-generator"}})


def test_a_reward_that_cancels_its_task_ends_one_trajectory(tmp_path: Path) -> None:
    report = evaluate_gold(tmp_path, "Cancelled")
    assert report.overall.outcomes == {"failed_cancelled": 1, "finished": 2}


def test_a_player_that_is_none_is_refused(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path))
    with pytest.raises(ConfigError, match="expected gold, random or module:function"):
        evaluate(config, player="golden")
    with pytest.raises(ConfigError, match="uses no endpoint"):
        evaluate(config, player="gold", out=tmp_path / "out")


Schema = dict[str, Any]


def array_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def object_of(part: Schema) -> Schema:
    return {"type": "object", "properties": {"x": part}}


PLAIN: list[Schema] = [
    {"type": "integer"},
    {"type": "integer", "minimum": 200},
    {"type": "integer", "maximum": -50},
    {"type": "integer", "minimum": 1.5, "maximum": 2.5},
    {"type": "boolean"},
    {"enum": ["a", 3]},
    {"type": "string"},
    {},
]
JSON_SCHEMA = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(st.builds(array_of, inner), st.builds(object_of, inner)),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abc"), JSON_SCHEMA), st.integers(0, 99))
def test_random_arguments_fit_their_schema(properties: dict[str, Any], seed: int) -> None:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    arguments = random_arguments(schema, Random(seed))
    assert arguments.keys() == properties.keys()
    assert arguments == random_arguments(schema, Random(seed))
    json.dumps(arguments)
    for name, part in properties.items():
        if part.get("type") == "integer":
            value = arguments[name]
            assert isinstance(value, int)
            assert part.get("minimum", value) <= value <= part.get("maximum", value)


# --- comparing and looking ------------------------------------------------------------------------


def stored(policy: str, reward: float) -> StoredReport:
    sample = EvaluationSample(
        task="3330feee",
        fingerprint="f",
        sample=0,
        outcome="finished",
        reward=reward,
        prompt="What is 1 + 1?",
    )
    about = {"env": "a/B-v0", "policy": policy}
    return StoredReport(
        path=Path(policy), about=about, threshold=1.0, confidence=0.95, samples=(sample,)
    )


def test_two_policies_are_compared_and_flipped_tasks_say_their_first_words() -> None:
    found = compare_reports(stored("one at x", 0.0), stored("other at x", 1.0))
    (flip,) = found.gained
    assert (flip.task, flip.prompt) == ("3330feee", "What is 1 + 1?")


def test_intervals_of_a_curve_end_where_rewards_do() -> None:
    ((_, inside),) = reward_curve([(1, 1.0), (1, 0.9), (1, 0.2)])
    assert (inside.low, inside.high) == (0.0, 1.0)
    ((_, beyond),) = reward_curve([(1, -2.0), (1, 3.0)])
    assert (beyond.low, beyond.high) == (-2.0, 3.0)


def test_an_environment_of_another_package_is_described(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentrl", "envs", "gymnasium:FrozenLake-v1"])
    with pytest.raises(SystemExit):
        main()
    assert "env.kwargs.id  FrozenLake-v1" in capsys.readouterr().out

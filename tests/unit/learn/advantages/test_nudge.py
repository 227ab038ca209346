"""NudgeRL's advantage, and the environment that suggests strategies.

Mutants seen caught: strategies compared among themselves without their weight; the bare ones
compared with each other alone; the unbiased deviation; a cut trajectory counted as bare.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.load import load_config
from agentrl.env import say
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.advantages.grpo import grpo
from agentrl.learn.advantages.nudge import compare_strategies, nudge, read_strategies
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of
from agentrl.run import build
from agentrl.task import Task
from agentrl_envs.strategies import NudgedEnv


def sample_of(prompt: int, reward: float = 0.0, **components: float) -> TrainingSample:
    """Return a trajectory of two prompt tokens and a sampled one."""
    return TrainingSample(
        task_id="t",
        sample=0,
        reward=reward,
        token_ids=np.array([1, prompt, 9]),
        mask=np.array([False, False, True]),
        behaviour=np.zeros(3),
        spans=spans_of(np.array([False, False, True]), nodes=np.array([0, 0, 1])),
        components=components,
    )


REWARDS, STRATEGIES = (0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0), (0, 0, 1, 1, 1, 2, 2, 2)


def test_the_worked_example() -> None:
    expected = [-0.7406, 1.2509, 1.3090, 1.3090, -0.6825, *[-0.8153] * 3]
    assert compare_strategies(REWARDS, STRATEGIES) == pytest.approx(expected, abs=1e-4)
    pairs = zip(REWARDS, STRATEGIES, strict=True)
    group = TrainingGroup("t", tuple(sample_of(s, r, strategy=float(s)) for r, s in pairs))
    assert [row[2] for row in nudge([group])] == pytest.approx(expected, abs=1e-4)


REWARD_LISTS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=9)


@given(REWARD_LISTS, st.floats(0, 2))
def test_one_strategy_or_none_is_grpo_with_the_population_deviation(
    rewards: Sequence[float], between: float
) -> None:
    centred = np.array(grpo(rewards, normalise_std=False))
    expected = centred / (np.std(rewards) + 1e-5)
    for number in (0, 1):
        found = compare_strategies(rewards, [number] * len(rewards), between=between)
        assert found == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 3)), min_size=1, max_size=9))
def test_with_a_weight_of_one_strategies_make_no_difference(
    pairs: Sequence[tuple[float, int]],
) -> None:
    rewards, numbers = zip(*pairs, strict=True)
    found = compare_strategies(rewards, numbers, between=1.0)
    assert found == pytest.approx(compare_strategies(rewards, [0] * len(rewards)), abs=1e-9)


def test_a_trajectory_that_was_cut_is_known_by_its_prompt() -> None:
    group = TrainingGroup(
        "t",
        (sample_of(5, strategy=0.0), sample_of(6, strategy=2.0), sample_of(6), sample_of(7)),
    )
    assert read_strategies(group) == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [((0.5,), "strategy is 0.5"), ((-1.0,), "strategy is -1.0"), ((1.0, 0.0), "same prompt has 1")],
)
def test_strategies_that_contradict_are_an_error(numbers: Sequence[float], fault: str) -> None:
    group = TrainingGroup("t", tuple(sample_of(5, strategy=number) for number in numbers))
    with pytest.raises(LearnError, match=f"task 't' sample 0: .*{fault}"):
        read_strategies(group)


# The environment.


def env_of(**settings: object) -> NudgedEnv:
    known = {
        "env": "agentrl.testing:ScriptedEnv",
        "strategies": ["by hand", "with the tool"],
        **settings,
    }
    return NudgedEnv(**known)  # pyright: ignore[reportArgumentType]


async def read_prompt(env: NudgedEnv, task: Task, sample: int) -> tuple[str, float]:
    """Return the end of a prompt, and the number that the first step tells."""
    options = {"task": task, "sample": sample}
    observation, _ = await env.reset(seed=3, options=options)
    info = (await env.step(say("42")))[4]
    await env.close()
    return observation.messages[-1].text.rpartition("\n\n")[2], info["reward_components"][
        "strategy"
    ]


async def test_train_prompts_suggest_strategies_in_turn_and_held_out_ones_none() -> None:
    env = env_of(bare=0.0)
    task = next(iter(env.tasks("train")))
    found = [await read_prompt(env, task, sample) for sample in range(3)]
    assert found == [
        ("Strategy: by hand", 1.0),
        ("Strategy: with the tool", 2.0),
        ("Strategy: by hand", 1.0),
    ]
    text, number = await read_prompt(env, replace(task, split="heldout"), 0)
    assert "Strategy" not in text
    assert number == 0.0


def test_a_share_is_bare_and_equal_seeds_choose_equally() -> None:
    env = env_of(bare=0.25)
    chosen = [env.choose_strategy("t", sample, seed=1) for sample in range(2000)]
    assert chosen == [env.choose_strategy("t", sample, seed=1) for sample in range(2000)]
    assert chosen != [env.choose_strategy("t", sample, seed=2) for sample in range(2000)]
    assert 0.21 < chosen.count(0) / 2000 < 0.29
    assert set(chosen[::2]) == {0, 1}
    assert all(env_of(bare=1.0).choose_strategy("t", n, seed=1) == 0 for n in range(9))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"strategies": []}, "at least one"),
        ({"bare": 1.5}, r"bare is 1\.5"),
        ({"wording": "x"}, "it lacks {strategy}"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        env_of(**settings)


def test_an_environment_without_strategies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("env: {id: reasoning/ChainSum-v0}\nlearn: {advantage: {name: nudge}}\n")
    config = load_config(path)
    with pytest.raises(ConfigError, match=r"learn\.advantage\.name is nudge, but reasoning/Chain"):
        build.check_reports(config, build.build_env_factory(config, plays=False)())
    build.check_reports(config, env_of())

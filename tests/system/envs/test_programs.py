"""Programs to write: the families on the host, then every one of them in real sandboxes.

Mutants seen to fail here: examples among the hidden tests, an answer right for more than a third of
them, splits by seed alone, grading in a fork of the episode's session, full pay for half a program,
a gap that must be wider to merge, a depth off by one, corners that are no neighbours.
"""

import ast
import copy
import json
from collections import Counter
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.authoring.gold import play_gold
from agentrl.env import call, say
from agentrl.errors import ConfigError
from agentrl.grading import ArtefactFile, ArtefactSet, GradeReport, same
from agentrl.runtime.scope import run_scope
from agentrl.task import SPLITS, Task
from agentrl.testing import check_env
from agentrl_envs import register_envs
from agentrl_envs.families import PROGRAMS, camel
from agentrl_envs.programs import ProgramsEnv, grade
from agentrl_envs.programs.families import FAMILIES
from agentrl_envs.programs.tasks import EXAMPLES, hidden_of
from tests.support.examples import spread_cases

BY_HAND: dict[str, tuple[dict[str, Any], list[Any], Any]] = {
    "text_pipeline": (
        {"steps": [["rotate", 2], ["shift", 1], ["double", "d"], ["upper", 2], ["reverse"]]},
        ["abcz"],
        "cBaDd",
    ),
    "records": (
        {
            "field": ";",
            "pair": "=",
            "comment": "#",
            "combine": "sum",
            "least": -1,
            "fold": True,
            "factor": 3,
        },
        ["a=1;A =2; b=-1;b=-2;c\n#a=9\n\nc= 5"],
        {"a": 9, "b": -3, "c": 15},
    ),
    "brackets": (
        {"pairs": ["()", "[]"], "escape": "!", "deepest": 2, "weight": 10},
        ["([x]!))()"],
        10 * (1 + 2 + 1),
    ),
    "run_lengths": (
        {
            "least": 2,
            "longest": 5,
            "count_first": True,
            "open": "<",
            "between": "-",
            "offset": 1,
        },
        ["aaaaaaabb"],
        "<6-a><3-a><3-b>",
    ),
    "checksum": (
        {
            "weights": [1, 2],
            "modulus": 11,
            "from_right": True,
            "start": 3,
            "alphabet": "0123456789X",
            "skip": "-",
        },
        ["1-0A"],
        "10A" + "3",
    ),
    "numerals": (
        {
            "signs": "AB",
            "target": 10,
            "target_signs": "0123456789",
            "group": 3,
            "mark": ",",
            "add": 1000,
        },
        ["AABAA"],
        "1,004",
    ),
    "list_pipeline": (
        {
            "steps": [["without", 2, 1], ["scale", 2, 1], ["differences"]],
            "end": ["weighted", 1],
        },
        [[4, 7, 6, 10]],
        4 * 1 + 8 * 2,
    ),
    "intervals": (
        {"gap": 1, "least": 2, "low": 0, "high": 20, "gives": "list", "factor": 2},
        [[[8, 9], [-5, 3], [4, 6], [19, 30], [20, 40], [12, 15]]],
        [[0, 12], [24, 30]],
    ),
    "matrix_walk": (
        {
            "walk": "spiral",
            "mirror": True,
            "flip": False,
            "transpose": False,
            "first": 1,
            "stride": 2,
            "factor": 1,
            "modulus": 50,
        },
        [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]],
        [2, 4, 8, 6],
    ),
    "filtered_sum": (
        {
            "conditions": [["remainder", 2, 0], ["divisors", 4], ["digits", 10, 2]],
            "factor": 2,
            "offset": 1,
            "modulus": 1000,
        },
        [12],
        (2 * 6 + 1) + (2 * 8 + 1),
    ),
    "working_days": (
        {"rest": [5, 6], "holidays": [1], "months_off": [], "extra": 1, "back": False},
        ["2024-02-29", 1],
        "2024-03-05",
    ),
    "machine": (
        {
            "words": {"zig": "add", "fop": "multiply", "mur": "jump", "tak": "swap"},
            "modulus": 10,
            "left": 1,
            "right": 2,
            "steps": 20,
        },
        [[["zig", 3], ["mur", 3], ["zig", 5], ["fop", 4], ["tak", 0]]],
        [2, 4],
    ),
    "reachability": (
        {
            "modulus": 5,
            "closed": 0,
            "both_ways": False,
            "steps": 2,
            "factor": 3,
            "wall": 4,
        },
        [[[1, 2, 1], [2, 3, 1], [3, 5, 1], [1, 4, 1], [4, 6, 1], [1, 7, 10]], 1],
        [[1, 0], [2, 3], [3, 6], [4, 3]],
    ),
    "automaton": (
        {"born": [3], "stays": [2, 3], "rounds": 1, "wraps": False, "alive": "#"},
        [["...", "###", "..."]],
        [".#.", ".#.", ".#."],
    ),
}
"""Parameters, arguments and the answer worked out by hand."""


def first(family: str, count: int = 1, **settings: Any) -> list[Task]:
    env = ProgramsEnv(families=family, **settings)
    return list(islice(env.tasks("train", seed=0), count))


def solve_on_host(program: str, arguments: list[Any]) -> Any:
    names: dict[str, Any] = {}
    exec(compile(program, "solution.py", "exec"), names)
    return json.loads(json.dumps(names["solve"](*copy.deepcopy(arguments))))


def as_artefacts(program: str) -> ArtefactSet:
    return ArtefactSet(files=(ArtefactFile("solution.py", program.encode()),))


def by_heart(task: Task) -> str:
    """Return a program that knows the examples and nothing else."""
    program = FAMILIES[task.data["family"]].program(task.data["params"])
    known = [[args, solve_on_host(program, args)] for args in task.data["examples"]]
    return f"KNOWN = {known!r}\ndef solve(*args):\n    return dict_of(args)\n" + (
        "def dict_of(args):\n    return next((v for k, v in KNOWN if k == [*args]), KNOWN[0][1])\n"
    )


def test_the_families_are_those_that_are_registered() -> None:
    assert tuple(FAMILIES) == PROGRAMS
    register_envs()
    ids = {name for name in agentrl.registry if name.startswith("programs/")}
    assert ids == {f"programs/{camel(name)}-v0" for name in PROGRAMS} | {"programs/Mix-v0"}


@pytest.mark.parametrize("name", FAMILIES)
def test_references_are_right_where_it_was_worked_out_by_hand(name: str) -> None:
    params, arguments, wanted = BY_HAND[name]
    family = FAMILIES[name]
    assert same(wanted, json.loads(json.dumps(family.reference(params, *arguments))))
    assert same(wanted, solve_on_host(family.program(params), arguments))
    assert family.describe(params)


@pytest.mark.parametrize(
    ("name", "level"), spread_cases([*product(FAMILIES, range(4))], len(FAMILIES) + 1)
)
def test_tasks_are_what_a_grade_can_rest_on(name: str, level: int) -> None:
    tasks = first(name, 8, level=level)
    assert len(tasks) == 8
    assert tasks == first(name, 8, level=level)
    assert len({json.dumps(task.data["params"], sort_keys=True) for task in tasks}) == 8
    for task in tasks:
        tests = hidden_of(task)
        assert len(tests) == 12
        hidden = [json.dumps([*test.arguments]) for test in tests]
        shown = [json.dumps(example) for example in task.data["examples"]]
        assert len({*hidden, *shown}) == len(hidden) + EXAMPLES
        most_common = Counter(json.dumps(test.wanted) for test in tests).most_common(1)[0][1]
        assert most_common <= 4
        assert any(test.id.startswith("edge-") for test in tests)
        program = FAMILIES[name].program(task.data["params"])
        for test in tests:
            assert same(test.wanted, solve_on_host(program, [*test.arguments]))


@pytest.mark.parametrize("name", FAMILIES)
def test_problems_are_many_and_in_one_split_only(name: str) -> None:
    env = ProgramsEnv(families=name)
    problems = {
        split: {
            json.dumps(task.data["params"], sort_keys=True)
            for task in islice(env.tasks(split, seed=5), 60)
        }
        for split in SPLITS
    }
    assert [len(found) for found in problems.values()] == [60, 60]
    assert not problems["train"] & problems["heldout"]
    other = next(iter(env.tasks("train", seed=6)))
    assert other.id not in {task.id for task in first(name)}


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**32), st.integers(0, 3))
def test_references_answer_whatever_is_drawn(name: str, seed: int, level: int) -> None:
    family, rng = FAMILIES[name], Random(seed)
    params = family.draw(rng, level)
    assert params == json.loads(json.dumps(params))
    for arguments in [*family.edges(params), *(family.inputs(rng, params, level) for _ in "ab")]:
        before = json.dumps(arguments)
        json.dumps(family.reference(params, *arguments), allow_nan=False)
        assert json.dumps(arguments) == before


def test_the_prompt_says_what_is_needed_and_not_what_is_hidden() -> None:
    (task,) = first("checksum", level=2)
    prompt = str(task.prompt)
    assert prompt.startswith("Write the file solution.py")
    assert "solve(code)" in prompt
    assert prompt.count("solve('") == EXAMPLES
    drawn = [t for t in hidden_of(task) if t.id.startswith("drawn")]
    assert drawn
    assert not [t for t in drawn if repr(t.arguments[0]) in prompt]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"families": "recrods"}, "Did you mean 'records'"),
        ({"families": []}, "families is empty"),
        ({"families": "records", "level": 4}, "level must be 0 to 3, got 4"),
        ({"families": "records", "hidden_tests": 1}, "hidden_tests must be 4 to 64"),
        ({"families": "records", "size": 0}, "size must be at least 1"),
        ({"families": "records", "heldout_fraction": 1.0}, "heldout_fraction must be between"),
        ({"families": "records", "max_turns": 0}, "max_turns must be at least 1"),
    ],
)
def test_wrong_settings_say_the_way_out(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ProgramsEnv(**settings)


def test_a_mix_takes_turns() -> None:
    env = ProgramsEnv(families=["records", "machine"], size=5)
    tags = [task.tags[0] for task in env.tasks("train", seed=0)]
    assert tags == ["records", "machine", "records", "machine", "records"]


@pytest.mark.namespaces
@pytest.mark.parametrize("name", spread_cases(list(FAMILIES), 4))
async def test_check_env_of_every_family(name: str) -> None:
    env = agentrl.make(f"programs/{camel(name)}-v0", level=1)
    promises = await check_env(env, episodes=1, tasks=3)
    assert {"gold scores", "doing nothing does not score", "forks do not interfere"} <= {*promises}


@pytest.mark.namespaces
async def test_knowing_the_examples_by_heart_is_not_enough() -> None:
    """Nor is any constant, and a program that does nothing earns nothing."""
    async with run_scope():
        for name in FAMILIES:
            for task in first(name, level=1):
                assert (await grade(task, as_artefacts(by_heart(task)))).score < 1
                idle = await grade(task, as_artefacts("def solve(*args): pass"))
                assert idle.score == 0
                assert (await grade(task, ArtefactSet())).score == 0


@pytest.mark.namespaces
async def test_every_gold_solution_scores() -> None:
    async with run_scope():
        env = ProgramsEnv(families=list(FAMILIES), level=3, partial_credit=False)
        for task in islice(env.tasks("heldout", seed=2), len(FAMILIES)):
            episode = await play_gold(env, task)
            assert episode.reward == 1.0, episode.messages
            assert len(episode.actions) == 2
            shown = ast.literal_eval(episode.messages[-2].text)
            assert len(shown) == EXAMPLES
        await env.close()


@pytest.mark.namespaces
async def test_the_step_that_pays_says_what_was_graded(tmp_path: Path) -> None:
    env = ProgramsEnv(families="numerals")
    (task,) = first("numerals")
    try:
        await env.reset(options={"task": task})
        code = "open('solution.py', 'w').write('def solve(numeral): return 1')"
        _, _, ended, _, info = await env.step(call("python", code=code))
        assert not ended
        assert "grade" not in info
        _, reward, terminated, truncated, info = await env.step(say("done"))
    finally:
        await env.close()
    assert (reward, terminated, truncated) == (0.0, True, False)
    graded, artefacts = info["grade"], info["artefacts"]
    assert isinstance(graded, GradeReport)
    assert {test.status for test in graded.tests} == {"wrong"}
    stored = ArtefactSet.load(artefacts.store(tmp_path))
    assert await grade(task, stored) == graded


@pytest.mark.namespaces
async def test_credit_is_partial_or_not() -> None:
    (task,) = first("numerals")
    gold = FAMILIES["numerals"].program(task.data["params"])
    half = f"{gold}\nright = solve\ndef solve(n): return right(n) if len(n) % 2 else None\n"
    write = call("python", code=f"open('solution.py', 'w').write({half!r})")
    earned: list[float] = []
    for partial_credit in (True, False):
        env = ProgramsEnv(families="numerals", partial_credit=partial_credit)
        await env.reset(options={"task": task})
        await env.step(write)
        _, reward, _, _, info = await env.step(say("done"))
        earned.append(reward)
        assert 0 < info["grade"].score < 1
        await env.close()
    assert earned == [info["grade"].score, 0.0]


@pytest.mark.namespaces
async def test_the_last_turn_is_graded_as_it_is() -> None:
    env = ProgramsEnv(families="machine", max_turns=2)
    (task,) = first("machine")
    try:
        opening, _ = await env.reset(options={"task": task})
        gold = env.gold(task, opening.messages)
        _, reward, *ends, _ = await env.step(gold)
        assert (reward, ends) == (0.0, [False, False])
        reply, reward, *ends, info = await env.step(call("python", code="1 + 1"))
        assert (reward, ends) == (1.0, [False, True])
        assert reply.messages[0].text == "2"
        assert info["grade"].score == 1.0
        with pytest.raises(RuntimeError, match="has ended"):
            await env.step(say("more"))
    finally:
        await env.close()


@pytest.mark.namespaces
async def test_what_the_episode_broke_is_not_what_grades() -> None:
    """The interpreter can load no file any more. A right file scores all the same, a link not."""
    poison = (
        "import importlib.util, json, os\n"
        "importlib.util.spec_from_file_location = None\n"
        "json.load = None\n"
        "os.mkdir('json'); os.symlink('/etc/passwd', 'sitecustomize.py')\n"
    )
    check = call(
        "python", code="import importlib.util\nimportlib.util.spec_from_file_location is None"
    )
    async with run_scope():
        env = ProgramsEnv(families="records")
        (task,) = first("records")
        opening, _ = await env.reset(options={"task": task})
        await env.step(env.gold(task, opening.messages))
        await env.step(call("python", code=poison))
        assert (await env.step(check))[0].messages[0].text == "True"
        assert (await env.step(say("done")))[1] == 1.0
        await env.reset(options={"task": task})
        link = "import os\nos.symlink('/etc/passwd', 'solution.py')"
        await env.step(call("python", code=link))
        _, reward, _, _, info = await env.step(say("done"))
        assert reward == 0.0
        assert "link" in info["grade"].tests[0].error
        await env.close()

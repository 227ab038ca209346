"""The code environment: scripted players that solve a problem from its text, and real sandboxes.

Mutants seen to fail here: the player answering without the tool's message, `reverse` always False
in the sorting recipes, `//` left as `/`, the base of the source and the target swapped.
"""

import ast
import contextlib
import io
from itertools import islice
from typing import Any

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.env import call, say
from agentrl.errors import ConfigError
from agentrl.testing import check_env
from agentrl_envs.code import CodeEnv
from agentrl_envs.code.recipes import RECIPES, code_for
from agentrl_envs.families import FAMILIES
from agentrl_envs.reasoning.family import ReasoningFamily, top_level

QUICKSTART = {"chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "basic_arithmetic": {"format_style": "natural", "whitespace": "random"},
    "chain_sum": {"allow_negation": True},
    "decimal_chain_sum": {"allow_negation": True},
    "products": {"max_terms": 4, "allow_negation": True},
    "gcd": {"max_numbers": 5},
    "lcm": {"max_numbers": 4},
    "word_sorting": {"transformation": "uppercase"},
}


def run(code: str) -> str:
    """Return what a notebook would show: prints, then the last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                print(repr(value))  # noqa: T201 - into the buffer
    return shown.getvalue().strip()


def check_recipe(family: ReasoningFamily, count: int) -> None:
    for _, entry in islice(family.entries(11), count):
        code = code_for(family.name, entry["question"])
        answer = run(code)
        assert family.score(answer, entry) == 1.0, (entry["question"], code, answer)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_solve_their_family(name: str) -> None:
    top = top_level(name)
    assert top is not None
    check_recipe(ReasoningFamily(name), 100)
    for level in (0, top):
        check_recipe(ReasoningFamily(name, difficulty=level), 30 if name == "count_primes" else 100)


@pytest.mark.parametrize("name", VARIANTS)
def test_recipes_solve_variants(name: str) -> None:
    check_recipe(ReasoningFamily(name, VARIANTS[name]), 100)


def test_there_are_recipes_for_known_families() -> None:
    assert len(RECIPES) >= 10
    assert set(FAMILIES).issuperset(RECIPES)


def test_programs_are_short() -> None:
    question = "State the final answer to the following arithmetic problem: 743 + 475 ="
    assert code_for("chain_sum", question) == "743 + 475"
    word = "Spell this word backward (example: sun -> nus): canroyer"
    assert code_for("spell_backward", word) == "print('canroyer'[::-1])"


def test_no_recipe_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no scripted player for the task family 'sudoku'"):
        code_for("sudoku", "?")
    with pytest.raises(ConfigError, match="cannot parse the question 'what'"):
        code_for("gcd", "what")


async def test_the_player_reads_the_tool() -> None:
    env = CodeEnv(families=QUICKSTART)
    (task,) = islice(env.tasks("train", seed=0), 1)
    first = env.gold(task, task.messages)
    assert [c.name for c in first.tool_calls] == ["python"]
    (asked,) = first.tool_calls
    expression = str(task.prompt).split(": ")[1].removesuffix(" =")
    assert asked.arguments == {"code": expression}
    from agentrl.message import Message

    told = Message("tool", "12345\n", tool_call_id="call_0", name="python")
    assert env.gold(task, (*task.messages, first.message, told)).text == "12345"


@pytest.mark.namespaces
async def test_check_env_of_the_quickstart() -> None:
    promises = await check_env(CodeEnv(families=QUICKSTART, system=""), episodes=1)
    assert {"gold scores", "doing nothing does not score", "forks do not interfere"} <= {*promises}


@pytest.mark.namespaces
async def test_players_in_the_sandbox() -> None:
    env = CodeEnv(families=["basic_arithmetic", "prime_factorization", "spell_backward"])
    try:
        for task in islice(env.tasks("heldout", seed=4), 3):
            episode = await play_gold(env, task)
            assert episode.reward == 1.0, episode.messages
            assert len(episode.actions) == 2
            assert episode.actions[-1].text.startswith("<answer>")
    finally:
        await env.close()


@pytest.mark.namespaces
async def test_names_live_on_and_fork() -> None:
    env = CodeEnv(families="gcd")
    fork: CodeEnv | None = None
    try:
        (task,) = islice(env.tasks("train", seed=0), 1)
        await env.reset(seed=0, options={"task": task})
        await env.step(call("python", code="x = 20"))
        fork = await env.fork()
        await fork.step(call("python", code="x = 0"))
        reply, _, _, _, _ = await env.step(call("python", code="x + 1"))
        assert reply.messages[0].text.strip() == "21"
        _, reward, terminated, _, _ = await fork.step(say(str(task.answer)))
        assert (reward, terminated) == (1.0, True)
    finally:
        await env.close()
        if fork is not None:
            await fork.close()

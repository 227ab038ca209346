"""Who is to blame for a program's end: the policy, whose play is an outcome, or anything else.

The last lines of tracebacks were recorded from programs of these packages as `BlackBoxEnv` played
them, with a policy that called wrongly, called on and on, or said nothing that could be read.
"""

import asyncio
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.rollout.episode import EpisodeRunner
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Outcome, Tree
from agentrl_envs.blackbox import BlackBoxEnv, ProgramEndpoint
from agentrl_envs.blackbox.policy_errors import (
    KNOWN,
    ProgramEnded,
    check_errors,
    find_last_error,
    find_policy_error,
    name_end,
)
from benchmarks.letters import LetterChat
from tests.support.said_turns import saying

SOON_S = 120.0
QUESTION = Task(prompt="What is 2 * 21?", answer="42", id="q")

FRAME = """\
Traceback (most recent call last):
  File "/app/agent.py", line 15, in <module>
    result = agent.run("What is 2 * 21?")
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
OUTCOMES = {
    # openai-agents 0.24.0
    "too many turns": "agents.exceptions.MaxTurnsExceeded: Max turns (2) exceeded",
    "unknown tool": "agents.exceptions.ModelBehaviorError: Tool halve not found in agent a",
    "no JSON": "agents.exceptions.ModelBehaviorError: Invalid JSON when parsing model output",
    # pydantic-ai-slim 2.68.0
    "no output": "pydantic_ai.exceptions.UnexpectedModelBehavior: Exceeded maximum output retries "
    "(1)",
    "wrong arguments": "pydantic_ai.exceptions.UnexpectedModelBehavior: Tool 'double' exceeded max "
    "retries count of 1. Consider raising the retry limit, or see the docs on tool retries",
    "too many requests": "pydantic_ai.exceptions.UsageLimitExceeded: The next request would exceed "
    "the request_limit of 2. Consider raising the limit, or see the docs on usage limits",
    # langgraph with langchain-openai 1.7.3
    "too many steps": "langgraph.errors.GraphRecursionError: Recursion limit of 3 reached without "
    "hitting a stop condition. You can increase the limit by setting the `recursion_limit` config "
    "key.\nFor troubleshooting, visit: https://docs.langchain.com/oss/python/langgraph",
    "no JSON in words": "langchain_core.exceptions.OutputParserException: Invalid json output: no "
    "idea\nFor troubleshooting, visit: https://docs.langchain.com/oss/python/langchain",
}
FAILURES = {
    "own error": "KeyError: 'lost'",
    "own exit": "SystemExit: 2",
    "smolagents 1.26.0, the model's server": "smolagents.utils.AgentGenerationError: Error while "
    "generating output:\n'NoneType' object has no attribute 'prompt_tokens'",
    "pydantic-ai, the model's server": "pydantic_ai.exceptions.UnexpectedModelBehavior: Invalid "
    "response from OpenAI chat completions endpoint: 1 validation error",
    "openai, the connection": "openai.APIConnectionError: Connection error.",
    "openai, a deadline": "openai.APITimeoutError: Request timed out.",
    "agents, used wrongly": "agents.exceptions.UserError: no tools",
    "another class of the same name": "mine.agents.exceptions.MaxTurnsExceeded: no",
    "a name that goes on": "agents.exceptions.MaxTurnsExceededTwice: no",
}


def ended(stderr: str, code: int = 1) -> ProgramEnded:
    return ProgramEnded("ended", lines=name_end(code, stderr))


@pytest.mark.parametrize("end", OUTCOMES)
def test_what_the_policy_brought_about_is_an_outcome(end: str) -> None:
    first = OUTCOMES[end].splitlines()[0]
    cause = f"{FRAME}KeyError: 'answer'\n\nThe above exception was the direct cause of this:\n\n"
    for stderr in (FRAME, f"a warning: x.py:3\n{FRAME}", cause + FRAME, f"{FRAME[-140:]}"):
        assert find_policy_error(ended(stderr + OUTCOMES[end]), KNOWN) == (first, 0.0)


@pytest.mark.parametrize("end", FAILURES)
def test_what_it_did_not_is_none(end: str) -> None:
    hidden = f"{FRAME}agents.exceptions.MaxTurnsExceeded: 2\n\nDuring handling of it:\n\n"
    for stderr in (FRAME, hidden + FRAME):
        assert find_policy_error(ended(stderr + FAILURES[end]), KNOWN) is None


def test_an_end_without_a_traceback_is_a_failure() -> None:
    for stderr in ("", "Killed", "agents.exceptions.MaxTurnsExceeded: 2", "Traceback", FRAME):
        assert find_policy_error(ended(stderr, code=-9), KNOWN) is None


@given(st.text(max_size=200), st.booleans())
def test_the_last_error_is_what_python_says_last(message: str, caused: bool) -> None:
    """Whatever the message says, but for one that draws frames of a traceback itself."""
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ModuleNotFoundError(message) from (first if caused else None)
    except ModuleNotFoundError as error:
        stderr = "".join(traceback.format_exception(error))
    line = find_last_error(stderr)
    assert line is not None
    assert line.startswith("ModuleNotFoundError")


@given(st.text(max_size=2000))
def test_whatever_a_program_says_is_read(stderr: str) -> None:
    find_policy_error(ended(stderr), KNOWN)


def test_what_a_config_may_say() -> None:
    assert check_errors({"3": -1.0, "mine.Refused": 0.5, "mine.Refused: no": 0}).keys() > {"3"}
    with pytest.raises(ConfigError, match=r"names 'not a name'; a key must be an exception's"):
        check_errors({"not a name": 0.0})
    with pytest.raises(ConfigError, match=r"assigns mine\.Refused the reward nan, but a reward"):
        check_errors({"mine.Refused": float("nan")})
    with pytest.raises(ConfigError, match=r'names 3; .* write an exit code in quotes: "3"'):
        check_errors({3: 0.0})  # pyright: ignore[reportArgumentType]
    for reward in ("0", None, 10**400):
        with pytest.raises(ConfigError, match=r"assigns mine\.Refused the reward .*, but a reward"):
            check_errors({"mine.Refused": reward})  # pyright: ignore[reportArgumentType]
    known = check_errors({"mine.Refused": -1.0, "mine.Refused: politely": 0.25, "3": -0.5})
    assert find_policy_error(ended(f"{FRAME}mine.Refused"), known) == ("mine.Refused", -1.0)
    polite = "mine.Refused: politely, twice"
    assert find_policy_error(ended(FRAME + polite), known) == (polite, 0.25)
    assert find_policy_error(ended("no traceback", code=3), known) == ("3", -0.5)


# -- played ---------------------------------------------------------------------------------------

ASKS = """
import sys, openai
def ask():
    asked = [{"role": "user", "content": "x"}]
    openai.OpenAI().chat.completions.create(model="", messages=asked)
class MaxTurnsExceeded(Exception):
    __module__ = "agents.exceptions"
"""


class Refused(Exception):
    """An error of a program's own."""


class RefusedTwice(Refused):
    """One that is a kind of it."""


async def refusing(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        await client.chat.completions.create(model="", messages=[{"role": "user", "content": "x"}])
    raise RefusedTwice("no")


async def played(**program: Any) -> Outcome:
    async def is_right(task: Task, result: Any) -> float:
        return float(str(result).strip() == task.answer)

    episode = EpisodeRunner(
        env=BlackBoxEnv(tasks=lambda split, seed: [QUESTION], score=is_right, **program),
        engine=ScriptedEngine(saying("42")),
        chat=LetterChat(),
        tree=Tree(QUESTION),
        sample=0,
        seed=1,
    )
    return (await asyncio.wait_for(episode.run(), SOON_S)).outcome


@pytest.mark.parametrize(
    ("end", "errors", "outcome"),
    [
        ("ask(); raise MaxTurnsExceeded(10)", {}, Finished(0.0)),
        ("ask(); raise MaxTurnsExceeded(10)", {"agents.exceptions.MaxTurnsExceeded": -1.0}, -1.0),
        ("ask(); sys.exit(3)", {"3": 0.25}, 0.25),
        ("ask(); sys.exit(3)", {}, "ended with exit code 3"),
        ("ask(); raise KeyError('lost')", {}, "KeyError: 'lost'"),
        ("raise MaxTurnsExceeded('nothing was asked')", {}, "nothing was asked"),
        ("ask(); import os; os.kill(os.getpid(), 9)", {}, "exit code -9"),
    ],
)
async def test_a_command_ends_by_the_policys_doing_or_by_its_own(
    end: str, errors: Mapping[str, float], outcome: Finished | float | str
) -> None:
    got = await played(command=[sys.executable, "-c", ASKS + end], policy_errors=errors)
    if isinstance(outcome, str):
        assert isinstance(got, Failed)
        assert got.kind == "env"
        assert outcome in got.error
    else:
        assert got == (Finished(outcome) if isinstance(outcome, float) else outcome)


async def test_a_function_ends_by_the_policys_doing_too() -> None:
    assert isinstance(await played(agent=refusing), Failed)
    errors = {f"{__name__}.Refused": -1.0}
    assert await played(agent=refusing, policy_errors=errors) == Finished(-1.0)

"""An agent that does nothing, or the same whatever it is asked, is not paid.

It says nothing, says a constant text, waits, or writes a function without looking at its task.
Families of reasoning-gym are in `test_pays_for_nothing.py`; rates here are of our own families.

Mutants seen to fail here: words end a page of MiniWoB++ with its raw reward, an empty answer is
that of a question, a program without a file passes its tests, silence has the right form for an
expert's turn, a program that the policy brought to an end is paid.
"""

import copy
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

import agentrl
from agentrl.env import Action, Env, call, say
from agentrl.grading.equality import same
from agentrl.task import Task
from agentrl_envs.blackbox import BlackBoxEnv, ProgramEndpoint
from agentrl_envs.families import MINIWOB, PROGRAMS
from agentrl_envs.programs import ProgramsEnv
from agentrl_envs.programs.tasks import hidden_of
from agentrl_envs.recorded import RecordedEnv
from agentrl_envs.recorded.env import Scale
from agentrl_envs.retrieval import WikiEnv
from agentrl_envs.visual import SeeButtonEnv
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.miniwob import MiniWobPack, task_of
from agentrl_envs.web.sites import shop_pack, wiki_pack
from tests.support.examples import spread_cases
from tests.support.recordings import a_recording, expert_actions

SAID = (
    "",
    " ",
    "0",
    "1",
    "yes",
    "no",
    "done",
    "[]",
    "{}",
    "None",
    "I do not know.",
    "<answer></answer>",
)
PROGRAM_GUESS = 0.34
"""Share of hidden tests that a function without a look at its task passes: a yes or a no is right
in a third of the calls of some families. It passes all of them for no task."""
BUTTON_GUESS = 0.2
"""Share of screens on which one place is within the button that is named: it covers an eighth."""


async def paid(env: Env, task: Task, actions: Sequence[Action], *, most: int = 8) -> float:
    """Return what these actions earn, the last one again and again until the episode ends."""
    await env.reset(seed=0, options={"task": task})
    total = 0.0
    for number in range(most):
        _, reward, terminated, truncated, _ = await env.step(actions[min(number, len(actions) - 1)])
        total += reward
        if terminated or truncated:
            break
    return total


async def test_questions_are_not_answered_by_saying_something() -> None:
    for scoring, most in (("exact", 0.05), ("f1", 0.2)):
        env = WikiEnv(scoring=scoring)  # pyright: ignore[reportArgumentType]
        tasks = list(islice(env.tasks("train"), 40))
        frequent = [str(task.answer) for task in islice(env.tasks("train", seed=9), 6)]
        for text in (*SAID, *frequent):
            assert sum([await paid(env, task, [say(text)]) for task in tasks]) <= most * 40
        copied = [await paid(env, task, [say(str(task.prompt))]) for task in tasks]
        assert sum(copied) <= most * 40
        await env.close()


def constant(value: object) -> Callable[..., object]:
    return lambda *_: value


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    constant(None),
    *map(constant, (0, 1, -1, True, False, "", "0", [], {}, [0])),
    lambda *arguments: arguments[0],
    lambda *arguments: arguments[-1],
    lambda *arguments: len(str(arguments[0])),
)  # fmt: skip
"""What a function may return without its task."""


@pytest.mark.parametrize("family", PROGRAMS)
def test_programs_that_do_nothing_pass_no_task(family: str) -> None:
    tasks = list(islice(ProgramsEnv(families=family).tasks("train"), 12))
    for function in FUNCTIONS:
        shares: list[float] = []
        for task in tasks:
            tests = hidden_of(task)
            given = [function(*copy.deepcopy(list(test.arguments))) for test in tests]
            passed = [same(test.wanted, value) for test, value in zip(tests, given, strict=True)]
            assert not all(passed), task.prompt
            shares.append(sum(passed) / len(passed))
        assert sum(shares) / len(shares) <= PROGRAM_GUESS


@pytest.mark.namespaces
async def test_a_program_that_is_not_written_is_worth_nothing() -> None:
    env = ProgramsEnv(families=PROGRAMS[0])
    (task,) = islice(env.tasks("train"), 1)
    for text in ("", "It is written.", "<answer>1</answer>"):
        assert await paid(env, task, [say(text)]) == 0.0
    await env.close()


async def test_a_screen_is_not_clicked_by_chance() -> None:
    env = SeeButtonEnv()
    tasks = list(islice(env.tasks("train"), 200))
    for text in (*SAID, "0 0", "56 56", "30 30", "28 84", "84 28"):
        assert sum([await paid(env, task, [say(text)]) for task in tasks]) <= BUTTON_GUESS * 200


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1"])
async def test_games_are_not_won_by_talk(name: str) -> None:
    env = agentrl.make(f"gymnasium:{name}")
    for task in islice(env.tasks("train"), 3):
        for text in (*SAID[:6], "I do not know."):
            if not re.fullmatch(r"\d", text):
                assert await paid(env, task, [say(text)]) <= 0.0
    await env.close()


# -- experts that are followed, and programs of others ---------------------------------------------

IDLE_SHARE = {"code": 0.27, "paper": 0.19}
"""Share of what the expert earns that any readable text earns by its form, and in the last turn,
where the expert speaks too, by its kind."""


@pytest.mark.parametrize("scale", IDLE_SHARE)
async def test_an_expert_is_not_followed_by_saying_something(tmp_path: Path, scale: Scale) -> None:
    file = tmp_path / "doors.jsonl"
    file.write_text("\n".join(json.dumps(a_recording(f"open door {n}")) for n in range(9)))
    env = RecordedEnv(recordings=file, reward=scale, patches=-1, heldout_fraction=0.0)
    tasks = list(env.tasks("train"))
    most = IDLE_SHARE[scale] * await paid(env, tasks[0], expert_actions())
    assert most == pytest.approx(IDLE_SHARE[scale] * 5)
    for task in tasks:
        for text in ("", " ", "<think>nothing to do</think>"):
            assert await paid(env, task, [say(text)]) == 0.0
        for text in (*SAID, "now 0", task.messages[-1].text):
            assert await paid(env, task, [say(text)]) <= most
    await env.close()


async def asks_once(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        said = await client.chat.completions.create(
            model=endpoint.model, messages=[{"role": "user", "content": task.messages[-1].text}]
        )
        return said.choices[0].message.content or ""


async def needs_words(task: Task, endpoint: ProgramEndpoint) -> str:
    if not (said := await asks_once(task, endpoint)).strip():
        raise PolicyDidNothing(task.id)
    return said


class PolicyDidNothing(Exception):
    """What a program says of a policy that gives it nothing to go on with."""


@pytest.mark.parametrize("agent", [asks_once, needs_words])
async def test_a_program_is_not_paid_for_a_policy_that_does_nothing(agent: Any) -> None:
    tasks = [Task(prompt=f"What is {n} * 21?", answer=f"{n * 21}", id=f"{n}") for n in (2, 3)]
    env = BlackBoxEnv(
        tasks=lambda split, seed: tasks,
        score=lambda task, result: float(str(result).strip() == task.answer),
        agent=agent,
        policy_errors={f"{__name__}.PolicyDidNothing": 0.0},
    )
    for task in tasks:
        assert await paid(env, task, [say(str(task.answer))]) == 1.0
        for text in (*SAID, task.messages[-1].text):
            assert await paid(env, task, [say(text)]) == 0.0
        assert await paid(env, task, [Action("", malformed=("no call",))]) == 0.0
    await env.close()


# -- in a browser ---------------------------------------------------------------------------------

BROWSER = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[BrowserPool]:
    pool = await BrowserPool.open(BrowserSettings(call_s=60))
    yield pool
    await pool.close()


class TestPages:
    """Pages of MiniWoB++ and our own sites."""

    pytestmark = BROWSER

    @pytest.mark.parametrize("family", spread_cases(MINIWOB, 10))
    async def test_a_page_does_not_pay_for_waiting_or_words(
        self, browser: BrowserPool, family: str
    ) -> None:
        env = WebEnv(pack=MiniWobPack(families=family), browser=browser, screen=(400, 300))
        wait = call("wait", milliseconds=300)
        for actions in ([wait, wait, say("done")], [call("answer", text="0"), say("")]):
            assert await paid(env, task_of(family, 11), actions, most=4) <= 0
        await env.close()

    @pytest.mark.parametrize("pack", [shop_pack, wiki_pack])
    async def test_sites_do_not_pay_for_words(self, browser: BrowserPool, pack: Any) -> None:
        env = WebEnv(pack=pack(), browser=browser)
        tasks = list(islice(env.tasks("train"), 12))
        for text in ("", "0", "yes", "none"):
            assert sum([await paid(env, task, [say(text)]) for task in tasks]) == 0.0
        await env.close()

"""Environments of Gymnasium in processes of another interpreter.

Mutants seen caught: an open file that does not keep a process from being copied; a process ended
without its environment's close; a warning for every close that hangs; an answer of any length; a
fault of a function taken for an answer; a reward that is not handed on.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.authoring.env_contract import CLOSE_S
from agentrl.env import Step, say
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, WordingError
from agentrl.registry import make
from agentrl.runtime.scope import run_scope
from agentrl.task import Task
from agentrl_envs.adapters import gymnasium as adapter
from agentrl_envs.adapters.gymnasium import HostedGymnasiumEnv
from tests.support.foreign_packages import python_of
from tests.support.processes import runs

SUPPORT = str(Path(__file__).parents[3] / "support")
START_S = 250.0
pytestmark = pytest.mark.timeout(1500)
WORDS = {"describe": "gymnasium_worlds:tell", "act": "gymnasium_worlds:read"}


def slot(id: str = "gymnasium:gymnasium_worlds:Slot", **settings: Any) -> HostedGymnasiumEnv:
    settings = {"path": [SUPPORT], "timeout_s": 60.0, "start_timeout_s": START_S, **settings}
    env = make(id, python=sys.executable, **settings)
    assert isinstance(env, HostedGymnasiumEnv)
    return env


async def played(env: Any, *texts: str) -> list[Step]:
    return [await env.step(say(text)) for text in texts]


def texts(steps: list[Step]) -> list[str]:
    return [step[0].messages[0].text for step in steps]


async def test_an_environment_is_told_and_played_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOSED_IN", str(tmp_path))
    async with run_scope():
        env = slot(instructions="Reach 20.", pass_env=["CLOSED_IN"], start=2, **WORDS)
        task = next(iter(env.tasks("train")))
        assert task.messages[0].text == "Reach 20."
        opening, info = await env.reset(options={"task": task})
        assert opening.tools == ()
        assert opening.messages[-1].text == "Reach 20.\n\ntotal 2"
        assert opening.messages[-1].images[0].data.startswith(b"\x89PNG")
        assert info["pid"] != os.getpid()
        assert len(info["drawn"]) == 2
        assert "env" not in info
        steps = await played(env, "1", "a lot", "10")
        assert texts(steps)[0] == "total 3"
        assert "'a lot' is not a valid action. could not convert" in texts(steps)[1]
        assert "[10.0] is not in Box" in texts(steps)[2]
        assert [step[1:4] for step in steps] == [(1.0, False, False)] + [(0.0, False, False)] * 2
        assert steps[0][4] == {"whole": 2}, "a text that is no Unicode is left out"
        refusal = await env.step(agentrl.call("raise", by=1))
        assert (refusal[0].messages[0].role, refusal[1]) == ("tool", 0.0)
        # A copy goes on alone, and what is printed is no answer.
        copied = await env.fork()
        assert texts(await played(copied, "3", "9")) == ["total 6", "total 15"]
        assert texts(await played(env, "-2")) == ["total 1"]
        assert (await played(copied, "5"))[0][1:4] == (5.0, True, False)
        with pytest.raises(RuntimeError, match="no episode is running"):
            await copied.step(say("1"))
        await copied.close()
        # An open file would be one of both.
        await played(env, "7")
        with pytest.raises(ForkUnsupported, match=r"forking: it holds /tmp.* open"):
            await env.fork()
        assert texts(await played(env, "1")) == ["total 9"]
        await env.close()
        assert f"closed-{info['pid']}" in os.listdir(tmp_path)


async def test_faults_are_failures_of_the_episode_that_has_them() -> None:
    async with run_scope():
        given = {"task": Task(prompt="Reach 20.", seed=1)}
        other = slot(**WORDS)
        await other.reset(options=given)
        env = slot(**WORDS)
        await env.reset(options=given)
        with pytest.raises(EnvError, match=r"the reward of task .* is nan"):
            await env.step(say("6"))
        with pytest.raises(WordingError, match=r"gymnasium_worlds:tell: LookupError: five") as told:
            await env.step(say("5"))
        assert told.value.kind == "wording"
        await env.reset(options=given)
        with pytest.raises(EnvError, match=r"the answer has 2\d{7} bytes, but the limit is"):
            await env.step(say("4"))
        await env.reset(options=given)
        env._episode.timeout_s = 1.0  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(EnvError, match=r"step took more than 1 s"):
            await env.step(say("8"))
        await env.close()
        assert texts(await played(other, "1")) == ["total 1"]
        await other.close()


@pytest.mark.nightly
def test_a_close_that_hangs_keeps_no_listing_waiting() -> None:
    env = slot("gymnasium:gymnasium_worlds:Stuck", start_timeout_s=60.0, **WORDS)
    assert next(iter(env.tasks("train"))).messages


async def test_a_close_that_hangs_costs_its_process_and_no_reward(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert adapter.CLOSE_S < CLOSE_S, "an episode fails before its environment is ended"
    monkeypatch.setattr(adapter, "CLOSE_S", 0.5)
    pids: list[int] = []
    async with run_scope():
        for _ in range(2):
            env = slot(start=13, **WORDS)
            task = next(iter(env.tasks("train")))
            _, info = await env.reset(options={"task": task})
            (step,) = await played(env, "9")
            assert step[1:3] == (9.0, True)
            await env.close()
            pids.append(info["pid"])
    assert not any(map(runs, pids))
    (warning,) = caplog.messages
    assert warning.startswith("gymnasium: close took more than 0.5 s, so its process was ended")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"act": WORDS["act"]},
            r"the observations of this environment are Dict.*describe: module:",
        ),
        ({**WORDS, "describe": "nowhere:tell"}, "No module named 'nowhere'"),
        ({**WORDS, "describe": "gymnasium_worlds:say"}, "has no attribute 'say'"),
        ({**WORDS, "finish": 3}, "unexpected keyword argument 'finish'"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_begins(
    settings: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        next(iter(slot(**settings).tasks("train")))


async def test_gymnasiums_own_are_told_as_in_this_process() -> None:
    task = Task(prompt="Walk.", seed=3)
    openings: list[str] = []
    async with run_scope():
        for env in (make("gymnasium:Taxi-v4"), slot("gymnasium:Taxi-v4")):
            prompt = next(iter(env.tasks("train"))).messages[0].text
            opening, _ = await env.reset(options={"task": task})
            (step,) = await played(env, "pickup")
            openings.append(f"{prompt} {opening.messages[0].text} {texts([step])} {step[1:4]}")
            await env.close()
    assert openings[0] == openings[1]


@pytest.fixture
def browsers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Name the pages of BrowserGym, and a folder where its Playwright finds this browser."""
    from agentrl_envs.web.browser.chromium import find

    chrome = tmp_path / "chromium-1117" / "chrome-linux" / "chrome"
    chrome.parent.mkdir(parents=True)
    chrome.symlink_to(find())
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setenv("MINIWOB_URL", f"file://{files('miniwob')}/html/miniwob/")


@pytest.mark.slow
@pytest.mark.browsergym
@pytest.mark.chromium
@pytest.mark.usefixtures("browsers")
async def test_miniwobs_click_task_of_browsergym() -> None:
    async with run_scope():
        env = make(
            "gymnasium:browsergym/miniwob.click-test",
            python=python_of("browsergym"),
            imports=["browsergym.miniwob"],
            pass_env=["MINIWOB_URL", "PLAYWRIGHT_BROWSERS_PATH"],
            timeout_s=START_S,
            start_timeout_s=START_S,
        )
        task = next(iter(env.tasks("train")))
        assert "click(bid: str" in task.messages[0].text
        opening, _ = await env.reset(options={"task": task})
        page = opening.messages[-1].text
        assert "\n\nGoal: Click the button.\nurl: file://" in page
        button = re.search(r"\[(\w+)\] button 'Click Me!'", page)
        assert button is not None
        steps = await played(
            env,
            "click('999')",
            "I do not know.",
            # Would pay: the address runs what the page itself runs when the task is solved.
            "goto('java\\tscript:core.endEpisode(1,false)')",
        )
        wrong, silent, cheat = texts(steps)
        assert "Error of the last action: ValueError: Could not find element" in wrong
        assert "Error of the last action: ValueError: Received an empty action." in silent
        assert "goto opens http and https addresses only, not 'java" in cheat
        assert [step[1:4] for step in steps] == [(0.0, False, False)] * 3
        click = f"There it is. click('{button[1]}')"
        (right,) = await played(env, click)
        while not right[2]:  # BrowserGym gives a click half a second, too little on a busy machine
            assert "TimeoutError" in right[0].messages[0].text
            (right,) = await played(env, click)
        assert right[1:4] == (1.0, True, False)
        with pytest.raises(ForkUnsupported, match="cannot be copied by forking"):
            await env.fork()
        await env.close()

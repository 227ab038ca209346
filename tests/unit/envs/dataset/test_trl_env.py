"""Classes made for TRL's environment_factory are played as TRL plays them.

Mutants seen caught: an instance kept for the next episode; an exception of a tool that fails the
episode; what reset returns shown as a message of its own; a row that an instance changes and the
next episode sees.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import call, say
from agentrl.errors import ConfigError, EnvError
from agentrl.registry import make
from agentrl.testing import check_env
from agentrl_envs.dataset.trl_env import TrlEnv, read_content
from tests.support.counter_factory import IncrementEnv, UnpaidEnv, reward_length

SUPPORT = "tests.support.counter_factory"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    chats = [
        {
            "prompt": [{"role": "user", "content": f"Count to {start + 5}, number {start}."}],
            "start": start,
            "target": start + 5,
            "seen": [],
        }
        for start in range(40)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in chats))
    return str(file)


def counter(rows: str, **settings: Any) -> TrlEnv:
    return TrlEnv(factory=IncrementEnv, path=rows, **settings)


async def test_an_episode_is_played_as_trl_plays_it(rows: str) -> None:
    env = make(f"trl:{SUPPORT}:IncrementEnv", path=rows, system="Be short.")
    task = next(task for task in env.tasks("train") if task.data["row"]["start"] == 3)
    opening, _ = await env.reset(options={"task": task})
    assert [(m.role, m.text) for m in opening.messages] == [
        ("system", "Be short."),
        ("user", "Count to 8, number 3. The counter is 3."),
    ]
    assert opening.tools is not None
    names = [schema["function"]["name"] for schema in opening.tools]
    assert names == ["increment", "read"]
    described = opening.tools[0]["function"]["parameters"]["properties"]["step"]
    assert described == {"type": "integer", "description": "Value to add to the counter."}
    for action, answer in (
        (call("increment", step=4), "7"),
        (call("increment", step="1"), "8"),
        (call("read"), "{'counter': 8}"),
        (call("increment", step=-1), "{'error': 'step must not be negative'}"),
        (call("incremnt", step=1), "{'error': 'Tool incremnt not found.'}"),
    ):
        observation, reward, terminated, truncated, info = await env.step(action)
        assert [m.text for m in observation.messages] == [answer]
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert (info["tool_results"][0].status == "error") == ("error" in answer)
    observation, *_ = await env.step(call("increment", stepp=1))
    assert "unexpected keyword argument 'stepp'" in observation.messages[0].text
    _, reward, terminated, truncated, info = await env.step(say("done"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["reward_components"] == {"IncrementEnv": 1.0}
    with pytest.raises(RuntimeError, match="no episode is running"):
        await env.step(say("more"))
    await env.close()


async def test_rewards_beside_its_own(rows: str) -> None:
    weighted = {"name": f"trl:{SUPPORT}:reward_length", "weight": 2}
    env = counter(rows, reward=[weighted], max_turns=1)
    await env.reset(seed=1)
    _, reward, *ends, info = await env.step(say("12345"))
    assert ends == [True, False]
    assert info["reward_components"] == {"IncrementEnv": 0.0, "reward_length": 1.0}
    assert reward == 1.0
    await env.reset(seed=1)
    _, _, *ends, _ = await env.step(call("increment", step=5))
    assert ends == [False, True]
    await env.close()


async def test_reward_functions_see_the_instance(rows: str) -> None:
    looks = f"trl:{SUPPORT}:reward_looks"
    env = TrlEnv(factory=lambda: UnpaidEnv(), path=rows, reward=looks)
    await env.reset(seed=1)
    await env.step(call("look"))
    _, reward, _, _, info = await env.step(say("seen"))
    assert reward == 1.0
    assert info["metrics"] == {"looked": 1.0}
    await env.reset(seed=1)
    with pytest.raises(EnvError, match="no reward function gave a number"):
        await env.step(say("not seen"))
    await env.close()


class KeepingEnv(IncrementEnv):
    """Counts its episodes, and changes its row."""

    episodes = 0

    def reset(self, start: int = 0, **kwargs: Any) -> str:
        self.episodes += 1
        kwargs["seen"].append(self.episodes)
        super().reset(start, **kwargs)
        return f" {kwargs['seen']}"


async def test_an_instance_is_of_one_episode_unless_it_is_reused(rows: str) -> None:
    texts: dict[bool, list[str]] = {}
    for reuse in (False, True):
        env = TrlEnv(factory=KeepingEnv, path=rows, reuse=reuse)
        openings = [await env.reset(seed=1) for _ in range(2)]
        texts[reuse] = [opening.messages[-1].text[-3:] for opening, _ in openings]
        await env.close()
    assert texts == {False: ["[1]", "[1]"], True: ["[1]", "[2]"]}


class SharedEnv(UnpaidEnv):
    """Has a tool of the class, and pays what is no number."""

    paid: Any = None

    @classmethod
    def knock(cls, times: int) -> str:
        """
        Knock at the door.

        Args:
            times: How often.
        """
        return f"{cls.__name__} {times}"

    def get_reward(self) -> Any:
        return self.paid


@pytest.mark.parametrize("paid", ["1", None, b"1"])
async def test_what_is_no_number_is_no_reward(rows: str, paid: Any) -> None:
    env = TrlEnv(factory=SharedEnv, path=rows)
    await env.reset(seed=1)
    answer, *_ = await env.step(call("knock", times=2))
    assert answer.messages[0].text == "SharedEnv 2"
    SharedEnv.paid = paid
    with pytest.raises(EnvError, match=rf"is {paid!r}; return a number"):
        await env.step(say("done"))
    await env.close()


class LeavingEnv(IncrementEnv):
    """Has tools that end by what is no exception."""

    def leave(self) -> str:
        """Leave."""
        raise SystemExit(3)

    async def interrupt(self) -> str:
        """Wait for what was cancelled."""
        waiting = asyncio.ensure_future(asyncio.sleep(9))
        waiting.cancel()
        await waiting
        return ""


@pytest.mark.parametrize("name", ["leave", "interrupt"])
async def test_an_end_that_is_no_exception_is_a_failure_and_no_answer(rows: str, name: str) -> None:
    env = TrlEnv(factory=LeavingEnv, path=rows)
    await env.reset(seed=1)
    with pytest.raises(EnvError, match=rf"tool '{name}': (FunctionExit: leave|CancelledError)"):
        await env.step(call(name))
    await env.close()


async def test_it_keeps_the_contract(rows: str) -> None:
    proven = await check_env(counter(rows, gold=f"{SUPPORT}:gold"))
    assert {"gold scores", "doing nothing does not score", "splits are disjoint"} <= {*proven}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"factory": f"{SUPPORT}:UntypedEnv"}, "UntypedEnv.move: parameter 'where' has no type"),
        (
            {"factory": SharedEnv, "reward": {"name": "exact", "label": "SharedEnv"}},
            r"a reward is called 'SharedEnv', as what get_reward\(\) of SharedEnv pays",
        ),
        ({"factory": f"{SUPPORT}:UnpaidEnv"}, r"has no get_reward\(\), and there is no `reward`"),
        ({"factory": "agentrl.env:Observation"}, r"Observation has no method reset\(\*\*row\)"),
        (
            {"factory": f"{SUPPORT}:ClosedEnv"},
            r"ClosedEnv.reset\(self, start: int\) .* unexpected keyword argument 'prompt'; end",
        ),
        (
            {"reward": f"trl:{SUPPORT}:reward_taget"},
            "reward_taget takes 'taget', which no column of the rows gives; did you mean target?",
        ),
        ({"reward": lambda task, messages, tools: 0.0}, "three parameters reads the tools of"),  # pyright: ignore
    ],
)
def test_a_class_that_cannot_be_played_is_refused(
    rows: str, settings: Mapping[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {"factory": IncrementEnv, "path": rows, **settings}
    with pytest.raises(ConfigError, match=words):
        TrlEnv(**arguments)


def test_contents_are_text_or_pictures() -> None:
    assert read_content(None) == ""
    assert read_content(3) == "3"
    assert read_content([1, 2]) == "[1, 2]"
    assert read_content([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    with pytest.raises(ValueError, match=r"a content block is .*; give text, or image with a PIL"):
        read_content([{"type": "image", "image": "a.png"}])
    assert reward_length([[{"content": "ab"}]]) == [0.2]

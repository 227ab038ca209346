"""Gymnasium's environments as agentrl environments."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.env import Action, call, say
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, WordingError
from agentrl.gym.text_env import GymnasiumTextEnv
from agentrl.gym.wording.space_words import action_words, read_action
from agentrl.registry import make
from agentrl.runtime.threads import list_stuck_threads
from agentrl.task import Task
from agentrl.testing import check_env
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl_envs.web.browser.chromium import find

TOYS: dict[str, tuple[str, str]] = {
    "FrozenLake-v1": ("right", "Answer: 1"),
    "FrozenLake8x8-v1": ("2", "Down."),
    "CliffWalking-v1": ("up", "3"),
    "Blackjack-v1": ("hit", "stick"),
}


@pytest.mark.parametrize("name", TOYS)
async def test_toy_text_environments_keep_the_promises(name: str) -> None:
    env = agentrl.make(f"gymnasium:{name}")
    actions = [say(text) for text in TOYS[name]]
    proven = await check_env(env, gold_reward=2.0, actions=actions, episodes=2)
    assert "forks do not interfere" in proven


async def played(env: Any, *texts: str) -> list[Any]:
    return [await env.step(say(text)) for text in texts]


async def test_frozen_lake_in_words() -> None:
    env = GymnasiumTextEnv("FrozenLake-v1", is_slippery=False)
    opening, _ = await env.reset(seed=1)
    assert opening.tools == ()
    (message,) = opening.messages
    assert message.role == "user"
    assert "Answer with one action: left, down, right, up." in message.text
    assert message.text.endswith("@FFF\nFHFH\nFFFH\nHFFG\nYou are at row 0, column 0, on S.")
    steps = await played(env, "down", "DOWN", "Answer: right", "2?", "I go right. Answer: 1", "1")
    assert "'2?' is not a valid action. Answer with one action" in steps[3][0].messages[0].text
    assert steps[4][0].messages[0].text.endswith("You are at row 3, column 1, on F.")
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 6
    (last,) = await played(env, "right")
    assert last[1:4] == (0.0, False, False)
    (last,) = await played(env, "right")
    assert last[1:4] == (1.0, True, False)
    with pytest.raises(RuntimeError, match="no episode is running"):
        await env.step(say("right"))
    await env.close()


async def test_taxi_and_blackjack_in_words() -> None:
    task = Task(prompt="Drive.", seed=1)
    env = GymnasiumTextEnv("Taxi-v4")
    opening, _ = await env.reset(options={"task": task})
    assert "The taxi is at row 2, column 2." in opening.messages[0].text
    assert "The passenger is at B (row 4, column 3)." in opening.messages[0].text
    assert "The destination is R (row 0, column 0)." in opening.messages[0].text
    ((_, reward, *_),) = await played(env, "pickup")
    assert reward == -10.0
    await env.close()
    env = GymnasiumTextEnv("Blackjack-v1")
    opening, _ = await env.reset(options={"task": task})
    assert "Your cards add up to 20, with no usable ace. The dealer shows 7." in (
        opening.messages[0].text
    )
    await env.close()


async def test_a_time_limit_is_a_truncation() -> None:
    env = GymnasiumTextEnv("FrozenLake-v1", max_episode_steps=2, is_slippery=False)
    await env.reset(seed=1)
    steps = await played(env, "up", "up")
    assert [step[2:4] for step in steps] == [(False, False), (False, True)]
    await env.close()


async def test_there_are_no_tools() -> None:
    env = GymnasiumTextEnv("FrozenLake-v1")
    await env.reset(seed=1)
    reply, *rest, _ = await env.step(call("walk", where="down"))
    assert [(m.role, m.tool_call_id) for m in reply.messages] == [("tool", "call_0")]
    assert rest == [0.0, False, False]
    reply, *_ = await env.step(Action("", malformed=("not JSON",)))
    assert "no tools" in reply.messages[0].text
    await env.close()


class Echo(gymnasium.Env[Any, Any]):
    """An environment that a test gives its spaces to; it pays how often it was acted on."""

    def __init__(self, observation: Any, action: Any, shown: Any = None, paid: float = 0.5) -> None:
        self.observation_space = observation
        self.action_space = action
        self.shown = shown
        self.paid = paid
        self.acted: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.acted.append(action)
        return self.shown, self.paid, len(self.acted) == 3, False, {}


TEXT = spaces.Text(20, min_length=0, charset="abc ")


async def test_text_spaces_are_passed_through() -> None:
    made: list[Echo] = []

    def make() -> Echo:
        made.append(Echo(TEXT, TEXT, "abc"))
        return made[-1]

    env = GymnasiumTextEnv(make, instructions="Say a, b or c.")
    opening, _ = await env.reset(seed=1)
    assert opening.messages[0].text == "Say a, b or c.\n\nabc"
    reply, reward, *_ = await env.step(say("a b"))
    assert (reply.messages[0].text, reward) == ("abc", 0.5)
    reply, reward, *_ = await env.step(say("d"))
    assert ("is not a valid action" in reply.messages[0].text, reward) == (True, 0.0)
    assert made[-1].acted == ["a b"]
    await env.close()


def tell_sum(seen: Any) -> str:
    """Tell the sum of numbers."""
    return f"You see {seen.sum()}."


async def test_numbers_are_told_in_order_and_may_be_described() -> None:
    grid = spaces.MultiDiscrete([4, 4])
    moves = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def make() -> Echo:
        return Echo(grid, moves, np.array([1, 3]))

    env = GymnasiumTextEnv(make)
    opening, _ = await env.reset(seed=1)
    assert opening.messages[0].text == "Answer with 2 numbers: 1 to 3, 0 to 1.\n\nState: 1 3"
    assert (await env.step(say("3, 1")))[1] == 0.5
    assert (await env.step(say("3, 2")))[1] == 0.0
    assert (await env.step(say("3")))[1] == 0.0
    await env.close()
    told = GymnasiumTextEnv(make, describe=tell_sum)
    assert (await told.reset(seed=1))[0].messages[0].text.endswith("You see 4.")
    await told.close()


async def test_a_reward_that_is_no_number_fails_the_episode() -> None:
    env = GymnasiumTextEnv(lambda: Echo(TEXT, TEXT, "abc", paid=float("nan")))
    await env.reset(seed=1)
    with pytest.raises(EnvError, match="is nan"):
        await env.step(say("a"))
    await env.close()


USERS = """
import gymnasium
from gymnasium import spaces


class Digit(gymnasium.Env):
    observation_space = spaces.Text(9)
    action_space = spaces.Discrete(10)

    def __init__(self, secret=3):
        self.secret = secret

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "guess", {}

    def step(self, action):
        return "end", float(action == self.secret), True, False, {}


gymnasium.register("user/Digit-v0", entry_point="users_digits:Digit")
"""


@pytest.mark.parametrize("name", ["user/Digit-v0", "Digit"])
async def test_an_environment_of_the_user_s_is_named_with_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "users_digits.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_digits", raising=False)
    gymnasium.registry.pop("user/Digit-v0", None)
    if "/" in name:
        with pytest.raises(ConfigError, match=f"Or name the module .* gymnasium:MODULE:{name}"):
            make(f"gymnasium:{name}")
    for secret in (3, 5):
        env = make(f"gymnasium:users_digits:{name}", secret=secret)
        opening, _ = await env.reset(seed=1)
        assert opening.messages[-1].text == (
            "Answer with one action, a number from 0 to 9.\n\nguess"
        )
        assert (await env.step(say("5")))[1] == float(secret == 5)
        await env.close()
    with pytest.raises(ConfigError, match="did you mean 'Digit'"):
        make("gymnasium:users_digits:Digti")
    with pytest.raises(ConfigError, match="doesn't exist in namespace user"):
        make("gymnasium:users_digits:user/Nothing-v0")


BOX = spaces.Box(0, 1)


@pytest.mark.parametrize(
    ("observation", "action", "what", "way_out"),
    [
        (BOX, TEXT, "observations", "describe: module:function"),
        (TEXT, BOX, "actions", "act: module:function"),
    ],
)
def test_spaces_without_words_are_refused(
    observation: Any, action: Any, what: str, way_out: str
) -> None:
    env = GymnasiumTextEnv(lambda: Echo(observation, action))
    with pytest.raises(ConfigError, match=rf"the {what} of this environment are Box.*{way_out}"):
        next(iter(env.tasks("train")))


def tell_cart(seen: dict[str, Any], info: dict[str, Any]) -> list[Any]:
    """Tell a cart in words, and draw it."""
    return [f"The cart is at {seen['place'][0]:.1f}, after {info['moves']} moves.", seen["camera"]]


def push_cart(text: str, env: gymnasium.Env[Any, Any]) -> list[float] | None:
    """Read a push; the environment says how hard it may be."""
    if text == "nothing":
        return None
    if text == "crash":
        raise KeyError(text)
    return [float(text)]


class Cart(gymnasium.Env[Any, Any]):
    """A cart to push to 1, seen by a camera: no words tell it."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-9, 9, (1,)), "camera": spaces.Box(0, 255, (2, 4, 3), np.uint8)}
    )
    action_space = spaces.Box(-1, 1, (1,))

    def _look(self) -> dict[str, Any]:
        return {"place": self.place, "camera": np.full((2, 4, 3), self.moves, np.uint8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.moves = np.zeros(1, np.float32), 0
        return self._look(), {"moves": 0}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        assert action.dtype == np.float32
        self.place, self.moves = self.place + action, self.moves + 1
        won = self.place[0] >= 1
        return self._look(), np.float32(won), np.bool_(won), False, {"moves": self.moves}


CART = {"describe": f"{__name__}:tell_cart", "act": f"{__name__}:push_cart"}


async def test_functions_of_a_config_tell_and_read_what_has_no_words() -> None:
    env = make(f"gymnasium:{__name__}:Cart", instructions="Push the cart to 1.", **CART)
    opening, _ = await env.reset(seed=1)
    (message,) = opening.messages
    assert message.text == "Push the cart to 1.\n\nThe cart is at 0.0, after 0 moves."
    assert [image.media_type for image in message.images] == ["image/png"]
    half, far, nothing, end = await played(env, "0.5", "1.5", "nothing", "0.5")
    assert half[0].messages[0].text == "The cart is at 0.5, after 1 moves."
    assert half[0].messages[0].images != message.images
    assert "'1.5' is not a valid action. [1.5] is not in Box" in far[0].messages[0].text
    assert nothing[0].messages[0].text == "'nothing' is not a valid action."
    assert [step[1:4] for step in (half, far, nothing)] == [(0.0, False, False)] * 3
    assert end[1:4] == (1.0, True, False)
    # What the agent writes brings about a refusal, and a fault of the function a failure.
    await env.reset(seed=1)
    (words,) = await played(env, "a lot")
    assert "'a lot' is not a valid action. could not convert" in words[0].messages[0].text
    with pytest.raises(WordingError, match=r"act=.*:push_cart: KeyError: 'crash'") as failure:
        await env.step(say("crash"))
    assert failure.value.kind == "wording"
    await env.close()


def tell_nothing(seen: Any) -> None:
    """Tell what cannot be shown."""


def tell_three(seen: Any, info: Any, env: Any) -> str:
    """Tell with as many values as there are."""
    return f"{seen} {info} {env}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"describe": f"{__name__}:tell_carts"}, "did you mean 'tell_cart'"),
        ({"describe": "no_such_module:tell"}, "no module 'no_such_module'"),
        ({"act": f"{__name__}:tell_three"}, r"tell_three\(.* must take 1 to 2 values"),
        ({"act": f"{__name__}:BOX"}, "is a Box; name a class or a function"),
    ],
)
def test_a_function_that_cannot_be_named_is_refused_before_anything_begins(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        next(iter(make(f"gymnasium:{__name__}:Cart", **settings).tasks("train")))


async def test_a_describe_that_returns_something_else_is_a_failure_of_its_own_kind() -> None:
    settings = {**CART, "describe": f"{__name__}:tell_nothing"}
    env = make(f"gymnasium:{__name__}:Cart", **settings)
    with pytest.raises(WordingError, match=r"describe=.*:tell_nothing: .*returned a NoneType"):
        await env.reset(seed=1)
    await env.close()


class Unclosed(Cart):
    def close(self) -> None:
        raise OSError("no door")


def test_an_environment_that_cannot_be_closed_is_refused_before_a_run() -> None:
    env = make(f"gymnasium:{__name__}:Unclosed", **CART)
    with pytest.raises(ConfigError, match=r"Unclosed cannot be closed: OSError: no door; mend"):
        next(iter(env.tasks("train")))


def test_an_environment_that_cannot_be_made_names_its_arguments() -> None:
    env = make(f"gymnasium:{__name__}:Cart", wheels=4, **CART)
    with pytest.raises(ConfigError, match=r"cannot be made: TypeError: Cart.*check env\.kwargs"):
        next(iter(env.tasks("train")))


async def test_a_world_that_cannot_be_copied_says_so() -> None:
    def make() -> Echo:
        env = Echo(TEXT, TEXT, "abc")
        env.acted.append(iter(lambda: 0, 1))
        env.acted.append(x for x in ())
        return env

    env = GymnasiumTextEnv(make)
    await env.reset(seed=1)
    with pytest.raises(ForkUnsupported, match="cannot be deep-copied"):
        await env.fork()
    await env.close()


async def test_an_agentrl_environment_survives_both_ways() -> None:
    """Out to Gymnasium and back: the text of the inner one is what the outer one shows."""
    agentrl.register("both/Ways-v0", "agentrl.testing.scripted_env:ScriptedEnv")
    space = spaces.Text(10_000, min_length=0, charset="".join(map(chr, range(32, 127))))

    def make() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("both/Ways-v0").unwrapped
        env.observation_space = env.action_space = space
        return env

    env = GymnasiumTextEnv(make)
    opening, _ = await env.reset(seed=1)
    assert "Say what is wanted." in opening.messages[0].text
    _, reward, terminated, *_ = await env.step(say("done"))
    assert (reward, terminated) == (1.0, True)
    await env.close()


class OneText(gymnasium.Env[Any, Any]):
    """Pays for one text, of which `size` says how long it may be."""

    observation_space = spaces.Text(9)

    def __init__(self, wanted: str, size: int) -> None:
        self.wanted = wanted
        self.action_space = spaces.Text(size, charset="".join(map(chr, range(32, 127))))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return "go", {}

    def step(self, action: Any) -> Any:
        return "end", float(action == self.wanted), True, False, {}


@pytest.mark.parametrize(
    ("text", "action", "size"),
    [
        ("send_msg_to_user('The answer: 42')", "send_msg_to_user('The answer: 42')", 99),
        (r"fill('3', '\boxed{7}')", r"fill('3', '\boxed{7}')", 99),
        ("<think>\nclick('1')?\n</think>\n\nclick('2')", "click('2')", 99),
        ("I am sure, <answer>apple</answer>", "apple", 9),
    ],
)
async def test_where_any_text_is_an_action_all_of_it_is_one(
    text: str, action: str, size: int
) -> None:
    """Kills: what the text marks as an answer taken first; thoughts sent to the environment."""
    env = GymnasiumTextEnv(lambda: OneText(action, size))
    await env.reset(seed=1)
    assert (await env.step(say(text)))[1:3] == (1.0, True)
    await env.close()


@given(st.integers(-5, 5), st.integers(1, 9), st.text() | st.integers(-10, 20).map(str))
def test_a_number_is_an_action_when_the_space_has_it(start: int, size: int, text: str) -> None:
    """A mutant that ignores `start`, or takes numbers from other words, is caught."""
    space = spaces.Discrete(size, start=start)
    taken = read_action(space, (), text)
    try:
        number: int | None = int(text) if text.strip().lstrip("-").isascii() else None
    except ValueError:
        number = None
    if number is not None and start <= number < start + size:
        assert taken == number
    elif taken is not None:
        assert str(int(taken)) in text
        assert space.contains(taken)


def test_names_count_from_the_start_of_the_space() -> None:
    space = spaces.Discrete(2, start=5)
    assert read_action(space, ("no", "yes"), "Yes!") == 6
    assert action_words(space, ()) == "Answer with one action, a number from 5 to 6."


class Ledger(gymnasium.Env[Any, Any]):
    """A world in SQLite, whose connections belong to the thread that opened them."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(10)

    def __init__(self) -> None:
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("create table moves (move integer)")
        self.threads = {threading.get_ident()}

    def _count(self) -> int:
        self.threads.add(threading.get_ident())
        return self.rows.execute("select count(*) from moves").fetchone()[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return self._count(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.rows.execute("insert into moves values (?)", [int(action)])
        count = self._count()
        return count, float(action), count == 3, False, {"threads": len(self.threads)}

    def close(self) -> None:
        self._count()
        self.rows.close()


async def test_an_environment_lives_on_one_thread() -> None:
    before = ProcessHoldings.take()
    env = GymnasiumTextEnv(Ledger)
    for _ in range(2):
        await env.reset(seed=1)
        steps = await played(env, "4", "no number", "5", "6")
        assert [step[1:4] for step in steps] == [
            (4.0, False, False),
            (0.0, False, False),
            (5.0, False, False),
            (6.0, True, False),
        ]
        assert steps[-1][4]["threads"] == 1
    with pytest.raises(ForkUnsupported, match="cannot be deep-copied"):
        await env.fork()
    await env.close()
    await env.close()
    await check_no_leak(before)


async def test_environments_of_many_episodes_at_once_do_not_meet() -> None:
    async def play(number: int) -> list[float]:
        env = GymnasiumTextEnv(Ledger)
        await env.reset(seed=number)
        steps = await played(env, *[str((number + turn) % 10) for turn in range(3)])
        await env.close()
        return [step[1] for step in steps]

    paid = await asyncio.gather(*(play(number) for number in range(20)))
    assert paid == [[float((n + turn) % 10) for turn in range(3)] for n in range(20)]


class Stuck(Ledger):
    """Its step stands still until it is let go; its close belongs to it alone."""

    let_go = threading.Event()
    closed: ClassVar[list["Stuck"]] = []

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.let_go.wait()
        return super().step(action)

    def close(self) -> None:
        super().close()
        self.closed.append(self)


async def test_a_step_that_stands_still_holds_nobody_up_and_is_closed_when_it_ends() -> None:
    before = ProcessHoldings.take()
    env = GymnasiumTextEnv(Stuck)
    given = {"task": Task(prompt="Move.", seed=1)}
    await env.reset(options=given)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await env.step(say("4"))
    async with asyncio.timeout(30):
        await env.reset(options=given)
        assert not Stuck.closed
        Stuck.let_go.set()
        (step,) = await played(env, "5")
        assert step[1] == 5.0
        await env.close()
    await check_no_leak(before)
    assert len({*map(id, Stuck.closed)}) == 2


async def test_no_more_is_made_beside_many_threads_that_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutant that counts the threads of calls that ended is caught, and one that counts none."""
    monkeypatch.setattr("agentrl.gym.text_env.STUCK_MAX", 2)
    monkeypatch.setattr("agentrl.gym.text_env.STUCK_S", 0.0)
    Stuck.let_go.clear()
    before = ProcessHoldings.take()
    envs = [GymnasiumTextEnv(Stuck) for _ in range(2)]
    given = {"task": Task(prompt="Move.", seed=1)}
    for env in envs:
        await env.reset(options=given)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await env.step(say("4"))
        await env.close()
    assert list_stuck_threads(0.0) == [f"gymnasium:{Stuck.__qualname__}"] * 2
    with pytest.raises(EnvError, match=r"2 threads stand still .* python=\.\.\."):
        await GymnasiumTextEnv(Stuck).reset(options=given)
    Stuck.let_go.set()
    await check_no_leak(before)
    fresh = GymnasiumTextEnv(Stuck)
    await fresh.reset(options=given)
    Stuck.let_go.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await fresh.step(say("4"))
    Stuck.let_go.set()
    await played(fresh, "5")  # after the call that was abandoned
    assert list_stuck_threads(0.0) == []
    await fresh.close()


async def test_hundreds_of_episodes_leave_no_thread() -> None:
    before = ProcessHoldings.take()
    env = GymnasiumTextEnv(Ledger)
    given = {"task": Task(prompt="Move.", seed=1)}
    for _ in range(300):
        await env.reset(options=given)
        await env.step(say("4"))
    await env.close()
    await check_no_leak(before)


PAGE = """
import asyncio, sys
from typing import Any, ClassVar
import gymnasium
from gymnasium import spaces
from playwright.sync_api import sync_playwright
import agentrl
from agentrl.gym.text_env import GymnasiumTextEnv

class Page(gymnasium.Env):
    observation_space = spaces.Text(100)
    action_space = spaces.Text(100, min_length=1)

    def __init__(self):
        self.playwright = sync_playwright().start()
        chromium = self.playwright.chromium
        self.browser = chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
        self.page = self.browser.new_page()

    def reset(self, *, seed=None, options=None):
        self.page.set_content("<p>empty</p>")
        return self.page.inner_text("p"), {}

    def step(self, action):
        self.page.set_content(f"<p>{action}</p>")
        return self.page.inner_text("p"), 1.0, True, False, {}

    def close(self):
        self.browser.close()
        self.playwright.stop()

async def play(word):
    env = GymnasiumTextEnv(Page)
    task = next(iter(env.tasks("train")))
    await env.reset(options={"task": task})
    step = await env.step(agentrl.say(word))
    await env.close()
    return step[0].messages[0].text

async def main():
    print(await asyncio.gather(play("one"), play("two")))

asyncio.run(main())
"""


@pytest.mark.chromium
def test_synchronous_playwright_works_in_it() -> None:
    """In a process of its own: Playwright's loop must not meet the tests'."""
    command = [sys.executable, "-c", PAGE, find()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "['one', 'two']\n"), ran.stderr

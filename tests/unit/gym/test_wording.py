"""What a `describe` function returns, as parts; actions, words and rewards at their edges.

Mutants seen caught: colours of an array in another order; a text of digits that no 64-bit integer
holds read with `int`; an action of `act` truncated to integers; a parameter with a default that is
handed a value; an array of texts read as a reward.
"""

import zlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gym.text_env import keep_info
from agentrl.gym.wording.browser_gym import WORDINGS
from agentrl.gym.wording.episode import GivenWords, WordedEnv, WordedStep, read_flag, read_reward
from agentrl.gym.wording.parts import WordingFault, describe_observation
from agentrl.gym.wording.space_words import (
    fit_action,
    is_text_space,
    read_action,
    state_words,
)
from agentrl.message import Image


def show(seen: Any) -> Any:
    """Show what is seen as it is."""
    return seen


def show_image(pixels: Any) -> bytes:
    """Return the one image that an array becomes."""
    ((data, media_type),) = describe_observation(show, pixels)
    assert media_type == "image/png"
    assert isinstance(data, bytes)
    return data


def test_a_text_is_one_part_and_a_list_several() -> None:
    assert describe_observation(show, "sees 3", {}) == ["sees 3"]
    png = b"\x89PNG\r\n\x1a\nrest"
    shown = describe_observation(show, ["text", png, Image(b"\xff\xd8", "image/jpeg")])
    assert shown == ["text", (png, "image/png"), (b"\xff\xd8", "image/jpeg")]
    images = [b"\xff\xd8\xffrest", b"GIF89a", b"RIFF0000WEBP"]
    assert [part[1] for part in describe_observation(show, images)] == [
        "image/jpeg",
        "image/gif",
        "image/webp",
    ]


@pytest.mark.parametrize(("channels", "colour_type"), [(0, 0), (1, 0), (3, 2), (4, 6)])
def test_an_array_is_a_png_of_its_pixels(channels: int, colour_type: int) -> None:
    """Read back by the format's own rules, and by Pillow where it is there."""
    shape = (2, 3, channels) if channels else (2, 3)
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = show_image(pixels)
    assert data[16:24] == (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    assert tuple(data[24:29]) == (8, colour_type, 0, 0, 0)
    size = int.from_bytes(data[33:37], "big")
    lines = zlib.decompress(data[41 : 41 + size])
    assert lines == b"".join(b"\0" + line.tobytes() for line in pixels)


def test_pillow_reads_what_was_written() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    for shown in (pixels, image.fromarray(pixels)):
        read = image.open(io.BytesIO(show_image(shown)))
        assert np.array_equal(np.asarray(read), pixels)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"a": 1}, "returned a dict; return a text, or a list of texts and images"),
        (None, "returned a NoneType"),
        ([], "returned an empty list"),
        (["text", 3], "returned a int"),
        (b"no image", r"bytes that begin with b'no image'"),
        (np.zeros((2, 3)), r"an array of float64 of shape \(2, 3\)"),
        (np.zeros((2, 3, 2), np.uint8), r"an array of uint8 of shape \(2, 3, 2\)"),
        (np.zeros((0, 3), np.uint8), r"shape \(0, 3\)"),
    ],
)
def test_what_cannot_be_shown_names_the_function(described: Any, words: str) -> None:
    def tell(seen: Any) -> Any:
        return described

    with pytest.raises(WordingFault, match=rf"describe=.*tell: .*{words}"):
        describe_observation(tell, None)


def test_what_a_function_raises_names_it() -> None:
    def tell(seen: Any, info: Any, env: Any) -> str:
        return seen["score"]

    with pytest.raises(WordingFault, match=r"test_wording:.*tell: KeyError: 'score'"):
        describe_observation(tell, {}, {}, None)


def test_a_function_is_handed_as_many_values_as_it_takes() -> None:
    def round_it(seen: Any, digits: int = 1) -> str:
        return f"{seen:.{digits}f}"

    def tell(seen: Any, info: Any) -> str:
        return f"{seen}{info}"

    assert describe_observation(round_it, 1, 2, 3) == ["1.0"]
    assert describe_observation(tell, 1, 2, 3) == ["12"]
    assert describe_observation(lambda *values: str(values), 1, 2, 3) == ["(1, 2, 3)"]
    assert describe_observation(str, 1, 2, 3) == ["1"]
    for wrong in (lambda: "", lambda a, b, c, d: "", lambda a, *, key: ""):  # pyright: ignore[reportUnknownLambdaType]
        with pytest.raises(ValueError, match=r"must take 1 to 3 values"):
            GivenWords(describe=wrong).check()
    with pytest.raises(ValueError, match=r"must take 1 to 2 values"):
        GivenWords(act=lambda a, b, c: a).check()  # pyright: ignore[reportUnknownLambdaType]


class Unicode(spaces.Space[str]):
    """A space of texts that is not Gymnasium's, as BrowserGym has one."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def test_a_space_of_texts_need_not_be_gymnasiums() -> None:
    assert is_text_space(Unicode())
    assert read_action(Unicode(), (), "click('13')") == "click('13')"
    for other in (spaces.Discrete(3), spaces.Box(0, 1), spaces.Dict(), spaces.MultiBinary(3)):
        assert not is_text_space(other)


@given(st.integers(0, 60) | st.just(5000), st.sampled_from(["-", ""]))
def test_digits_of_any_length_are_an_action_or_none(length: int, sign: str) -> None:
    text = f"{sign}{'9' * length}"
    space = spaces.MultiDiscrete([10])
    assert (read_action(space, (), text) is None) == (text != "9")
    assert (read_action(spaces.Discrete(10), (), text) is None) == (text != "9")


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "action", "fits"),
    [
        (BOX, [0.5, -1], True),
        (BOX, [0.5, -1.5], False),
        (BOX, [0.5], False),
        (BOX, "text", False),
        (BOX, [float("nan"), 0], False),
        (spaces.Box(0, 9, (1,), np.int64), [2.0], True),
        (spaces.Box(0, 9, (1,), np.int64), [2.5], False),
        (spaces.Discrete(3), 2, True),
        (spaces.Discrete(3), 3, False),
        (spaces.Discrete(3), 1.9, False),
        (spaces.Discrete(3), 10**30, False),
        (spaces.MultiDiscrete([3, 3]), [1, 1.5], False),
        (spaces.MultiBinary(2), [1, 0], True),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 1}, True),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, False),
    ],
)
def test_an_action_is_taken_in_the_type_of_its_space(space: Any, action: Any, fits: bool) -> None:
    fitting = fit_action(space, action)
    assert (fitting is not None) == fits
    assert fitting is None or space.contains(fitting)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
        (np.int8(3), 3.0),
    ],
)
def test_a_scalar_is_a_reward(reward: Any, number: float) -> None:
    assert read_reward(reward) == number


@pytest.mark.parametrize(
    "reward", [None, "1", np.array([1.0]), np.array("1"), np.complex64(1), [1], 10**400]
)
def test_anything_else_is_none(reward: Any) -> None:
    with pytest.raises(ValueError, match=r"the reward of step\(\) is .*; return a float"):
        read_reward(reward)


@pytest.mark.parametrize("flag", [True, np.bool_(True), 1, np.int8(1), np.array(True)])
def test_a_scalar_is_a_flag(flag: Any) -> None:
    assert read_flag("terminated", flag) is True
    assert read_flag("terminated", flag ^ flag) is False


@pytest.mark.parametrize("flag", ["False", None, 0.3, 2, [], np.array([True]), np.array("")])
def test_anything_else_is_no_flag(flag: Any) -> None:
    with pytest.raises(ValueError, match=r"truncated of step\(\) is .*; return True or False"):
        read_flag("truncated", flag)


class OldEnv(gymnasium.Env[Any, Any]):
    """Answers as Gym did: a step of four, and a reset without an info."""

    observation_space = gymnasium.spaces.Text(9)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, opening: Any, step: Any = None) -> None:
        self.opening, self.answer = opening, step

    def reset(self, **_: Any) -> Any:
        return self.opening

    def step(self, action: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("opening", ["ab", ("a", 1), ("a", {}, 2), "hi there", 3, None])
def test_a_reset_of_gym_is_named(opening: Any) -> None:
    """A mutant that takes a text of two letters for an observation and an info is caught."""
    with pytest.raises(ValueError, match=r"reset\(\) returned .*return \(observation, info\)"):
        WordedEnv(OldEnv(opening), GivenWords()).reset(1)


@pytest.mark.parametrize("step", [("a", 1.0, True, {}), ("a", 1.0, True, False), "abcde", None])
def test_a_step_of_gym_is_named(step: Any) -> None:
    worded = WordedEnv(OldEnv(("a", {}), step), GivenWords())
    assert worded.reset(1) == (["a"], {})
    with pytest.raises(ValueError, match=r"step\(\) returned .*terminated, truncated, info\)"):
        worded.step("0", ["0"])


@pytest.mark.parametrize("options", [{}, {"disable_env_checker": True}, {"max_episode_steps": 3}])
def test_returns_of_gym_are_named_within_the_wrappers_of_make(options: dict[str, Any]) -> None:
    gymnasium.register("user/Old-v0", entry_point=make_old)

    def make(opening: Any, step: Any = None) -> WordedEnv:
        env = gymnasium.make("user/Old-v0", opening=opening, step=step, **options)
        return WordedEnv(env, GivenWords())

    try:
        with pytest.raises(ValueError, match=r"reset\(\) returned .*return \(observation, info\)"):
            make("a").reset(1)
        worded = make(("a", {}), ("a", 1.0, True, {}))
        worded.reset(1)
        with pytest.raises(ValueError, match=r"step\(\) returned .*terminated, truncated, info\)"):
            worded.step("0", ["0"])
        worded = make(("a", {}), ("b", 1.0, True, False, {}))
        assert worded.reset(1) == (["a"], {})
        assert worded.step("0", ["0"]) == WordedStep(["b"], 1.0, True, False, {})
    finally:
        del gymnasium.registry["user/Old-v0"]


def make_old(**kwargs: Any) -> OldEnv:
    return OldEnv(**kwargs)


class SeedlessEnv(OldEnv):
    """Is reset as Gym's were, seeded by a method of its own."""

    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.opening


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reset_without_a_seed_is_named(wrapped: bool) -> None:
    old = SeedlessEnv(("a", {}))
    env = OrderEnforcing(old) if wrapped else old
    with pytest.raises(
        ValueError, match=r"reset\(\) of SeedlessEnv .*'seed'; .*seed=None, options"
    ):
        WordedEnv(env, GivenWords()).reset(1)


def test_an_observation_that_is_no_text_is_none_of_a_text_space() -> None:
    for opening in (None, 3, b"seen"):
        with pytest.raises(ValueError, match=f"observation is {opening!r}, but its space .*Text"):
            WordedEnv(OldEnv((opening, {})), GivenWords()).reset(1)
    assert WordedEnv(OldEnv((np.str_("seen"), {})), GivenWords()).reset(1) == (["seen"], {})


def test_an_info_of_gymnasium_is_none_of_a_toolsets() -> None:
    """A mutant that hands any of them on is caught: the runner reads results and sums parts."""
    parts = {"speed": 0.5, "style": 1}
    info = {"tool_results": [1], "patch": 3, "reward_components": parts, "moves": 2}
    assert keep_info(info) == {"reward_components": parts, "moves": 2}
    for wrong in (
        "fast",
        {"speed": "fast"},
        [0.5],
        None,
        {"x": float("nan")},
        {"x": 10**400},
        {1: 2},
    ):
        assert keep_info({"reward_components": wrong}) == {}


def test_browsergyms_wording_is_for_its_environments_alone() -> None:
    """A class of the same name elsewhere has other observations."""
    assert {*WORDINGS} == {"BrowserEnv"}


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ("hit", r"actions is 'hit'; give a list with a name for each action"),
        (5, r"actions is 5; give a list"),
        ([True, False, True], r"actions is \[True, False, True\]; give a list"),
        ({"a": 0, "b": 1}, r"give a list"),
        (["left", "", "up"], r"give a list"),
        (["Left", "left!", "up"], r"actions has 'left' twice"),
        (["left", "up"], r"actions has 2 names, but this environment has 3 actions"),
        (["a", "b", "c", "d"], r"actions has 4 names, but this environment has 3 actions"),
        (["7", "9", "8"], r"actions names action 8 '9', the number of another"),
    ],
)
def test_names_that_do_not_fit_the_actions_are_refused(actions: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        walk(spaces.Discrete(3, start=7), GivenWords(actions=actions)).build_prompt()


def test_names_need_actions_that_are_numbers_and_no_function_that_reads() -> None:
    with pytest.raises(ValueError, match="names the actions of a Discrete space, but this"):
        walk(spaces.MultiDiscrete([2, 2]), GivenWords(actions=["a", "b"])).build_prompt()
    with pytest.raises(ValueError, match="actions and act are two ways"):
        GivenWords(actions=["a"], act=int).check()
    own_numbers = GivenWords(actions=["7", "eight", "go!"])
    walk(spaces.Discrete(3, start=7), own_numbers).build_prompt()
    assert read_action(spaces.Discrete(3, start=7), own_numbers.actions, "Go!") == 9


def test_a_name_too_many_is_no_action() -> None:
    assert read_action(spaces.Discrete(3), ["a", "b", "c", "d"], "d") is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"describe": 5}, "describe is 5; give module:function"),
        ({"act": [1]}, r"act is \[1\]; give module:function"),
        ({"instructions": 5}, "instructions is 5; give a text"),
    ],
)
def test_words_of_another_type_are_refused(words: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GivenWords(**words).check()


def test_an_environment_without_spaces_is_refused() -> None:
    with pytest.raises(ValueError, match="Nowhere has no action_space; set it in __init__"):
        WordedEnv(Nowhere(), GivenWords()).build_prompt()


@pytest.mark.parametrize("observation", ["five", None, [1, None]])
def test_an_observation_that_is_no_number_is_named_with_its_space(observation: Any) -> None:
    with pytest.raises(ValueError, match=r"an observation is .*, but its space is Discrete\(5\)"):
        state_words(spaces.Discrete(5), observation)


def test_a_picture_in_a_mode_that_png_lacks_is_converted() -> None:
    image = pytest.importorskip("PIL.Image")
    (part,) = describe_observation(show, image.new("CMYK", (2, 2)))
    assert part[1] == "image/png"


class Nowhere(gymnasium.Env[Any, Any]):
    """An environment that forgot its spaces."""


def walk(space: spaces.Space[Any], words: GivenWords) -> WordedEnv:
    """Return an environment with these actions, told in these words."""
    env = Nowhere()
    env.action_space, env.observation_space = space, spaces.Discrete(2)
    return WordedEnv(env, words)

"""Reward files, read as Harbor reads them; and the one number that trains.

Mutants seen caught: text before JSON, infinite numbers, the first of several keys, texts as
numbers.
"""

import json
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import VerifierError
from agentrl_envs.harbor.rewards import choose_reward, parse_rewards

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
KEYS = st.text(string.ascii_letters, min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("json_file", "text_file", "rewards"),
    [
        (None, b"1", {"reward": 1.0}),
        (None, b" 0.25\n", {"reward": 0.25}),
        (None, b"-1e-3", {"reward": -0.001}),
        (b'{"reward": 0}', b"1", {"reward": 0.0}),
        (b'{"a": 1, "b": 2.5}', None, {"a": 1.0, "b": 2.5}),
        (b'{"reward": true}', None, {"reward": 1.0}),
        (b'{"a": 1, "a": 2}', None, {"a": 2.0}),
        (b"{}", b"1", {}),
    ],
)
def test_what_a_verdict_says(
    json_file: bytes | None, text_file: bytes | None, rewards: dict[str, float]
) -> None:
    assert parse_rewards(json_file, text_file) == rewards


@pytest.mark.parametrize(
    ("json_file", "text_file", "why"),
    [
        (None, None, "neither .*reward.json nor .*reward.txt"),
        (None, b"", "reward.txt is empty"),
        (None, b"\n", "write a number"),
        (None, b"good", "write a number"),
        (None, b"1 0", "write a number"),
        (None, b"\xff", "write a number"),
        (None, b"nan", "finite"),
        (None, b"1e400", "finite"),
        (b"", b"1", "reward.json is empty"),
        (b"1", b"1", "write an object"),
        (b"[1]", b"1", "write an object"),
        (b"null", b"1", "write an object"),
        (b"{", b"1", "no JSON"),
        (b"\xff{}", b"1", "no JSON"),
        (b"[" * 100_000, b"1", "no JSON"),
        (b'{"reward": "1"}', b"1", r"key 'reward', is '1'"),
        (b'{"reward": null}', None, "write a number"),
        (b'{"reward": [1]}', None, "write a number"),
        (b'{"reward": NaN}', None, "finite"),
        (b'{"reward": 1, "b": Infinity}', None, r"key 'b'.*finite"),
        (b'{"reward": 1e999}', None, "finite"),
        (b'{"reward": 1' + b"0" * 400 + b"}", None, "bits"),
        (b'{"a": ' + b" " * 2**20 + b"1}", None, "more than"),
    ],
)
def test_what_is_no_verdict(json_file: bytes | None, text_file: bytes | None, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        parse_rewards(json_file, text_file)


@given(rewards=st.dictionaries(KEYS, NUMBERS, max_size=4), text=st.binary(max_size=8) | st.none())
def test_json_goes_before_text_whatever_that_says(
    rewards: dict[str, float], text: bytes | None
) -> None:
    read = parse_rewards(json.dumps(rewards).encode(), text)
    assert read == {key: float(value) for key, value in rewards.items()}


@given(file=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_any_file_is_finite_numbers_or_a_failure(file: bytes) -> None:
    for files in ((file, None), (None, file)):
        try:
            rewards = parse_rewards(*files)
        except VerifierError:
            continue
        assert all(math.isfinite(value) for value in rewards.values())


@pytest.mark.parametrize(
    ("rewards", "key", "reward"),
    [
        ({"reward": 0.5, "other": 1.0}, "", 0.5),
        ({"score": 0.5}, "", 0.5),
        ({"reward": 0.5, "other": 1.0}, "other", 1.0),
    ],
)
def test_the_number_that_trains(rewards: dict[str, float], key: str, reward: float) -> None:
    assert choose_reward(rewards, key) == reward


@pytest.mark.parametrize(
    ("rewards", "key", "why"),
    [
        ({"a": 1.0, "b": 0.0}, "", "no key 'reward'.*a, b; set reward_key"),
        ({}, "", "keys are: none"),
        ({"reward": 1.0}, "score", "reward_key is 'score'.*reward"),
        ({"a": 1.0}, "score", "reward_key is 'score'"),
    ],
)
def test_no_number_is_guessed(rewards: dict[str, float], key: str, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        choose_reward(rewards, key)

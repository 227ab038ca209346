"""Reward files of a Harbor verifier, read exactly as Harbor does; and the one number of them.

`reward.json` goes before `reward.txt`. The first is an object of finite numbers, the second one
finite number, whose key is `reward`. Anything else is no verdict: `VerifierError`, never 0.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from agentrl.errors import VerifierError

JSON_FILE, TEXT_FILE = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
REWARD_BYTES = 2**20
DEFAULT_KEY = "reward"


def parse_rewards(json_file: bytes | None, text_file: bytes | None) -> dict[str, float]:
    """Return the rewards by key of the two files; None stands for a file that is not there.

    Raises `VerifierError` for no file, an empty one, and one that is no verdict.
    """
    if json_file is not None:
        return _parse_json(json_file)
    if text_file is not None:
        return {DEFAULT_KEY: _parse_text(text_file)}
    raise VerifierError(
        f"the verifier wrote neither {JSON_FILE} nor {TEXT_FILE}; write one of them from every "
        "path of tests/test.sh"
    )


def choose_reward(rewards: Mapping[str, float], key: str = "") -> float:
    """Return the reward that trains: that of `key`; without one `reward`, or else the only one.

    Raises `VerifierError` where that names none.
    """
    if key or DEFAULT_KEY in rewards:
        if (name := key or DEFAULT_KEY) in rewards:
            return rewards[name]
    elif len(rewards) == 1:
        return next(iter(rewards.values()))
    listed = ", ".join(sorted(rewards)) or "none"
    rule = f"reward_key is {key!r}" if key else f"there is no key {DEFAULT_KEY!r}"
    raise VerifierError(
        f"{rule}, but the verifier's keys are: {listed}; set reward_key to the one that trains"
    )


def _parse_json(file: bytes) -> dict[str, float]:
    if not file:
        raise VerifierError(f"{JSON_FILE} is empty; write an object of numbers")
    if len(file) > REWARD_BYTES:
        raise VerifierError(f"{JSON_FILE} has more than {REWARD_BYTES} bytes")
    try:
        # Python's own reader, and no other: what it takes is what Harbor takes.
        values: Any = json.loads(file.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise VerifierError(f"{JSON_FILE} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise VerifierError(f"{JSON_FILE} is {values!r:.80}; write an object of numbers")
    rewards = cast("dict[str, Any]", values)
    return {key: _check_number(JSON_FILE, value, key) for key, value in rewards.items()}


def _parse_text(file: bytes) -> float:
    if not file:
        raise VerifierError(f"{TEXT_FILE} is empty; write a number")
    try:
        value = float(file.decode("utf-8"))
    except ValueError as error:
        raise VerifierError(f"{TEXT_FILE} is {file[:80]!r}; write a number") from error
    return _check_number(TEXT_FILE, value)


def _check_number(file: str, value: object, key: str = "") -> float:
    where = f"{file}, key {key!r}," if key else file
    if not isinstance(value, int | float):
        raise VerifierError(f"{where} is {value!r:.80}; write a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise VerifierError(f"{where} is an integer of {value.bit_length()} bits") from error  # type: ignore[union-attr]
    if not math.isfinite(number):
        raise VerifierError(f"{where} is {number}; a reward must be a finite number")
    return number

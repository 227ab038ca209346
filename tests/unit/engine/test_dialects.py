"""Dialects of servers: golden translations, and answers that are anything.

Mutants seen caught: events that repeat what came before are read twice; a prompt that is believed;
a key that is no token; a seed that SGLang's 31 bits do not hold; versions of five thousand digits;
events that are new read as those that repeat.
"""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.endpoint.completion_reader import (
    CompletionReader,
    VersionSpan,
    build_sample_body,
    build_score_body,
)
from agentrl.engine.endpoint.dialects import Api, find_dialect
from agentrl.errors import AgentrlError, ConfigError
from agentrl.policy import GenerateRequest, Sampling

PROMPT = (5, 6)
APIS: tuple[Api, ...] = ("completions", "generate", "sglang")
REQUEST = GenerateRequest(
    id="r",
    prompt=PROMPT,
    max_new_tokens=4,
    sampling=Sampling(temperature=0.5, top_k=0),
    stop_token_ids=frozenset({9}),
    top_logprobs=2,
    seed=3,
)


def body() -> dict[str, Any]:
    return build_sample_body(REQUEST, PROMPT, model="m", max_tokens=4)


def reader(prompt: tuple[int, ...] = PROMPT) -> CompletionReader:
    return CompletionReader("s", prompt, vocabulary=20, sampling=REQUEST.sampling, top_logprobs=2)


def test_bodies_golden() -> None:
    generate = find_dialect("generate").write_body(body())
    assert generate["token_ids"] == [5, 6]
    assert (generate["model"], generate["stream"]) == ("m", True)
    inner = generate["sampling_params"]
    assert (inner["max_tokens"], inner["temperature"], inner["logprobs"]) == (4, 0.5, 2)
    assert inner["stop_token_ids"] == [9]
    assert "prompt" not in inner
    sglang = find_dialect("sglang").write_body(body())
    assert sglang["input_ids"] == [5, 6]
    assert sglang["return_logprob"] is True
    assert sglang["top_logprobs_num"] == 2
    asked = sglang["sampling_params"]
    assert (asked["max_new_tokens"], asked["top_k"], asked["ignore_eos"]) == (4, -1, True)
    assert 0 <= asked["sampling_seed"] < 2**31
    score = find_dialect("sglang").write_body(
        build_score_body((5, 6, 7), model="m", top_logprobs=0)
    )
    assert (score["logprob_start_len"], score["top_logprobs_num"]) == (0, 0)


def test_generate_golden() -> None:
    translate, reading = find_dialect("generate").open_answer(PROMPT), reader()
    logprobs = {
        "content": [
            {
                "token_id": 7,
                "logprob": -0.5,
                "top_logprobs": [
                    {"token_id": 7, "logprob": -0.5},
                    {"token_id": 8, "logprob": -0.9},
                    {"token_id": 1, "logprob": -9999.0},
                ],
            }
        ]
    }
    spans = [{"version": "3", "start": 0, "end": 1}]
    choice = {"token_ids": [7], "logprobs": logprobs, "finish_reason": "length"}
    event = {"choices": [{**choice, "weight_versions": spans}], "prompt_token_ids": [5, 6]}
    piece = reading.piece(translate(event))
    assert (piece.tokens, piece.logprobs, piece.finish) == ((7,), (-0.5,), "length")
    assert piece.top_logprobs == (((7, -0.5), (8, -0.9)),)
    assert piece.spans == (VersionSpan(3, 0, 1),)


def sglang_event(count: int, **changes: Any) -> dict[str, Any]:
    tokens = [7, 8, 9][:count]
    meta = {
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "completion_tokens": count,
        "finish_reason": {"type": "stop"} if count == 3 else None,
        "output_token_logprobs": [[-0.1 * t, t, None] for t in tokens],
        "output_top_logprobs": [[[-0.1 * t, t, None], [-3.0, 1, None]] for t in tokens],
    }
    return {"output_ids": tokens, "meta_info": {**meta, **changes}}


def test_sglang_golden() -> None:
    translate, reading = find_dialect("sglang").open_answer(PROMPT), reader()
    pieces = [reading.piece(translate(sglang_event(count))) for count in (1, 3)]
    assert [piece.tokens for piece in pieces] == [(7,), (8, 9)]
    assert pieces[1].logprobs == pytest.approx((-0.8, -0.9))
    assert pieces[1].top_logprobs[0] == ((8, pytest.approx(-0.8)), (1, -3.0))
    assert [piece.finish for piece in pieces] == [None, "stop"]
    assert pieces[0].cached_tokens == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 3},
        {"output_token_logprobs": [[-0.7, 4, None]]},
        {"output_token_logprobs": []},
        {"output_token_logprobs": [[None, 7, None]]},
    ],
)
def test_what_sglang_says_is_checked(changes: dict[str, Any]) -> None:
    translate = find_dialect("sglang").open_answer(PROMPT)
    with pytest.raises(AgentrlError):
        reader().piece(translate(sglang_event(1, **changes)))


def test_sglang_repeats_what_came_before_or_is_refused() -> None:
    """With --stream-output each event is new, and the second token would be left out."""
    translate, reading = find_dialect("sglang").open_answer(PROMPT), reader()
    reading.piece(translate(sglang_event(1)))
    new = sglang_event(3)
    new["output_ids"] = new["output_ids"][1:]
    for rows in ("output_token_logprobs", "output_top_logprobs"):
        new["meta_info"][rows] = new["meta_info"][rows][1:]
    with pytest.raises(ConfigError, match="without --stream-output"):
        translate(new)


LOGPROBS = {
    "content": [
        {"token_id": 7, "logprob": -0.5, "top_logprobs": [{"token_id": 7, "logprob": -0.5}]},
    ]
}
SPANS = [{"version": "3", "start": 0, "end": 1}]
CHOICE = {"token_ids": [7], "finish_reason": "length", "weight_versions": SPANS}
USAGE = {"prompt_tokens_details": {"cached_tokens": 1}}
ROWS = [None, {"6": {"logprob": -0.4}}]
ANSWERS: dict[Api, dict[str, Any]] = {
    "completions": {
        "choices": [
            {
                **CHOICE,
                "prompt_token_ids": [5, 6],
                "prompt_logprobs": ROWS,
                "logprobs": {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:7": -0.5}]},
            }
        ],
        "usage": USAGE,
    },
    "generate": {
        "choices": [{**CHOICE, "logprobs": LOGPROBS}],
        "prompt_token_ids": [5, 6],
        "prompt_logprobs": ROWS,
        "usage": USAGE,
    },
    "sglang": sglang_event(1, input_token_logprobs=[[None, 5, None], [-0.4, 6, None]]),
}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.sampled_from([10**400, -(10**400)]),
    st.floats(),
    st.sampled_from(["x", "", "1" * 5000, "token_id:x", "-1", "\u0663"]),
    st.sampled_from([[], {}, [[]], [None], [[None, None]], {"x": 1}, {"token_id:x": -0.5}]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside another."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    below = [place for key, one in inner for place in places(one, (*path, key))]
    return [path, *below]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copied = copy.copy(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], by)
    return copied


@pytest.mark.parametrize("api", APIS)
def test_the_answers_that_are_changed_below_are_right(api: Api) -> None:
    translate = find_dialect(api).open_answer(PROMPT)
    assert reader().piece(translate(ANSWERS[api])).tokens == (7,)
    assert reader().scores(find_dialect(api).open_answer(PROMPT)(ANSWERS[api])) == [{6: -0.4}]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(APIS), st.data(), ANYTHING)
def test_any_answer_is_read_or_refused(api: Api, data: st.DataObject, strange: Any) -> None:
    """It is no crash, whatever a server says anywhere in an answer."""
    path = data.draw(st.sampled_from(places(ANSWERS[api])))
    event = replaced(ANSWERS[api], path, strange)
    with contextlib.suppress(AgentrlError):
        piece = reader().piece(find_dialect(api).open_answer(PROMPT)(event))
        assert all(isinstance(token, int) for token in piece.tokens)
    with contextlib.suppress(AgentrlError):
        reader().scores(find_dialect(api).open_answer(PROMPT)(event))


@pytest.mark.parametrize(
    "key", ["token_id:x", "token_id:-1", "token_id:20", "token_id:" + "1" * 5000]
)
def test_a_key_that_is_no_token_is_refused(key: str) -> None:
    path = ("choices", 0, "logprobs", "top_logprobs", 0)
    event = replaced(ANSWERS["completions"], path, {key: -0.5})
    with pytest.raises(AgentrlError):
        reader().piece(event)
    with pytest.raises(AgentrlError):
        reader().scores(
            replaced(
                ANSWERS["completions"],
                ("choices", 0, "prompt_logprobs", 1),
                {key: {"logprob": -0.5}, "6": {"logprob": -0.5}},
            )
        )

"""What vLLM's outputs are read as, without vLLM; with it: tests/system/with_vllm/test_engine.py.

Mutants seen caught: a NaN that is clamped to 0; alternatives in the order they came; a point with a
log-prob; scores a token too early.
"""

import math
from dataclasses import dataclass

import pytest

from agentrl.engine.vllm.vllm_sampler import read_picks, read_scores
from agentrl.errors import EngineError
from agentrl.policy import GenerateRequest, Sampling, ScoreRequest


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None


def row(**values: float) -> dict[int, Logprob]:
    return {int(name[1:]): Logprob(value) for name, value in values.items()}


def asked(**changes: object) -> GenerateRequest:
    given = {"id": "a", "prompt": (1, 2), "max_new_tokens": 4, **changes}
    return GenerateRequest(**given)  # pyright: ignore[reportArgumentType]


def test_tokens_come_with_log_probs_and_alternatives_most_likely_first() -> None:
    completion = Completion([7, 8], [row(_7=-2.0, _3=-0.1), row(_3=-0.5, _8=1e-8, _5=-math.inf)])
    first, second = read_picks(completion, asked(top_logprobs=2))
    assert (first.token, first.logprob, first.top) == (7, -2.0, ((3, -0.1), (7, -2.0)))
    assert (second.token, second.logprob, second.top) == (8, 0.0, ((8, 0.0), (3, -0.5)))


def test_vllm_adds_the_token_to_its_alternatives_and_it_is_none_of_them() -> None:
    completion = Completion([7], [row(_7=-5.0, _3=-0.1, _4=-3.0)])
    assert read_picks(completion, asked(top_logprobs=2))[0].top == ((3, -0.1), (4, -3.0))
    assert read_picks(completion, asked())[0].top == ()


def test_a_point_has_log_prob_0_whatever_vllm_says() -> None:
    greedy = asked(sampling=Sampling(temperature=0), top_logprobs=1)
    (pick,) = read_picks(Completion([7], [row(_7=-1.5)]), greedy)
    assert (pick.logprob, pick.top) == (0.0, ((7, 0.0),))


@pytest.mark.parametrize("strange", [math.nan, -math.inf, math.inf])
def test_what_is_no_log_prob_is_an_engines_failure(strange: float) -> None:
    with pytest.raises(EngineError, match="not finite or have diverged"):
        read_picks(Completion([7], [row(_7=strange)]), asked())
    score = ScoreRequest(id="s", prompt=(1,), token_ids=(7,))
    with pytest.raises(EngineError, match="not finite or have diverged"):
        read_scores([None, row(_7=strange)], score)


def test_scores_are_of_the_tokens_after_the_prompt() -> None:
    rows = [None, row(_2=-9.0), row(_7=-1.0, _3=-0.5), row(_8=-2.0, _4=-0.2)]
    score = ScoreRequest(id="s", prompt=(1, 2), token_ids=(7, 8), top_logprobs=1)
    assert read_scores(rows, score) == ([-1.0, -2.0], [((3, -0.5),), ((4, -0.2),)])

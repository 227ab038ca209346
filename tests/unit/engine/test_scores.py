"""Scores of the local engine: those of a full forward pass, of one version, whatever goes on.

Mutants seen caught: the first token not scored; scored tokens taken from the cache; scores of two
versions after a load; rows of a segment in reverse order.
"""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.errors import EngineError
from agentrl.policy import GenerateRequest, Sampling, ScoreRequest, Scores
from tests.support.engine_models import (
    MODELS,
    VOCABULARY,
    logits_of,
    prompt_of,
    requests,
    shared,
    tiny,
)
from tests.unit.engine.test_local import turns, warped


def ask(prompt: int, count: int, seed: int = 0, **changes: Any) -> ScoreRequest:
    tokens = prompt_of(prompt + count, seed=seed)
    return ScoreRequest(
        id=f"s{prompt}-{count}-{seed}", prompt=tokens[:prompt], token_ids=tokens[prompt:], **changes
    )


def gap_nats(model: Any, request: ScoreRequest, scores: Scores) -> float:
    logprobs = logits_of(model, request.prompt, request.token_ids).log_softmax(-1)
    want = logprobs.gather(-1, torch.tensor(request.token_ids).unsqueeze(-1)).squeeze(-1)
    assert len(scores.logprobs) == len(request.token_ids)
    return float((want - torch.tensor(scores.logprobs)).abs().max())


@pytest.mark.parametrize("name", MODELS)
async def test_scores_are_those_of_a_full_forward_pass_among_other_requests(name: str) -> None:
    """Longer than a prefill, so that they come in pieces; some begin after the first token."""
    asked = [ask(1, 40), ask(30, 1), ask(64, 90, seed=1), ask(5, 33, seed=2), ask(90, 64, seed=1)]
    others = requests(10, seed=4)
    async with LocalEngine(shared(name), slots=6, context_tokens=256, prefill_tokens=50) as engine:
        done = await asyncio.gather(
            *(engine.score(request) for request in asked),
            *(engine.generate(request) for request in others),
        )
        for request, scores in zip(asked, done, strict=False):
            assert isinstance(scores, Scores)
            assert gap_nats(shared(name), request, scores) < 1e-4
        assert engine.statistics().scored_tokens == 40 + 1 + 90 + 33 + 64
        alone = [await engine.generate(replace(r, id=f"{r.id}'")) for r in others]
    assert [x.token_ids for x in alone] == [
        x.token_ids for x in done[5:] if not isinstance(x, Scores)
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=5),
        Sampling(temperature=1.5, top_p=0.6),
    ],
)
async def test_what_was_sampled_is_scored_as_it_was_sampled(sampling: Sampling) -> None:
    """To the last bit, alternatives and entropies too: for our decoder a pass is a pass."""
    request = GenerateRequest(
        id="a",
        prompt=prompt_of(20),
        max_new_tokens=30,
        sampling=sampling,
        top_logprobs=4,
        entropies=True,
    )
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=128) as engine:
        done = await engine.generate(request)
        scores = await engine.score(
            ScoreRequest(
                id="s",
                prompt=request.prompt,
                token_ids=done.token_ids,
                sampling=sampling,
                top_logprobs=4,
                entropies=True,
                distribution=True,
            )
        )
    assert scores.logprobs == done.logprobs
    assert scores.top_logprobs == done.top_logprobs
    assert scores.entropies == done.entropies
    want = warped(logits_of(shared("qwen3"), request.prompt, done.token_ids), request)[-1]
    assert scores.distribution == pytest.approx(want.tolist(), abs=1e-4)
    assert sum(math.exp(x) for x in scores.distribution) == pytest.approx(1, abs=1e-5)


async def test_a_token_that_cannot_be_drawn_has_no_chance() -> None:
    request = ask(20, 60, sampling=Sampling(top_k=2))
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=128) as engine:
        scores = await engine.score(request)
    assert -math.inf in scores.logprobs


async def test_scores_that_a_load_interrupts_are_all_of_the_new_weights() -> None:
    new = tiny("qwen3", seed=7)
    request = ask(20, 100)
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=128, prefill_tokens=30) as e:
        scoring = asyncio.create_task(e.score(request))
        await turns(2)
        await e.load(new.state_dict(), version=5)
        scores = await scoring
    assert scores.version == 5
    assert gap_nats(new, request, scores) < 1e-4


async def test_a_pause_and_a_close_end_scores_with_nothing() -> None:
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=128, prefill_tokens=10) as e:
        scoring = asyncio.create_task(e.score(ask(20, 100)))
        await turns(2)
        await e.pause()
        assert (await scoring).logprobs == ()
        await e.resume()
        assert len((await e.score(ask(20, 100))).logprobs) == 100
        scoring = asyncio.create_task(e.score(ask(20, 90)))
        await turns(2)
    assert (await scoring).logprobs == ()
    assert e.statistics().running == 0


async def test_a_cancelled_score_frees_its_slot() -> None:
    async with LocalEngine(shared("qwen3"), slots=1, context_tokens=128, prefill_tokens=10) as e:
        scoring = asyncio.create_task(e.score(ask(20, 100)))
        await turns(2)
        scoring.cancel()
        await asyncio.wait([scoring])
        assert len((await e.score(ask(20, 100))).logprobs) == 100


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ask(0, 3), "at least one of each"),
        (ask(3, 0), "at least one of each"),
        (ask(3, 62), r"engine\.context_tokens=64"),
        (replace(ask(3, 3), token_ids=(1, VOCABULARY)), "vocabulary"),
        (replace(ask(3, 3), top_logprobs=VOCABULARY + 1), "top_logprobs"),
    ],
)
async def test_scores_that_cannot_be_given_are_refused(request_: ScoreRequest, says: str) -> None:
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=64) as engine:
        with pytest.raises(ValueError, match=says):
            await engine.score(request_)


async def test_weights_that_are_not_finite_break_the_engine_and_say_so() -> None:
    broken = {name: value * math.nan for name, value in shared("qwen3").state_dict().items()}
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=64) as engine:
        await engine.load(broken, version=1)
        with pytest.raises(EngineError, match="not finite"):
            await engine.score(ask(3, 3))

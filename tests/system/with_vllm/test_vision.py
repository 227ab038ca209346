"""Policies that see, sampled by vLLM, beside a plain forward pass and the local engine.

Mutants seen caught: what the tower made of images kept over a load; images left out of the names of
blocks; patches that the worker forgets; colours normalised twice; an image a place too early.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError, EnvError
from agentrl.message import Image, ImageSpan
from agentrl.policy import Completion, GenerateRequest, ScoreRequest, Scores
from tests.support.examples import spread_cases
from tests.support.vision_models import (
    END,
    PAD,
    START,
    logits_of,
    picture,
    processor,
    prompt,
    tiny,
)

if TYPE_CHECKING:
    from agentrl.engine.vllm.in_process import VllmEngine

# vLLM and what it imports warn of each other.
pytestmark = pytest.mark.filterwarnings("default")

CONTEXT_TOKENS = 192
BLOCK_TOKENS = 32
"""Only whole blocks are cached."""
CLOSE = 1e-3
KINDS = [
    ("qwen2_vl", True),
    ("qwen2_5_vl", False),
    ("qwen3_vl", True),
    ("qwen3_vl", False),
]
Kind = tuple[str, bool]
Pictures = Sequence[Image]
NONE: Pictures = ()
ONE = (picture(1),)
TOLD = tuple((7 * n) % 280 for n in range(60))
"""Tokens that are scored: more than one step computes."""
THREE = (picture(2), picture(3, 60, 90), picture(4, 120, 50))


@pytest.fixture(
    params=spread_cases([(kind,) for kind in KINDS], 1),
    ids=[f"{f} {'tied' if t else 'untied'}" for f, t in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@cache
def policy(kind: Kind, seed: int = 0) -> PreTrainedModel:
    """Return a policy that no test changes; vLLM's CPU build has no heads narrower than 32."""
    family, tied = kind
    return tiny(family, seed, tied=tied, head_dim=32).float()


def opened(kind: Kind, folder: Path, **changes: Any) -> "VllmEngine":
    from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

    policy(kind).save_pretrained(folder)
    processor(kind[0]).save_pretrained(folder)
    given: dict[str, Any] = {
        "model": folder,
        "slots": 8,
        "context_tokens": CONTEXT_TOKENS,
        "dtype": "float32",
        # Less than an image has, so one is read in several steps.
        "prefill_tokens": 24,
        "options": {"block_size": BLOCK_TOKENS},
        **changes,
    }
    return VllmEngine(VllmSettings(**given))


def asked(
    kind: Kind, images: Pictures, *, seed: int = 0, name: str = "r", **changes: Any
) -> GenerateRequest:
    tokens, spans = prompt(kind[0], images, seed=seed, words=12)
    given: dict[str, Any] = {"max_new_tokens": 24, "seed": seed, **changes}
    return GenerateRequest(id=f"{name}{seed}", prompt=tokens, images=spans, **given)


def logprobs_of(
    model: PreTrainedModel,
    family: str,
    request: GenerateRequest | ScoreRequest,
    tokens: Sequence[int],
) -> torch.Tensor:
    """Return (tokens, vocabulary) log-probs of a plain forward pass over prompt and tokens."""
    images = [span.image for span in request.images]
    logits = logits_of(model, family, (*request.prompt, *tokens[:-1]), images)
    return logits[len(request.prompt) - 1 :].log_softmax(-1)


def comparable(tokens: Sequence[int]) -> Sequence[int]:
    """Return tokens up to a sampled placeholder, at which a plain pass looks for an image."""
    return tokens[: tokens.index(PAD) + 1] if PAD in tokens else tokens


def gap(
    kind: Kind, request: GenerateRequest, done: Completion, seeds: Sequence[int] = (0,)
) -> float:
    """Return how far log-probs are from a plain pass of the policy that each version was."""
    assert len(done.token_ids) == len(done.logprobs) > 0
    tokens = comparable(done.token_ids)
    of_all = [logprobs_of(policy(kind, seed), kind[0], request, tokens) for seed in seeds]
    return max(
        abs(of_all[version][at, token].item() - logprob)
        for at, (token, logprob, version) in enumerate(
            zip(tokens, done.logprobs, done.versions, strict=False)
        )
    )


def again(
    request: GenerateRequest, done: Completion, more: Pictures, family: str
) -> GenerateRequest:
    """Return the request of the next turn, which shows more images."""
    tokens, spans = prompt(family, more, seed=77)
    said = (*request.prompt, *(7 if token == PAD else token for token in done.token_ids))
    moved = tuple(span.moved(len(said)) for span in spans)
    return replace(
        request, id=f"{request.id} again", prompt=said + tokens, images=request.images + moved
    )


async def test_it_samples_what_a_plain_pass_would_and_updates(kind: Kind, tmp_path: Path) -> None:
    """One engine for all of it: vLLM takes seconds to start."""
    family = kind[0]
    requests = [
        asked(kind, images, seed=seed, entropies=True, top_logprobs=2)
        for seed, images in enumerate((NONE, ONE, THREE, ONE, THREE))
    ]
    async with (
        opened(kind, tmp_path / "policy") as engine,
        LocalEngine(
            policy(kind), slots=8, context_tokens=CONTEXT_TOKENS, images=processor(family)
        ) as local,
    ):
        theirs = await asyncio.gather(*(engine.generate(one) for one in requests))
        ours = await asyncio.gather(*(local.generate(one) for one in requests))
        assert [got.token_ids for got in theirs] == [got.token_ids for got in ours]
        assert [got.entropies for got in theirs] == [
            pytest.approx(got.entropies, abs=CLOSE) for got in ours
        ]
        assert max(map(gap, [kind] * 5, requests, theirs)) <= CLOSE

        # A later turn shows another image, after keys that are kept.
        second = again(requests[1], theirs[1], (picture(9),), family)
        later = await engine.generate(second)
        assert later.prompt_cached_tokens >= BLOCK_TOKENS
        assert gap(kind, second, later) <= CLOSE

        await check_placeholder_is_a_word(family, engine, local)
        await check_goes_on_after_an_abort(engine, requests[4], theirs[4])

        # In mid-request, new weights: what was seen is seen anew.
        score = ScoreRequest(
            id="score", prompt=second.prompt, images=second.images, token_ids=TOLD, entropies=True
        )
        check_scores(kind, 0, score, await engine.score(score))
        running = [asyncio.create_task(engine.generate(one)) for one in requests]
        scoring = asyncio.create_task(engine.score(score))
        await sampled(engine)
        await engine.load(policy(kind, 1).state_dict(), 1)
        mixed = await asyncio.gather(*running)
        assert any(set(got.versions) == {0, 1} for got in mixed)
        assert max(map(gap, [kind] * 5, requests, mixed, [(0, 1)] * 5)) <= CLOSE
        scores = await scoring
        check_scores(kind, scores.version, score, scores)

        for number in (2, 3):
            seed = number % 2
            policy(kind, seed).save_pretrained(tmp_path / str(number))
            await engine.load(tmp_path / str(number), number)
            got = await engine.generate(second)
            assert got.prompt_cached_tokens == 0
            assert (
                gap(kind, second, replace(got, versions=(0,) * len(got.versions)), [seed]) <= CLOSE
            )
            check_scores(kind, seed, score, await engine.score(score))


async def sampled(engine: "VllmEngine") -> None:
    """Wait until something has been drawn, or scored."""
    while not any(one.logprobs for one in engine.in_flight):  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0)


def check_scores(kind: Kind, seed: int, request: ScoreRequest, scores: Scores) -> None:
    wanted = logprobs_of(policy(kind, seed), kind[0], request, request.token_ids)
    assert scores.logprobs == pytest.approx(picked(wanted, request.token_ids), abs=CLOSE)
    spread = (-wanted.exp() * wanted).sum(-1).tolist()
    assert scores.entropies == pytest.approx(spread, abs=CLOSE)


async def check_placeholder_is_a_word(
    family: str, engine: "VllmEngine", local: LocalEngine
) -> None:
    """Only spans show an image, whatever a policy has said, and between what it has said it."""
    first, shown = prompt(family, ONE, words=12)
    said = (*first, PAD, 7, START, PAD, PAD, END)
    other, behind = prompt(family, (picture(3),), seed=4)
    spans: tuple[ImageSpan, ...] = (*shown, *(span.moved(len(said)) for span in behind))
    request = GenerateRequest(
        id="said", prompt=(*said, *other), images=spans, max_new_tokens=24, seed=1
    )
    theirs, ours = await engine.generate(request), await local.generate(request)
    assert theirs.token_ids == ours.token_ids
    assert theirs.logprobs == pytest.approx(ours.logprobs, abs=CLOSE)


async def check_goes_on_after_an_abort(
    engine: "VllmEngine", request: GenerateRequest, whole: Completion
) -> None:
    waiting = asyncio.create_task(engine.generate(request))
    await sampled(engine)
    await engine.abort(request.id)
    part = await waiting
    assert part.finish == "aborted"
    count = len(part.token_ids)
    assert 0 < count < len(whole.token_ids)
    rest = await engine.generate(
        replace(
            request,
            prompt=request.prompt + part.token_ids,
            max_new_tokens=request.max_new_tokens - count,
        )
    )
    assert part.token_ids + rest.token_ids == whole.token_ids
    assert part.logprobs + rest.logprobs == pytest.approx(whole.logprobs, abs=CLOSE)


def measure(worker: Any) -> None:
    worker.model_runner.profile_run()


@pytest.mark.nightly
async def test_what_is_kept_is_of_one_image_and_of_one_tower(tmp_path: Path) -> None:
    """Two images of one size have the same tokens, and one image under a new tower, too."""
    kind = ("qwen3_vl", True)
    pictures = [picture(n) for n in (1, 2)]
    requests = [
        asked(kind, (one, picture(7), picture(5)), name=f"{n} ") for n, one in enumerate(pictures)
    ]
    assert requests[0].prompt == requests[1].prompt
    assert requests[0].images[0].start < BLOCK_TOKENS
    async with opened(kind, tmp_path / "policy") as engine:
        # What vLLM does on a GPU before it shares out the memory.
        core: Any = engine._core  # pyright: ignore[reportPrivateUsage]
        core._engine.collective_rpc(measure)
        await check_unshown_images(engine, kind)
        done = [await engine.generate(requests[n]) for n in (0, 1, 0, 1)]
        assert [got.prompt_cached_tokens > 0 for got in done] == [False, False, True, True]
        assert done[0].logprobs != done[1].logprobs
        assert max(gap(kind, requests[n % 2], done[n]) for n in range(4)) <= CLOSE
        # The same where they differ only behind: what is before them is shared.
        behind = asked(kind, (pictures[0], picture(7), picture(6)), name="behind")
        got = await engine.generate(behind)
        assert 0 < got.prompt_cached_tokens <= behind.images[2].start
        assert gap(kind, behind, got) <= CLOSE

        # Only the tower is another: keys of words are what they were, and those of images are not.
        changed = tiny(*kind[:1], 0, tied=True, head_dim=32).float()
        with torch.no_grad():
            for weight in changed.model.visual.parameters():
                weight.mul_(1.5)
        await engine.load(changed.state_dict(), 1)
        got = await engine.generate(requests[0])
        tokens = comparable(got.token_ids)
        wanted = picked(logprobs_of(changed, kind[0], requests[0], tokens), tokens)
        assert got.logprobs[: len(wanted)] == pytest.approx(wanted, abs=CLOSE)
        assert got.logprobs != pytest.approx(done[0].logprobs, abs=CLOSE)


def picked(logprobs: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    return [row[token].item() for row, token in zip(logprobs, tokens, strict=True)]


async def check_unshown_images(engine: "VllmEngine", kind: Kind) -> None:
    """Images that it cannot show are refused, and hurt nothing."""
    request = asked(kind, ONE, seed=9)
    (span,) = request.images
    astray = replace(request, images=(span.moved(1),))
    with pytest.raises(ValueError, match="are not all the image placeholder 290"):
        await engine.generate(astray)
    film = replace(span, image=Image(b"\x00\x00\x00\x18ftypmp42", "video/mp4"))
    with pytest.raises(EnvError, match=r"declared as video/mp4 are not an image"):
        await engine.generate(replace(request, images=(film,)))
    with pytest.raises(EnvError, match="are not an image"):
        await engine.score(
            ScoreRequest(id="s", prompt=request.prompt, images=(film,), token_ids=(1,))
        )
    assert gap(kind, request, await engine.generate(request)) <= CLOSE


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("llava", "LlavaForConditionalGeneration"),
        ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    ],
)
def test_a_model_that_sees_in_another_way_is_refused(
    tmp_path: Path, model_type: str, named: str
) -> None:
    from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": model_type, "architectures": [named]})
    )
    with pytest.raises(ConfigError, match=rf"is a {named}.*Qwen3VLFor.*engine\.kind: local"):
        VllmEngine(VllmSettings(model=tmp_path))


def test_a_folder_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

    policy(("qwen3_vl", True)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        VllmEngine(VllmSettings(model=tmp_path))

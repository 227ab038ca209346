"""The engine with images: its log-probs are those of a plain forward pass of transformers.

Mutants seen caught: images without a name in the cache, rotations in another order in memory,
features kept over a load, positions behind an image one off, deep features left out, and the first
tokens of an image for its later ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.engine import image_encoder
from agentrl.engine.local import LocalEngine
from agentrl.errors import EnvError
from agentrl.message import Image, ImageSpan
from agentrl.models.vision.encoder_cache import ImageFeatures
from agentrl.models.vision.processor import ImagePatches, ImageProcessor
from agentrl.policy import Completion, GenerateRequest, Sampling, ScoreRequest
from agentrl.testing.engine import check_engine
from tests.support.vision_models import (
    FAMILIES,
    PAD,
    VOCABULARY,
    CountingProcessor,
    logits_of,
    picture,
    processor,
    prompt,
    shared,
    tiny,
)

PICTURES: dict[int, tuple[Image, ...]] = {
    0: (),
    1: (picture(1),),
    3: (picture(1), picture(2, 60, 100), picture(3, 120, 40)),
}
TOLERANCE = 1e-4
"""Nats. What is seen is rounding, below 1e-5."""


def engine_of(family: str, model: Any = None, **changes: Any) -> LocalEngine:
    given: dict[str, Any] = {
        "slots": 4,
        "context_tokens": 256,
        "prefill_tokens": 13,
        "images": processor(family),
    }
    return LocalEngine(model or shared(family), **{**given, **changes})


def asked(
    tokens: Sequence[int], spans: Sequence[ImageSpan], id: str = "one", **changes: Any
) -> GenerateRequest:
    given: dict[str, Any] = {"max_new_tokens": 12, "seed": 5}
    return GenerateRequest(id=id, prompt=tuple(tokens), images=tuple(spans), **{**given, **changes})


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds; the engine moves with every few turns."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("the engine stands still")


def gap(
    model: Any, family: str, tokens: Sequence[int], images: Sequence[Image], done: Completion
) -> float:
    """Return how far log-probs are from those of a plain forward pass."""
    logprobs = logits_of(model, family, (*tokens, *done.token_ids), images).log_softmax(-1)
    wanted = [
        float(logprobs[len(tokens) - 1 + at, token]) for at, token in enumerate(done.token_ids)
    ]
    return max(abs(a - b) for a, b in zip(wanted, done.logprobs, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", PICTURES)
async def test_what_is_sampled_is_as_likely_as_transformers_says(family: str, count: int) -> None:
    tokens, spans = prompt(family, PICTURES[count])
    async with engine_of(family) as engine:
        done = await engine.generate(asked(tokens, spans))
    assert len(done.token_ids) == 12
    assert gap(shared(family), family, tokens, PICTURES[count], done) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
async def test_turns_with_new_images_go_on_in_the_cache(family: str) -> None:
    """Three turns, each of which shows one more image; only what is new is computed."""
    context: list[int] = []
    spans: list[ImageSpan] = []
    images: list[Image] = []
    async with engine_of(family) as engine:
        for turn in range(3):
            image = picture(10 + turn, 70 + 20 * turn, 60)
            new, shown = prompt(family, [image], seed=turn)
            before = len(context)
            spans += [span.moved(before) for span in shown]
            context += new
            images.append(image)
            done = await engine.generate(asked(context, spans, f"turn {turn}"))
            assert gap(shared(family), family, context, images, done) < TOLERANCE
            # The token sampled last was never computed.
            assert done.prompt_cached_tokens == max(0, before - 1)
            context += done.token_ids


@pytest.mark.parametrize("family", FAMILIES)
async def test_equal_tokens_with_other_images_share_nothing_behind_them(family: str) -> None:
    one, other = picture(1), picture(4)
    tokens, spans = prompt(family, [one], words=20)
    shown = (ImageSpan(other, spans[0].start, spans[0].stop),)
    async with engine_of(family) as engine:
        await engine.generate(asked(tokens, spans, "one"))
        done = await engine.generate(asked(tokens, shown, "other"))
        again = await engine.generate(asked(tokens, spans, "again"))
    assert done.prompt_cached_tokens == spans[0].start
    assert gap(shared(family), family, tokens, [other], done) < TOLERANCE
    assert again.prompt_cached_tokens == len(tokens) - 1


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_batch_changes_no_bit(family: str) -> None:
    requests = [
        asked(*prompt(family, PICTURES[count], seed=seed), f"{count} {seed}", seed=seed)
        for seed in range(3)
        for count in PICTURES
    ]
    async with engine_of(family) as engine:
        together = await asyncio.gather(*(engine.generate(request) for request in requests))
    for request, done in zip(requests, together, strict=True):
        async with engine_of(family, prefill_tokens=200) as engine:
            alone = await engine.generate(request)
        assert (alone.token_ids, alone.logprobs) == (done.token_ids, done.logprobs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", ["state", "folder"])
async def test_new_weights_see_anew(family: str, how: str, tmp_path: Path) -> None:
    """A load in the middle of a turn: what is sampled after it is the new weights', tower too."""
    new = tiny(family, seed=1)
    weights: Any = new.state_dict()
    if how == "folder":
        new.save_pretrained(tmp_path)
        weights = tmp_path
    images = PICTURES[3]
    tokens, spans = prompt(family, images)
    async with engine_of(family) as engine:
        await engine.generate(asked(tokens, spans, "old", max_new_tokens=1))
        task = asyncio.create_task(engine.generate(asked(tokens, spans)))
        await until(lambda: engine.statistics().sampled_tokens >= 4)
        await engine.load(weights, 1)
        done = await task
    old = done.versions.count(0)
    assert 0 < old < 12
    assert set(done.versions[old:]) == {1}
    for model, part in ((shared(family), slice(0, old)), (new, slice(old, 12))):
        logprobs = logits_of(model, family, (*tokens, *done.token_ids), images).log_softmax(-1)
        for at in range(12)[part]:
            wanted = float(logprobs[len(tokens) - 1 + at, done.token_ids[at]])
            assert abs(wanted - done.logprobs[at]) < TOLERANCE


@pytest.mark.parametrize("name", ["model.visual.merger", "model.language_model.norm"])
async def test_weights_that_do_not_fit_change_nothing(name: str) -> None:
    family = "qwen2_5_vl"
    weights = {k: v for k, v in tiny(family, seed=1).state_dict().items() if name not in k}
    tokens, spans = prompt(family, PICTURES[1])
    async with engine_of(family) as engine:
        before = await engine.generate(asked(tokens, spans))
        with pytest.raises(ValueError, match=r"weights have no"):
            await engine.load(weights, 1)
        assert engine.version == 0
        after = await engine.generate(asked(tokens, spans, "after"))
    assert (before.token_ids, before.logprobs) == (after.token_ids, after.logprobs)


async def test_features_stay_where_the_tower_has_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = "qwen3_vl"
    looked: list[int] = []
    own = image_encoder.features_of

    def look(eye: Any, images: Sequence[ImagePatches]) -> list[ImageFeatures]:
        looked.append(len(images))
        return own(eye, images)

    monkeypatch.setattr(image_encoder, "features_of", look)
    model: Any = tiny(family)
    tokens, spans = prompt(family, PICTURES[1])
    async with engine_of(family, model) as engine:
        await engine.generate(asked(tokens, spans))
        with torch.no_grad():
            model.get_input_embeddings().weight += 0.1
        await engine.load(model.state_dict(), 1)
        await engine.generate(asked(tokens, spans))
        assert looked == [1]
        with torch.no_grad():
            model.base_model.visual.merger.norm.weight += 0.1
        await engine.load(model.state_dict(), 2)
        done = await engine.generate(asked(tokens, spans))
    assert looked == [1, 1]
    assert gap(model, family, tokens, PICTURES[1], done) < TOLERANCE


async def test_an_image_that_was_looked_at_is_not_cut_up_again() -> None:
    """Not by its next turn, nor after new weights of the text half; without room for patches."""
    family, cutter = "qwen3_vl", CountingProcessor("qwen3_vl")
    model: Any = tiny(family)
    tokens, spans = prompt(family, PICTURES[3])
    images = ImageProcessor(cutter, token_id=PAD, kept_bytes=0)
    async with engine_of(family, model, images=images) as engine:
        await engine.generate(asked(tokens, spans))
        assert cutter.count >= len(spans)
        cutter.count = 0
        await engine.generate(asked((*tokens, 5), spans))
        with torch.no_grad():
            model.get_input_embeddings().weight += 0.1
        await engine.load(model.state_dict(), 1)
        done = await engine.generate(asked(tokens, spans))
    assert cutter.count == 0
    assert gap(model, family, tokens, PICTURES[3], done) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_aborted_turn_with_images_goes_on_from_its_last_token(family: str) -> None:
    tokens, spans = prompt(family, PICTURES[3])
    async with engine_of(family) as engine:
        whole = await engine.generate(asked(tokens, spans, "whole"))
        task = asyncio.create_task(engine.generate(asked(tokens, spans)))
        sampled = engine.statistics().sampled_tokens
        await until(lambda: engine.statistics().sampled_tokens >= sampled + 5)
        await engine.abort("one")
        part = await task
        left = 12 - len(part.token_ids)
        rest = await engine.generate(
            asked((*tokens, *part.token_ids), spans, "rest", max_new_tokens=left)
        )
    assert part.finish == "aborted"
    assert 0 < len(part.token_ids) < 12
    assert part.token_ids + rest.token_ids == whole.token_ids
    assert part.logprobs + rest.logprobs == whole.logprobs


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_sampled_placeholder_is_a_word_like_any_other(family: str) -> None:
    """A policy that says the id of an image's tokens shows nothing and shifts nothing."""
    tokens, spans = prompt(family, PICTURES[1])
    said = (*tokens, PAD, 7, PAD, PAD)
    other, shown = prompt(family, [picture(3)], seed=4)
    context = (*said, *other)
    spans = (*spans, *(span.moved(len(said)) for span in shown))
    async with engine_of(family) as engine:
        done = await engine.generate(asked(context, spans))
        # The same context with another word's id and the placeholder's embedding in its place.
        model: Any = tiny(family)
        with torch.no_grad():
            embedding = model.get_input_embeddings().weight
            embedding[299] = embedding[PAD]
    stand_in = [
        299 if t == PAD and len(tokens) <= at < len(said) else t for at, t in enumerate(context)
    ]
    images = [PICTURES[1][0], picture(3)]
    logprobs = logits_of(model, family, (*stand_in, *done.token_ids), images)
    # The head is tied: the stand-in changed what is said of one token, which is left out.
    keep = torch.arange(VOCABULARY) != 299
    ours = logits_of_engine(family, context, spans, done)
    theirs = logprobs[len(context) - 1 : -1][:, keep].log_softmax(-1)
    assert (ours[:, keep].log_softmax(-1) - theirs).abs().max() < TOLERANCE


def logits_of_engine(
    family: str, context: Sequence[int], spans: Sequence[ImageSpan], done: Completion
) -> torch.Tensor:
    """Return the log-probs of the whole vocabulary at each sampled token, scored by the engine."""

    async def scored() -> list[tuple[float, ...]]:
        async with engine_of(family) as engine:
            rows: list[tuple[float, ...]] = []
            for at in range(len(done.token_ids)):
                request = ScoreRequest(
                    id="s",
                    prompt=(*context, *done.token_ids[:at]),
                    token_ids=done.token_ids[at : at + 1],
                    distribution=True,
                    images=tuple(spans),
                )
                rows.append((await engine.score(request)).distribution)
            return rows

    return torch.tensor(_apart(scored()))


def _apart(work: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.mark.parametrize("family", FAMILIES)
async def test_scores_of_tokens_after_images_are_those_they_were_sampled_with(family: str) -> None:
    tokens, spans = prompt(family, PICTURES[3])
    async with engine_of(family) as engine:
        done = await engine.generate(asked(tokens, spans))
        request = ScoreRequest(
            id="score", prompt=tokens, token_ids=done.token_ids, images=spans, top_logprobs=2
        )
        scores = await engine.score(request)
        blind = await engine.score(ScoreRequest(id="b", prompt=tokens, token_ids=done.token_ids))
    assert max(abs(a - b) for a, b in zip(scores.logprobs, done.logprobs, strict=True)) < 1e-5
    assert max(abs(a - b) for a, b in zip(blind.logprobs, done.logprobs, strict=True)) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
async def test_it_keeps_an_engines_promises(family: str) -> None:
    weights = tiny(family, seed=2).state_dict()
    proven = await check_engine(
        engine_of(family), vocab_size=VOCABULARY, context_tokens=256, weights=weights
    )
    assert len(proven) > 20


async def test_images_are_refused_where_they_are_not() -> None:
    family = "qwen2_5_vl"
    tokens, spans = prompt(family, PICTURES[1])
    (span,) = spans
    wrong = {
        "past the end": (span.moved(len(tokens)),),
        "shifted by one": (span.moved(1),),
        "too short": (ImageSpan(span.image, span.start, span.stop - 1),),
        "twice": (span, span),
        "another size": (ImageSpan(picture(9, 140, 140), span.start, span.stop),),
    }
    async with engine_of(family) as engine:
        for name, images in wrong.items():
            with pytest.raises(ValueError, match=r"is declared at|image placeholder"):
                await engine.generate(asked(tokens, images, name))
        assert engine.statistics().running == 0
    async with engine_of(family, images=None) as engine:
        with pytest.raises(ValueError, match=r"the engine accepts none"):
            await engine.generate(asked(tokens, spans))


async def test_greedy_looks_at_the_image() -> None:
    """The same words with other pictures: what is most likely differs."""
    family = "qwen3_vl"
    greedy = Sampling(temperature=0)
    said: set[tuple[int, ...]] = set()
    async with engine_of(family) as engine:
        for seed in range(4):
            tokens, spans = prompt(family, [picture(seed)])
            done = await engine.generate(asked(tokens, spans, sampling=greedy))
            said.add(done.token_ids)
    assert len(said) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_blank_picture_is_as_large_as_one_gets(family: str) -> None:
    images = processor(family)
    seen = [picture(n, *size) for n, size in enumerate(((9, 9), (80, 60), (300, 40), (900, 900)))]
    assert max(map(images.tokens, seen)) == images.most_tokens
    for tokens in range(1, images.most_tokens + 1):
        blank = images.blank(tokens)
        _, height, width = blank.grid
        assert blank.values.shape == (height * width, images.patches(seen[0]).values.shape[1])
        assert tokens - height // 2 < height * width // 4 <= tokens
        assert height <= width <= height + 4


@pytest.mark.parametrize("ends", [0.5, 0.9])
async def test_a_picture_that_is_torn_is_its_environments_fault(ends: float) -> None:
    """Its size can be read, and its pixels cannot: the request fails, and the engine goes on."""
    family = FAMILIES[0]
    whole = picture(1, 400, 300)
    torn = replace(whole, data=whole.data[: int(len(whole.data) * ends)])
    assert processor(family).tokens(torn) == processor(family).tokens(whole)
    async with engine_of(family) as engine:
        tokens, spans = prompt(family, [torn])
        with pytest.raises(EnvError, match="declared as image/png"):
            await engine.generate(asked(tokens, spans))
        done = await engine.generate(asked(*prompt(family, [whole])))
        assert done.token_ids

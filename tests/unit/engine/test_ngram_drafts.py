"""N-gram drafts change how many steps a turn takes, and no token of it.

Mutants seen caught: keys of wrong drafts kept, a token kept after one that differs, one noise for
all places of a draft, a stop within a draft that is passed over.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engine import local
from agentrl.engine.local import TURNS, LocalEngine
from agentrl.engine.ngram_drafts import LENGTHS, NgramDrafts, draft_length
from agentrl.errors import ConfigError
from agentrl.policy import Completion, GenerateRequest, Sampling
from tests.support.engine_models import FAST, logits_of, prompt_of, requests, shared, tiny

DRAFTED = 6


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft wherever something is known, however often it has been wrong."""

    def whole(rate: float, limit: int) -> int:
        return limit

    monkeypatch.setattr(local, "draft_length", whole)


async def play(engine: LocalEngine, asked: list[GenerateRequest]) -> list[Completion]:
    done = await asyncio.gather(*(engine.generate(request) for request in asked))
    return [replace(one, prompt_cached_tokens=0) for one in done]


def again(asked: list[GenerateRequest], epoch: int) -> list[GenerateRequest]:
    """Ask the same with other noise."""
    return [replace(r, id=f"{epoch}/{r.id}", seed=r.seed + 1000 * epoch) for r in asked]


def mixed(count: int) -> list[GenerateRequest]:
    """Return requests in groups of one prompt, with every kind of sampling and peaked ones."""
    settings = (
        Sampling(temperature=0.3),
        Sampling(top_p=0.2),
        Sampling(top_k=2),
        Sampling(temperature=0.0),
    )
    return [
        replace(request, prompt=prompt_of(40, seed=i // 4), sampling=settings[i % 4])
        for i, request in enumerate(requests(count, max_new_tokens=40))
    ]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", FAST)
async def test_drafts_change_no_token(name: str) -> None:
    """To the last bit, also of log-probs, in a later epoch and beside new prompts."""
    sizes: dict[str, Any] = {"slots": 6, "context_tokens": 128, "prefill_tokens": 50}
    asked = mixed(16)
    async with (
        LocalEngine(shared(name), **sizes) as plain,
        LocalEngine(shared(name), **sizes, draft_tokens=DRAFTED) as drafting,
    ):
        for epoch in range(2):
            work = again(asked, epoch)
            assert await play(drafting, work) == await play(plain, work)
        counts, without = drafting.statistics(), plain.statistics()
    assert counts.sampled_tokens == without.sampled_tokens == 2 * 16 * 40
    assert 0 < counts.accepted_tokens < counts.drafted_tokens
    assert counts.steps < without.steps
    assert (without.drafted_tokens, without.accepted_tokens) == (0, 0)


@pytest.mark.usefixtures("always")
async def test_what_is_sampled_is_the_policys_distribution() -> None:
    """Of every sequence of three tokens, by its exact probability; chi-squared at 0.001."""
    prompt, sampling, count = prompt_of(20), Sampling(temperature=0.4, top_k=3), 3000
    asked = [
        GenerateRequest(id=f"{i}", prompt=prompt, max_new_tokens=3, seed=i, sampling=sampling)
        for i in range(count)
    ]
    model = shared("qwen3")
    async with LocalEngine(model, slots=32, context_tokens=64, draft_tokens=DRAFTED) as engine:
        await engine.generate(replace(asked[0], id="first"))
        counted = Counter(done.token_ids for done in await play(engine, asked))
        assert engine.statistics().drafted_tokens > count
    chances = distribution_of(model, prompt, 3)
    assert counted.keys() <= chances.keys()
    assert len(chances) == 27
    expected = {tokens: chance * count for tokens, chance in chances.items()}
    squared = sum((counted[t] - e) ** 2 / e for t, e in expected.items())
    assert squared < 54.1  # 26 degrees of freedom


def distribution_of(model: Any, prompt: tuple[int, ...], length: int) -> dict[Any, float]:
    """Return the probability of every sequence, at temperature 0.4 among the three likeliest."""
    chances: dict[Any, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Any, float] = {}
        for tokens, chance in chances.items():
            logits = logits_of(model, prompt, (*tokens, 0))[-1] / 0.4
            best = logits.topk(3)
            shares = best.values.softmax(-1).tolist()
            for token, share in zip(best.indices.tolist(), shares, strict=True):
                longer[*tokens, token] = chance * share
        chances = longer
    return chances


@pytest.mark.usefixtures("always")
async def test_a_stop_within_a_draft_ends_the_turn() -> None:
    def decode(tokens: Any) -> str:
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    greedy = Sampling(temperature=0.0)
    request = GenerateRequest(id="1", prompt=prompt_of(9), max_new_tokens=30, sampling=greedy)
    model = shared("qwen3")
    async with LocalEngine(
        model, slots=2, context_tokens=64, decode=decode, draft_tokens=DRAFTED
    ) as engine:
        whole = await engine.generate(request)
        text = decode(whole.token_ids)
        for at in range(1, 20):
            stop, string = whole.token_ids[at], text[at : at + 3]
            before = engine.statistics()
            done = await engine.generate(replace(request, stop_token_ids=frozenset({stop})))
            assert done.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
            assert done.finish == "stop"
            done = await engine.generate(replace(request, stop_strings=(string,)))
            assert done.token_ids == whole.token_ids[: text.index(string) + 3]
            assert done.finish == "stop"
            assert len(done.logprobs) == len(done.versions) == len(done.token_ids)
            after = engine.statistics()
            assert after.sampled_tokens - before.sampled_tokens >= after.steps - before.steps
            # Its slot holds what is in its context and nothing of the rest of the draft.
            more = replace(request, prompt=request.prompt + done.token_ids + (5, 6, 7))
            more = replace(more, max_new_tokens=5)
            async with LocalEngine(model, slots=1, context_tokens=64) as fresh:
                want = await fresh.generate(more)
            assert (await engine.generate(more)).logprobs == want.logprobs


@pytest.mark.usefixtures("always")
async def test_a_load_in_mid_flight_mixes_nothing() -> None:
    """Tokens of a draft are of the weights that computed it."""
    new = tiny("qwen3", seed=1)
    asked = mixed(8)
    async with LocalEngine(
        shared("qwen3"), slots=4, context_tokens=128, version=7, draft_tokens=DRAFTED
    ) as engine:
        await play(engine, again(asked, 1))
        running = [asyncio.create_task(engine.generate(request)) for request in asked]
        for _ in range(5 * TURNS):
            await asyncio.sleep(0)
        drafted = engine.statistics().accepted_tokens
        await engine.load(new.state_dict(), version=8)
        done = await asyncio.gather(*running)
        assert engine.statistics().accepted_tokens > drafted > 0
    changed = [d.versions.count(7) for d in done]
    assert min(changed) < 40
    assert max(changed) > 5
    for request, completion, at in zip(asked, done, changed, strict=True):
        assert completion.versions == (7,) * at + (8,) * (40 - at)
        for model, start, end in ((shared("qwen3"), 0, at), (new, at, 40)):
            if start == end:
                continue
            prompt = request.prompt + completion.token_ids[:start]
            rest = replace(request, prompt=prompt, max_new_tokens=end - start)
            async with LocalEngine(model, slots=1, context_tokens=128) as fresh:
                want = await fresh.generate(rest)
            assert completion.token_ids[start:end] == want.token_ids
            assert completion.logprobs[start:end] == want.logprobs


async def test_drafts_that_are_mostly_wrong_are_left_out() -> None:
    """Random tokens repeat nothing: without anything to gain, nothing is drafted."""
    work = [
        GenerateRequest(id=f"{i}", prompt=prompt_of(40), max_new_tokens=40, seed=i)
        for i in range(16)
    ]
    async with LocalEngine(
        shared("qwen3"), slots=8, context_tokens=128, draft_tokens=DRAFTED
    ) as engine:
        await play(engine, work)
        counts = engine.statistics()
    assert counts.drafted_tokens < 0.05 * counts.sampled_tokens


async def test_repeated_text_takes_half_the_steps() -> None:
    """By the rule that decides, not by force."""
    greedy = Sampling(temperature=0.0)
    work = [
        GenerateRequest(id=f"{i}", prompt=prompt_of(40, seed=i), max_new_tokens=60, sampling=greedy)
        for i in range(4)
    ]
    async with LocalEngine(
        shared("qwen3"), slots=4, context_tokens=128, draft_tokens=DRAFTED
    ) as engine:
        await play(engine, work)
        first = engine.statistics().steps
        await play(engine, again(work, 1))
        assert engine.statistics().steps - first < 0.5 * 60


def test_the_longest_known_ngram_says_what_follows() -> None:
    drafts, (long, short) = NgramDrafts(), LENGTHS
    text = [*range(100, 100 + long), 1, 2, 3]
    other = [*range(100 + long - short, 100 + long), 9, 8]
    drafts.learn(text, 0, len(text))
    drafts.learn(other, 0, len(other))
    assert drafts.guess(text[:long], 5) == [1, 2, 3]
    assert drafts.guess(text[:long], 2) == [1, 2]
    assert drafts.guess([7, *other[:short]], 5) == [9, 8]
    assert drafts.guess([7, 7, 7, 7], 5) == []
    assert drafts.guess([1], 5) == []
    assert drafts.guess(text[:long], -1) == []
    drafts.learn([*text[:long], 4], long, long + 1)
    assert drafts.guess(text[:long], 1) == [4], "the last text wins"


def test_what_stands_for_an_image_is_not_drafted() -> None:
    drafts = NgramDrafts()
    drafts.learn([1, 2, 3, 4, 5, -7, 6], 0, 7)
    assert drafts.guess([1, 2, 3, 4], 5) == [5]


def test_the_table_is_bounded_and_keeps_what_is_recent() -> None:
    drafts = NgramDrafts(capacity=100)
    text = list(range(1000))
    drafts.learn(text, 0, 1000)
    for at in range(1000, 2000):
        text.append(at)
        drafts.learn(text, at, at + 1)
    held = len(drafts._recent) + len(drafts._older)  # pyright: ignore[reportPrivateUsage]
    assert 100 <= held <= 202
    assert drafts.guess(text[1800:1850], 1) == []
    assert drafts.guess(text[1960:1990], 2) == [1990, 1991]


@pytest.mark.parametrize(
    ("rate", "length"), [(0.0, 0), (0.5, 0), (0.59, 0), (0.61, 1), (0.8, 2), (0.95, 8), (1.0, 8)]
)
def test_drafts_are_as_long_as_they_are_likely_to_be_right(rate: float, length: int) -> None:
    assert draft_length(rate, 8) == length
    assert draft_length(rate, 0) == 0


def test_what_cannot_draft_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.draft_tokens must be at least 0, got -1"):
        LocalEngine(shared("qwen3"), draft_tokens=-1)
    with pytest.raises(ConfigError, match=r"engine\.draft_tokens is 4.*set it to 0"):
        LocalEngine(shared("gpt2"), context_tokens=64, draft_tokens=4)

"""vLLM in this process (`sampler: agentrl`), beside the local engine and a plain forward pass.

Mutants seen caught: a tied head that is not packed again; cached keys of older weights; noise by
place in the completion; versions of the start, or of the end, of a request; scores read from the
cache, of the wrong rows, of two versions at once, or without the temperature.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl.engine.local import LocalEngine
from agentrl.engine.sampling import distribution
from agentrl.errors import ConfigError
from agentrl.policy import Completion, GenerateRequest, Sampling, ScoreRequest
from agentrl.testing.engine import check_engine
from tests.support.adapters import adapted, base_of, merged
from tests.support.vision_models import picture, prompt

if TYPE_CHECKING:
    from agentrl.engine.vllm.in_process import VllmEngine

# vLLM and what it imports warn of each other.
pytestmark = pytest.mark.filterwarnings("default")

VOCABULARY = 512
CONTEXT_TOKENS = 128


def model(*, tied: bool, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).float().eval()


def request(number: int, **changes: object) -> GenerateRequest:
    given = {
        "id": f"r{number}",
        "prompt": tuple(range(3 + number, 20 + 2 * number)),
        "max_new_tokens": 30,
        "seed": number,
        **changes,
    }
    return GenerateRequest(**given)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def policies() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two policies of one shape."""
    return model(tied=True), model(tied=True, seed=1)


@pytest.fixture
def folder(policies: tuple[PreTrainedModel, PreTrainedModel], tmp_path: Path) -> Path:
    path = tmp_path / "policy"
    policies[0].save_pretrained(path)
    return path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator["VllmEngine"]:
    from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

    settings = VllmSettings(
        model=folder,
        slots=8,
        context_tokens=CONTEXT_TOKENS,
        dtype="float32",
        prefill_tokens=24,  # prompts are computed in parts
        # Only whole blocks are cached, and those of a CPU hold as much as a context here.
        options={"block_size": 32},
    )
    async with VllmEngine(settings) as opened:
        yield opened


def worst_gap(
    done: list[tuple[GenerateRequest, Completion]], policies: list[PreTrainedModel]
) -> float:
    """Return how far log-probs are from a plain forward pass of the version that each names."""
    worst = 0.0
    for asked, got in done:
        ids = torch.tensor([[*asked.prompt, *got.token_ids]])
        with torch.no_grad():
            plain = [torch.log_softmax(policy(ids).logits[0], -1) for policy in policies]
        for place, (token, logprob, version) in enumerate(
            zip(got.token_ids, got.logprobs, got.versions, strict=True), len(asked.prompt) - 1
        ):
            worst = max(worst, abs(plain[version][place, token].item() - logprob))
    return worst


def policy_logprobs(
    policy: PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...], at: float = 1.0
) -> torch.Tensor:
    """Return (tokens, vocabulary) log-probs of a plain forward pass at a temperature."""
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *tokens]])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / at, -1)


def picked(logprobs: torch.Tensor, tokens: Iterable[int]) -> list[float]:
    return [row[token].item() for row, token in zip(logprobs, tokens, strict=True)]


def score_of(asked: GenerateRequest, tokens: tuple[int, ...], **changes: Any) -> ScoreRequest:
    return ScoreRequest(id=f"score {asked.id}", prompt=asked.prompt, token_ids=tokens, **changes)


async def check_scores(engine: "VllmEngine", policy: PreTrainedModel) -> None:
    """Scores are those of a plain pass: beside sampling, after a cached prompt, longer than one
    step."""
    asked = request(80, prompt=tuple(range(60, 90)))
    tokens = tuple((7 * n) % VOCABULARY for n in range(90))
    await engine.generate(asked)
    beside = [asyncio.create_task(engine.generate(request(n))) for n in range(81, 85)]
    scores = await engine.score(score_of(asked, tokens, top_logprobs=3))
    plain = policy_logprobs(policy, asked.prompt, tokens)
    assert scores.logprobs == pytest.approx(picked(plain, tokens), abs=1e-3)
    assert [len(top) for top in scores.top_logprobs] == [3] * len(tokens)
    assert [top[0][0] for top in scores.top_logprobs] == plain.argmax(-1).tolist()
    assert scores.version == engine.version
    await asyncio.gather(*beside)
    with pytest.raises(ValueError, match="in total"):
        await engine.score(score_of(asked, (1,) * 99))
    waiting = asyncio.create_task(engine.score(score_of(asked, tokens)))
    await asyncio.sleep(0)
    await engine.abort(score_of(asked, tokens).id)
    assert (await waiting).logprobs == ()


async def check_whole_distributions(engine: "VllmEngine", policy: PreTrainedModel) -> None:
    """Entropies and distributions are those of a plain pass, at any temperature, cut as sampling
    is cut."""
    asked = request(80, prompt=tuple(range(60, 90)))
    tokens = tuple((7 * n) % VOCABULARY for n in range(90))
    for temperature in (1.0, 0.5):
        sampling = Sampling(temperature=temperature)
        more = {"entropies": True, "distribution": True}
        scores = await engine.score(score_of(asked, tokens, sampling=sampling, **more))
        plain = policy_logprobs(policy, asked.prompt, tokens, temperature)
        assert scores.logprobs == pytest.approx(picked(plain, tokens), abs=1e-3)
        assert scores.entropies == pytest.approx((-plain.exp() * plain).sum(-1).tolist(), abs=1e-3)
        assert scores.distribution == pytest.approx(plain[-1].tolist(), abs=1e-3)
    cut = await engine.score(score_of(asked, tokens, sampling=Sampling(top_k=5)))
    best = policy_logprobs(policy, asked.prompt, tokens).topk(5).indices
    inside = [token in row.tolist() for token, row in zip(tokens, best, strict=True)]
    assert [logprob > -math.inf for logprob in cut.logprobs] == inside


async def check_shaped_sampling(engine: "VllmEngine", policy: PreTrainedModel) -> None:
    """Log-probs and alternatives are of the distribution that was drawn from; a point's are 0."""
    for sampling in (
        Sampling(temperature=0.7, top_p=0.9, top_k=40),
        Sampling(temperature=1.5),
        Sampling(top_k=2),
        Sampling(top_p=0.3),
    ):
        asked = request(7, sampling=sampling, top_logprobs=3)
        got = await engine.generate(asked)
        with torch.no_grad():
            logits = policy(torch.tensor([[*asked.prompt, *got.token_ids]])).logits[0].float()
        rows = distribution(logits[len(asked.prompt) - 1 : -1], [sampling] * len(got.token_ids))
        assert got.logprobs == pytest.approx(picked(rows, got.token_ids), abs=1e-3)
        for row, top in zip(rows, got.top_logprobs, strict=True):
            wanted = row.topk(3).values
            drawable = wanted[wanted > -math.inf].tolist()
            assert [value for _, value in top] == pytest.approx(drawable, abs=1e-3)
    greedy = await engine.generate(request(7, sampling=Sampling(temperature=0), top_logprobs=1))
    assert set(greedy.logprobs) == {0.0}
    assert greedy.top_logprobs == tuple(((token, 0.0),) for token in greedy.token_ids)


async def check_frequencies(engine: "VllmEngine", policy: PreTrainedModel) -> None:
    """The tokens of many seeds are spread as their log-probs say."""
    sampling = Sampling(temperature=0.3, top_k=4)
    asked = [
        request(0, id=f"s{seed}", seed=seed, max_new_tokens=1, sampling=sampling)
        for seed in range(600)
    ]
    done = await asyncio.gather(*(engine.generate(one) for one in asked))
    with torch.no_grad():
        logits = policy(torch.tensor([asked[0].prompt])).logits[0, -1:].float()
    probabilities = distribution(logits, [sampling])[0].exp()
    count = len(asked)
    for token in probabilities.nonzero().flatten().tolist():
        expected = probabilities[token].item()
        seen = sum(got.token_ids == (token,) for got in done) / count
        assert abs(seen - expected) < 4.5 * math.sqrt(expected * (1 - expected) / count)


async def check_it_draws_as_the_local_engine(engine: "VllmEngine", policy: PreTrainedModel) -> None:
    """The same noise at the same places."""
    local = LocalEngine(policy, slots=8, context_tokens=CONTEXT_TOKENS)
    shaped = Sampling(temperature=0.7, top_p=0.9, top_k=40)
    for sampling in (Sampling(), shaped):
        asked = [request(n, top_logprobs=2, entropies=True, sampling=sampling) for n in range(12)]
        theirs = await asyncio.gather(*(engine.generate(one) for one in asked))
        ours = await asyncio.gather(*(local.generate(one) for one in asked))
        assert [got.token_ids for got in theirs] == [got.token_ids for got in ours]
        for got, other in zip(theirs, ours, strict=True):
            assert got.entropies == pytest.approx(other.entropies, abs=1e-3)
            assert got.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    await local.close()
    await check_whole_distributions(engine, policy)


async def check_merged_adapters(
    engine: "VllmEngine", policy: PreTrainedModel, versions: tuple[int, ...]
) -> None:
    """Adapters are merged into the base where it has none of its own."""
    base = base_of(policy)
    for version in versions:
        given = adapted(base, version)
        await engine.load(given, version)
        asked = [request(n) for n in range(6)]
        done = await asyncio.gather(*(engine.generate(one) for one in asked))
        assert {v for got in done for v in got.versions} == {version}
        plain = [merged(policy, given)] * (version + 1)
        assert worst_gap([*zip(asked, done, strict=True)], plain) <= 1e-3


async def check_no_images(engine: "VllmEngine") -> None:
    """A policy that does not see takes none."""
    tokens, spans = prompt("qwen3_vl", (picture(1),), seed=0, words=12)
    with pytest.raises(ValueError, match="has 1 images, but the engine accepts none"):
        await engine.generate(request(1, prompt=tokens, images=spans, max_new_tokens=1))


async def test_it_samples_and_updates_as_it_should(
    engine: "VllmEngine",
    policies: tuple[PreTrainedModel, PreTrainedModel],
    tmp_path: Path,
) -> None:
    """One engine for all of it: vLLM takes seconds to start."""
    asked = [request(n, top_logprobs=2) for n in range(12)]
    done = await asyncio.gather(*(engine.generate(one) for one in asked))
    assert worst_gap([*zip(asked, done, strict=True)], [*policies]) <= 1e-3
    assert len({got.token_ids for got in done}) == len(done)
    await check_shaped_sampling(engine, policies[0])
    await check_frequencies(engine, policies[0])
    await check_scores(engine, policies[0])
    await check_it_draws_as_the_local_engine(engine, policies[0])

    asked = [request(n) for n in range(12)]
    running = [asyncio.create_task(engine.generate(one)) for one in asked]
    while not any(one.logprobs for one in engine.in_flight):  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0.001)
    await engine.load(policies[1].state_dict(), 1)
    mixed = await asyncio.gather(*running)
    assert any(set(got.versions) == {0, 1} for got in mixed)
    assert all(list(got.versions) == sorted(got.versions) for got in mixed)
    assert worst_gap([*zip(asked, mixed, strict=True)], [*policies]) <= 1e-3

    for number in range(2, 5):  # a head left stale shows at the second update at the latest
        policy = policies[number % 2]
        policy.save_pretrained(tmp_path / str(number))  # which leaves a tied head out
        asked_score = score_of(request(90, prompt=(5, 6, 7)), tuple(range(100)))
        scoring = asyncio.create_task(engine.score(asked_score))
        while not any(one.logprobs for one in engine.in_flight):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        await engine.load(tmp_path / str(number), number)
        scores = await scoring  # what was scored before the load is scored again
        assert scores.version == number
        given = policy_logprobs(policy, asked_score.prompt, asked_score.token_ids)
        assert scores.logprobs == pytest.approx(picked(given, asked_score.token_ids), abs=1e-3)
        got = await engine.generate(request(number))
        plain = [policy] * (number + 1)
        assert worst_gap([(request(number), got)], plain) <= 1e-3

    await check_merged_adapters(engine, policies[0], (5, 6))
    await check_no_images(engine)
    leaving = asyncio.create_task(engine.load(policies[1].state_dict(), 7))
    for _ in range(2):
        await asyncio.sleep(0)
    leaving.cancel()
    with suppress(asyncio.CancelledError):  # unless it was through already
        await leaving
    got = await engine.generate(request(5))
    assert (engine.version, set(got.versions)) == (7, {7})  # what it has is what it says
    assert worst_gap([(request(5), got)], [policies[1]] * 8) <= 1e-3

    proven = await check_engine(
        engine,
        vocab_size=VOCABULARY,
        context_tokens=CONTEXT_TOKENS,
        weights=policies[0].state_dict(),
    )
    assert len(proven) > 20


async def test_what_it_refuses(tmp_path: Path) -> None:
    from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

    folder = tmp_path / "policy"
    model(tied=True).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"options\.tensor_parallel_size is 2"):
        VllmSettings(model=folder, options={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match="no_such_argument"):
        VllmEngine(VllmSettings(model=folder, options={"no_such_argument": 1}))
    with pytest.raises(ConfigError, match=str(tmp_path)):
        VllmEngine(VllmSettings(model=tmp_path))

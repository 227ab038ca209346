"""The local engine: exact log-probs, whatever is in the batch, and nobody is left waiting.

Mutants seen caught: keys kept after a load, a copied prefix one key short, keys padded to any
multiple of 64, rows not padded to four, noise by place in the completion, log-probs of the raw
logits, versions stamped at the end, query heads not regrouped, RoPE not interleaved, query biases
not permuted, key norms taken for query norms, weights not copied, a mask that hides the own key, a
freed or cancelled request that keeps its slot, a failure or a close that leaves callers waiting, a
prefill that starves short prompts, a stop string searched in too short a tail, or in the tokens
after an abort alone, a fallback that cuts its cache wrongly.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.engine.decoder import DecoderCapacity
from agentrl.engine.fallback import FallbackDecoder, name_cache_argument
from agentrl.engine.llama import LlamaDecoder
from agentrl.engine.llama_shape import shape_of
from agentrl.engine.local import TURNS, LocalEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.policy import Completion, GenerateRequest, Sampling
from tests.support.engine_models import (
    FAST,
    MODELS,
    VOCABULARY,
    logits_of,
    prompt_of,
    requests,
    shared,
    tiny,
)


async def turns(count: int) -> None:
    """Let the engine take about so many steps."""
    for _ in range(count * TURNS):
        await asyncio.sleep(0)


async def all_of(engine: LocalEngine, asked: list[GenerateRequest]) -> list[Completion]:
    return await asyncio.gather(*(engine.generate(request) for request in asked))


def gap_nats(model: Any, request: GenerateRequest, done: Completion) -> float:
    logprobs = logits_of(model, request.prompt, done.token_ids).log_softmax(-1)
    want = logprobs.gather(-1, torch.tensor(done.token_ids).unsqueeze(-1)).squeeze(-1)
    return float((want - torch.tensor(done.logprobs)).abs().max())


@pytest.mark.parametrize("name", MODELS)
async def test_logprobs_are_those_of_a_full_forward_pass(name: str) -> None:
    model, asked = shared(name), requests(40)
    async with LocalEngine(model, slots=12, context_tokens=256) as engine:
        done = await all_of(engine, asked)
    assert max(gap_nats(model, r, d) for r, d in zip(asked, done, strict=True)) < 1e-4
    assert [len(d.token_ids) for d in done] == [r.max_new_tokens for r in asked]
    assert {d.finish for d in done} == {"length"}


def test_which_decoder_a_model_gets() -> None:
    kinds = {n: type(LocalEngine(shared(n), context_tokens=64)._decoder) for n in MODELS}  # pyright: ignore[reportPrivateUsage]
    assert kinds == {**dict.fromkeys(FAST, LlamaDecoder), "gpt2": FallbackDecoder}


def test_a_cache_goes_where_the_model_takes_it() -> None:
    def new(input_ids: Any, cache: Any = None, **kwargs: Any) -> None: ...

    def old(input_ids: Any, past_key_values: Any = None, **kwargs: Any) -> None: ...

    assert [name_cache_argument(forward) for forward in (new, old)] == ["cache", "past_key_values"]


@pytest.mark.parametrize("name", MODELS)
async def test_a_request_gets_the_same_tokens_alone_and_in_any_batch(name: str) -> None:
    """To the last bit where the decoder is ours."""
    asked = requests(24, seed=1)
    async with LocalEngine(shared(name), slots=24, context_tokens=256) as engine:
        together = await all_of(engine, asked)
    async with LocalEngine(shared(name), slots=3, context_tokens=512, prefill_tokens=50) as engine:
        for request, want in zip(asked[:6], together, strict=False):
            alone = await engine.generate(request)
            assert alone.token_ids == want.token_ids
            if name in FAST:
                assert alone.logprobs == want.logprobs
            assert alone.logprobs == pytest.approx(want.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "prompt_tokens", "cuts"),
    [("qwen3", 150, (33, 225, 340)), ("qwen2", 360, (5, 27)), ("llama", 480, (1, 30))],
)
async def test_bits_do_not_depend_on_what_was_cached(
    name: str, prompt_tokens: int, cuts: tuple[int, ...]
) -> None:
    """Around 192, 384 and 512 keys the CPU's kernels change how they sum."""
    count = cuts[-1] + 30
    whole = GenerateRequest(
        id="whole", prompt=prompt_of(prompt_tokens), max_new_tokens=count, seed=5
    )
    longer = GenerateRequest(id="longer", prompt=prompt_of(430, seed=1), max_new_tokens=200)
    others = requests(5, seed=2, max_new_tokens=60)
    async with LocalEngine(shared(name), slots=8, context_tokens=640) as engine:
        # The longer one sits in the next slot, so that one attention call pads for both.
        want = (await all_of(engine, [whole, longer, *others]))[0]
    async with LocalEngine(shared(name), slots=2, context_tokens=640) as engine:
        for cut in cuts:
            rest = replace(whole, prompt=whole.prompt + want.token_ids[:cut], max_new_tokens=25)
            await engine.load(shared(name).state_dict(), version=1)
            cold = await engine.generate(rest)
            warm = await engine.generate(rest)
            assert cold.prompt_cached_tokens == 0
            assert warm.prompt_cached_tokens == len(rest.prompt) - 1
            for done in (cold, warm):
                assert done.token_ids == want.token_ids[cut : cut + 25]
                assert done.logprobs == want.logprobs[cut : cut + 25]


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_abort_keeps_the_tokens_and_the_rest_continues(name: str) -> None:
    request = GenerateRequest(id="a", prompt=prompt_of(30), max_new_tokens=40, seed=3)
    async with LocalEngine(shared(name), slots=2, context_tokens=256) as engine:
        want = await engine.generate(request)
    async with LocalEngine(shared(name), slots=2, context_tokens=256) as engine:
        running = asyncio.create_task(engine.generate(request))
        await turns(12)
        await engine.abort("a")
        part = await running
        got = len(part.token_ids)
        assert part.finish == "aborted"
        assert 5 < got < 20
        rest = replace(request, prompt=request.prompt + part.token_ids, max_new_tokens=40 - got)
        done = await engine.generate(rest)
        assert part.token_ids + done.token_ids == want.token_ids
        assert part.logprobs + done.logprobs == pytest.approx(want.logprobs, abs=1e-5)
        assert done.prompt_cached_tokens == len(rest.prompt) - 1


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_the_next_turn_computes_only_what_is_new(name: str) -> None:
    async with LocalEngine(shared(name), slots=3, context_tokens=256) as engine:
        first = GenerateRequest(id="1", prompt=prompt_of(50), max_new_tokens=20)
        said = await engine.generate(first)
        answer = prompt_of(10, seed=1)
        prompt = first.prompt + said.token_ids + answer
        second = GenerateRequest(id="2", prompt=prompt, max_new_tokens=20, seed=1)
        before = engine.statistics()
        done = await engine.generate(second)
        # All but the last sampled token, whose keys nobody had asked for.
        assert done.prompt_cached_tokens == 50 + 20 - 1
        after = engine.statistics()
        assert after.computed_prompt_tokens - before.computed_prompt_tokens == 11
        assert gap_nats(shared(name), second, done) < 1e-4


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_samples_of_one_prompt_share_it(name: str) -> None:
    prompt = prompt_of(100)
    asked = [GenerateRequest(id=str(i), prompt=prompt, max_new_tokens=30, seed=i) for i in range(8)]
    async with LocalEngine(shared(name), slots=8, context_tokens=256, prefill_tokens=40) as engine:
        done = await all_of(engine, asked)
        assert [d.prompt_cached_tokens for d in done] == [0] + [99] * 7
        assert engine.statistics().computed_prompt_tokens == 100
    assert len({d.token_ids for d in done}) == 8
    assert max(gap_nats(shared(name), r, d) for r, d in zip(asked, done, strict=True)) < 1e-4


async def test_a_prompt_is_computed_once_when_groups_wait_for_slots() -> None:
    """Mutant: a request that waits for its sibling's prefix keeps no slot, and later groups do."""
    asked = [
        GenerateRequest(
            id=f"{group}.{i}",
            prompt=prompt_of(60, seed=group),
            # The first of a group ends soonest.
            max_new_tokens=3 + 5 * i,
            seed=i,
        )
        for group in range(8)
        for i in range(6)
    ]
    async with LocalEngine(shared("qwen3"), slots=8, context_tokens=128) as engine:
        await all_of(engine, asked)
        assert engine.statistics().computed_prompt_tokens == 8 * 60


async def test_a_sibling_does_not_destroy_the_turn_it_branches_from() -> None:
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=256) as engine:
        one = GenerateRequest(id="1", prompt=prompt_of(60), max_new_tokens=20, seed=1)
        said = await engine.generate(one)
        await engine.generate(replace(one, id="2", seed=2))
        third = replace(one, id="3", prompt=one.prompt + said.token_ids + (7,))
        assert (await engine.generate(third)).prompt_cached_tokens == 79


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_a_load_in_mid_flight_mixes_nothing(name: str) -> None:
    """What is sampled after a load is what a fresh engine with the new weights would sample."""
    new = tiny(name, seed=1)
    asked = [
        GenerateRequest(id=f"{i}", prompt=prompt_of(60), max_new_tokens=30, seed=i)
        for i in range(6)
    ]
    async with LocalEngine(shared(name), slots=4, context_tokens=256, version=7) as engine:
        running = [asyncio.create_task(engine.generate(request)) for request in asked]
        await turns(15)
        weights = {key: value.clone() for key, value in new.state_dict().items()}
        await engine.load(weights, version=8)
        for weight in weights.values():
            weight.zero_()  # the trainer goes on; the engine has its own copy
        done = await asyncio.gather(*running)
        assert engine.version == 8
    changed = [d.versions.index(8) for d in done]
    assert max(changed) > 5
    assert min(changed) == 0
    for request, completion, at in zip(asked, done, changed, strict=True):
        assert completion.versions == (7,) * at + (8,) * (30 - at)
        rest = replace(
            request, prompt=request.prompt + completion.token_ids[:at], max_new_tokens=30 - at
        )
        async with LocalEngine(new, slots=1, context_tokens=256) as fresh:
            want = await fresh.generate(rest)
        assert completion.token_ids[at:] == want.token_ids
        assert completion.logprobs[at:] == pytest.approx(want.logprobs, abs=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_an_engine_that_slept_samples_the_same(name: str) -> None:
    """In flight or not, before new weights or without any."""
    asked = [
        GenerateRequest(id=f"{i}", prompt=prompt_of(60), max_new_tokens=30, seed=i)
        for i in range(6)
    ]
    async with LocalEngine(shared(name), slots=4, context_tokens=256) as engine:
        want = await all_of(engine, asked)
        running = [asyncio.create_task(engine.generate(request)) for request in asked]
        await turns(15)
        await engine.sleep()
        disturbed = await asyncio.gather(*running)
        await engine.sleep()
        again = await all_of(engine, asked)
    assert again[0].prompt_cached_tokens == 0
    for done in (disturbed, again):
        assert [one.token_ids for one in done] == [one.token_ids for one in want]
        for one, other in zip(done, want, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_cache_that_sleeps_takes_no_memory() -> None:
    """Mutants seen caught: the cache zeroed in place; `torch.zeros`, which touches all of it."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    model = shared("qwen3")
    shape = shape_of(model)
    assert shape is not None
    capacity = DecoderCapacity(slots=64, context_tokens=4096, prefill_tokens=64)
    decoder = LlamaDecoder(model, shape, capacity, device=torch.device("cpu"), dtype=torch.float32)
    for slot in range(1, 64):
        decoder.reuse(0, slot, 4096)
    before = resident_bytes()
    decoder.release_cache()
    keys_bytes = 2 * 4 * shape.layers * shape.heads * shape.head * 63 * 4096
    assert before - resident_bytes() > 0.9 * keys_bytes


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
async def test_weights_come_from_a_folder_too(name: str, tmp_path: Path) -> None:
    new = tiny(name, seed=1)
    new.save_pretrained(tmp_path)
    request = GenerateRequest(id="1", prompt=prompt_of(20), max_new_tokens=10)
    async with LocalEngine(shared(name), slots=2, context_tokens=64) as engine:
        await engine.load(tmp_path, version=1)
        assert gap_nats(new, request, await engine.generate(request)) < 1e-4
    with pytest.raises(FileNotFoundError, match="safetensors"):
        await LocalEngine(shared(name), context_tokens=64).load(tmp_path / "nowhere", version=2)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_weights_of_another_model_change_nothing(name: str) -> None:
    request = GenerateRequest(id="1", prompt=prompt_of(20), max_new_tokens=10)
    async with LocalEngine(shared(name), slots=2, context_tokens=64) as engine:
        state = dict(tiny(name, seed=1).state_dict())
        last = [key for key in state if "embed" not in key and "lm_head" not in key][-1]
        with pytest.raises(ValueError, match="another model"):
            await engine.load({**state, last: torch.zeros(3)}, version=1)
        del state[last]
        with pytest.raises(ValueError, match=f"no '{last}'"):
            await engine.load(state, version=1)
        assert engine.version == 0
        assert gap_nats(shared(name), request, await engine.generate(request)) < 1e-4


async def test_a_cancelled_caller_frees_its_slot() -> None:
    async with LocalEngine(shared("qwen3"), slots=1, context_tokens=2000) as engine:
        long = GenerateRequest(id="long", prompt=(1,), max_new_tokens=1900)
        running = asyncio.create_task(engine.generate(long))
        waiting = asyncio.create_task(engine.generate(replace(long, id="waiting")))
        await turns(5)
        assert (engine.statistics().running, engine.statistics().waiting) == (1, 1)
        running.cancel()
        waiting.cancel()
        await asyncio.wait([running, waiting])
        assert (engine.statistics().running, engine.statistics().waiting) == (0, 0)
        short = await engine.generate(replace(long, max_new_tokens=3))
        assert len(short.token_ids) == 3


async def test_requests_beyond_the_slots_are_served_in_order() -> None:
    ended: list[str] = []
    async with LocalEngine(shared("qwen3"), slots=2, context_tokens=64) as engine:

        async def ask(name: str) -> None:
            await engine.generate(GenerateRequest(id=name, prompt=(3,), max_new_tokens=5))
            ended.append(name)

        await asyncio.gather(*(ask(str(i)) for i in range(9)))
    assert ended == [str(i) for i in range(9)]


async def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    ended: list[str] = []
    engine = LocalEngine(shared("qwen3"), slots=2, context_tokens=512, prefill_tokens=16)
    async with engine:

        async def ask(name: str, prompt: tuple[int, ...], tokens: int) -> None:
            await engine.generate(GenerateRequest(id=name, prompt=prompt, max_new_tokens=tokens))
            ended.append(name)

        await asyncio.gather(ask("long", prompt_of(400), 1), ask("short", (1, 2), 15))
        # 400 tokens in pieces of 16 are 25 steps, and the short one decoded in each of them.
        assert ended == ["short", "long"]
        assert engine.statistics().steps <= 28


async def test_the_event_loop_runs_between_the_steps() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with LocalEngine(shared("qwen3"), slots=1, context_tokens=64) as engine:
        ticker = asyncio.create_task(tick())
        await engine.generate(GenerateRequest(id="1", prompt=(1,), max_new_tokens=40))
        ticker.cancel()
    assert ticks >= 40


async def test_stop_tokens_and_stop_strings() -> None:
    def decode(tokens: Any) -> str:
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    request = GenerateRequest(id="1", prompt=prompt_of(9), max_new_tokens=50, seed=4)
    async with LocalEngine(shared("qwen3"), context_tokens=128, decode=decode) as engine:
        whole = await engine.generate(request)
        stop = whole.token_ids[10]
        end = whole.token_ids.index(stop) + 1
        done = await engine.generate(replace(request, stop_token_ids=frozenset({stop})))
        assert (done.token_ids, done.finish) == (whole.token_ids[:end], "stop")
        text = decode(whole.token_ids)
        for width, at in ((1, 4), (3, 20), (17, 30)):
            string = text[at : at + width]
            end = text.index(string) + width
            done = await engine.generate(replace(request, stop_strings=("never!", string)))
            assert (done.token_ids, done.finish) == (whole.token_ids[:end], "stop")
            assert len(done.logprobs) == end


@pytest.mark.parametrize("at", [1, 5])
async def test_a_stop_string_may_begin_before_an_abort(at: int) -> None:
    """At the first token of the turn, and later; a text that ends with the prompt is none of it."""

    def decode(tokens: Any) -> str:
        return "".join(chr(token) for token in tokens)

    request = GenerateRequest(id="1", prompt=prompt_of(9), max_new_tokens=20, seed=4)
    async with LocalEngine(shared("qwen3"), context_tokens=128, decode=decode) as engine:
        whole = (await engine.generate(request)).token_ids
        stops = (decode((request.prompt[-1], whole[0])), decode(whole[at - 1 : at + 1]))
        request = replace(request, stop_strings=stops)
        rest = replace(request, prompt=request.prompt + whole[:at], begun_tokens=at)
        assert (await engine.generate(request)).token_ids == whole[: at + 1]
        done = await engine.generate(rest)
        assert (done.token_ids, done.finish) == ((whole[at],), "stop")


async def test_half_precision_stays_close() -> None:
    request = GenerateRequest(id="1", prompt=prompt_of(90), max_new_tokens=40)
    dtype = torch.bfloat16
    async with LocalEngine(shared("qwen3"), context_tokens=256, dtype=dtype) as engine:
        done = await engine.generate(request)
    assert 1e-6 < gap_nats(shared("qwen3"), request, done) < 0.1


async def test_the_context_limit_ends_a_completion() -> None:
    async with LocalEngine(shared("qwen3"), context_tokens=70) as engine:
        request = GenerateRequest(id="1", prompt=prompt_of(60), max_new_tokens=50)
        done = await engine.generate(request)
        assert (len(done.token_ids), done.finish) == (10, "length")
        assert gap_nats(shared("qwen3"), request, done) < 1e-4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": (1,) * 64}, "prompt of 64 tokens.*engine.context_tokens=64"),
        ({"prompt": ()}, "empty"),
        ({"prompt": (1, VOCABULARY)}, f"token {VOCABULARY} .*vocabulary of {VOCABULARY}"),
        ({"prompt": (-1,)}, "token -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"top_logprobs": VOCABULARY + 1}, "top_logprobs"),
        ({"stop_strings": ("x",)}, "decode"),
        ({"begun_tokens": 1}, "begun_tokens"),
    ],
)
async def test_what_cannot_be_served_is_refused(changes: dict[str, Any], says: str) -> None:
    request = GenerateRequest(id="1", prompt=(1,), max_new_tokens=3)
    async with LocalEngine(shared("qwen3"), context_tokens=64) as engine:
        with pytest.raises(ValueError, match=says):
            await engine.generate(replace(request, **changes))
        assert engine.statistics().waiting == 0
        assert len((await engine.generate(request)).token_ids) == 3


async def test_an_id_is_in_flight_once() -> None:
    request = GenerateRequest(id="1", prompt=(1,), max_new_tokens=9)
    async with LocalEngine(shared("qwen3"), context_tokens=64) as engine:
        running = asyncio.create_task(engine.generate(request))
        await turns(2)
        with pytest.raises(ValueError, match="'1' is already in flight"):
            await engine.generate(request)
        assert len((await running).token_ids) == 9


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_diverged_weights_fail_everybody_and_the_engine_says_so(name: str) -> None:
    engine = LocalEngine(shared(name), slots=2, context_tokens=64)
    asked = [GenerateRequest(id=str(i), prompt=(i,), max_new_tokens=30) for i in range(5)]
    running = [asyncio.create_task(engine.generate(request)) for request in asked]
    await turns(3)
    nan = {key: value * torch.nan for key, value in shared(name).state_dict().items()}
    await engine.load(nan, version=1)
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert "diverged" in str(results[0])
    with pytest.raises(EngineError, match="broken"):
        await engine.generate(asked[0])
    await engine.close()


async def test_pause_holds_requests_and_close_ends_them() -> None:
    engine = LocalEngine(shared("qwen3"), slots=2, context_tokens=2000)
    request = GenerateRequest(id="1", prompt=(1,), max_new_tokens=1900)
    running = asyncio.create_task(engine.generate(request))
    await turns(6)
    await engine.pause()
    part = await running
    assert part.finish == "aborted"
    assert part.token_ids
    held = asyncio.create_task(engine.generate(replace(request, id="2")))
    await turns(6)
    assert engine.statistics().running == 0
    await engine.resume()
    await turns(6)
    assert engine.statistics().running == 1
    await engine.close()
    assert (await held).finish == "aborted"
    await engine.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request)


def test_an_engine_serves_one_event_loop_after_another() -> None:
    engine = LocalEngine(shared("qwen3"), context_tokens=64)
    request = GenerateRequest(id="1", prompt=(5, 6), max_new_tokens=4)
    done = [asyncio.run(engine.generate(request)) for _ in range(2)]
    assert done[0].token_ids == done[1].token_ids


def test_what_no_engine_can_be_made_of() -> None:
    with pytest.raises(ValueError, match=r"engine\.slots must be at least 1, got 0"):
        LocalEngine(shared("qwen3"), slots=0)
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
    }
    with pytest.raises(ConfigError, match="encoder-decoder"):
        LocalEngine(T5ForConditionalGeneration(T5Config(**sizes, num_heads=2)))


async def test_sampling_parameters_are_each_requests_own() -> None:
    """The log-prob is under the warped distribution, and greedy beside it stays greedy."""
    settings = [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=5),
        Sampling(temperature=1.5, top_p=0.6),
        Sampling(temperature=0.0),
    ]
    asked = [
        GenerateRequest(
            id=str(i),
            prompt=prompt_of(20, seed=i),
            max_new_tokens=25,
            sampling=settings[i % 5],
            seed=i,
        )
        for i in range(35)
    ]
    async with LocalEngine(shared("qwen3"), slots=16, context_tokens=128) as engine:
        done = await all_of(engine, asked)
        for request, completion in list(zip(asked, done, strict=True))[:5]:
            alone = await engine.generate(request)
            assert replace(alone, prompt_cached_tokens=0) == completion
    for request, completion in zip(asked, done, strict=True):
        want = warped(logits_of(shared("qwen3"), request.prompt, completion.token_ids), request)
        chosen = want.gather(-1, torch.tensor(completion.token_ids).unsqueeze(-1)).squeeze(-1)
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)


def warped(logits: torch.Tensor, request: GenerateRequest) -> torch.Tensor:
    """Return log-probs under a request's distribution, made with transformers' own warpers."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    sampling = request.sampling
    if sampling.temperature == 0:
        point = torch.full_like(logits, -torch.inf)
        return point.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    ids: Any = None
    if sampling.temperature != 1:
        logits = TemperatureLogitsWarper(sampling.temperature)(ids, logits)
    if sampling.top_k:
        logits = TopKLogitsWarper(sampling.top_k)(ids, logits)
    if sampling.top_p < 1:
        logits = TopPLogitsWarper(sampling.top_p)(ids, logits)
    return logits.log_softmax(-1)

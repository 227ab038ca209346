"""The parts of the local engine that need no model: noise, draws, filters, slots, stop strings.

Mutants seen caught: an unfinished hash, a draw past the end, temperature ignored, top-p on the
wrong side, top-k one short, siblings that do not
wait, a sibling placed over the turn it branches from.
"""

import asyncio
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.engine.attention import KeyLengths, decode_spans, key_lengths, prefill_spans
from agentrl.engine.cache_slots import CacheSlot, common_prefix, place
from agentrl.engine.inflight import InflightRequest
from agentrl.engine.noise import stream, uniforms
from agentrl.engine.sampling import LIKELIEST, distribution, draw, sample
from agentrl.engine.stopping import ends_with_stop
from agentrl.errors import EngineError
from agentrl.policy import GenerateRequest, Sampling

# --- noise ----------------------------------------------------------------------------------------


def test_noise_is_splitmix64() -> None:
    """The first outputs of splitmix64 seeded with 0, as its authors publish them."""
    outputs = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    want = [(x >> 11) / 2**53 for x in outputs]
    assert uniforms([0, 0, 0], [1, 2, 3]).tolist() == want
    assert stream(0) == outputs[0]


def test_noise_is_a_function_of_seed_and_position_alone() -> None:
    streams = [stream(seed) for seed in (0, 1, 2**63 - 1, 5)]
    together = uniforms(streams, [10, 11, 12, 13])
    alone = [uniforms([s], [p])[0] for s, p in zip(streams, (10, 11, 12, 13), strict=True)]
    assert together.tolist() == alone


def test_noise_is_uniform_along_positions_and_along_seeds() -> None:
    along = uniforms([stream(7)] * 20_000, range(20_000))
    across = uniforms([stream(seed) for seed in range(20_000)], [3] * 20_000)
    for values in (along, across):
        counts, _ = np.histogram(values, bins=20, range=(0, 1))
        # 1000 expected per bin with a deviation of 31; the seeds are fixed, so this cannot flake.
        assert abs(counts - 1000).max() < 120
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [5, 64, 130, 300])
def test_a_draw_inverts_the_cumulative_distribution(vocabulary: int) -> None:
    """Over an even grid of uniform numbers every token is drawn as often as its probability says,
    to within the one grid point at each of its edges."""
    generator = torch.Generator().manual_seed(vocabulary)
    logprobs = (3 * torch.randn(1, vocabulary, generator=generator)).log_softmax(-1)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = draw(logprobs.expand(20_000, -1), grid)
    counts = torch.bincount(drawn, minlength=vocabulary)
    assert (counts - 20_000 * logprobs[0].exp()).abs().max() <= 1.01
    assert drawn.equal(drawn.sort().values)


@given(st.integers(1, 200), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
def test_a_draw_never_takes_what_has_no_probability(size: int, seed: int, u: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, size, generator=generator)
    logits[torch.rand(1, size, generator=generator) < 0.7] = -torch.inf
    logits[0, seed % size] = 0.0
    logprobs = logits.log_softmax(-1)
    for uniform in (u, 0.0, 1 - 2**-53):
        token = int(draw(logprobs, torch.tensor([uniform], dtype=torch.float64)))
        assert logprobs[0, token] > -torch.inf


def test_filters_come_in_the_order_temperature_top_k_top_p() -> None:
    """A case where every other order keeps other tokens, worked out by hand.

    Probabilities .4 .3 .2 .1. Temperature 1/2 squares them: .533 .3 .133 .033. Top-k 2 leaves
    .64 .36. Top-p .6 keeps the first alone; without the temperature .571 would not be enough, and
    before top-k .533 would not.
    """
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    sampling = Sampling(temperature=0.5, top_k=2, top_p=0.6)
    assert distribution(logits, [sampling]).exp()[0].tolist() == pytest.approx([1, 0, 0, 0])
    kept = distribution(logits, [Sampling(top_k=2, top_p=0.6)]).exp()[0].tolist()
    assert kept == pytest.approx([4 / 7, 3 / 7, 0, 0])


@given(
    st.lists(
        st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
            top_k=st.sampled_from([0, 1, 3, 50, 99]),
            top_p=st.sampled_from([1.0, 0.9, 0.3, 0.01]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(0, 2**32),
)
def test_a_row_is_filtered_in_a_batch_as_alone(samplings: list[Sampling], seed: int) -> None:
    """Logits with ties; the expected support is that of the definition, token by token."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-8, 8, (len(samplings), 50), generator=generator) / 4
    together = distribution(logits, samplings)
    for row, sampling in enumerate(samplings):
        alone = distribution(logits[row : row + 1], [sampling])[0]
        assert together[row].equal(alone)
        values = sorted(logits[row].tolist(), reverse=True)
        if sampling.temperature == 0:
            assert alone.argmax() == logits[row].argmax()
            assert alone.max() == 0
            assert (alone == -torch.inf).sum() == 49
        elif sampling.top_p == 1:
            kth = values[min(sampling.top_k or 50, 50) - 1]
            assert (alone > -torch.inf).equal(logits[row] >= kth)


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_top_p_keeps_the_fewest_tokens_that_reach_its_share(spread: float) -> None:
    """In a vocabulary where the tokens that are looked at first are enough, or not.

    Mutants: a row keeps those alone; the token that reaches the share is dropped; the rows that
    need more get each other's share.
    """
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(3, 4 * LIKELIEST, generator=generator)
    shares = (0.3, 0.9, 0.99)
    together = distribution(logits, [Sampling(top_p=share) for share in shares])
    for row, share in enumerate(shares):
        probabilities = logits[row].double().softmax(-1)
        kept = together[row] > -torch.inf
        assert probabilities[kept].min() > probabilities[~kept].max()
        total, least = probabilities[kept].sum(), probabilities[kept].min()
        assert total - least < share + 1e-6
        assert total > share - 1e-6
        alone = distribution(logits[row : row + 1], [Sampling(top_p=share)])[0]
        assert together[row].equal(alone)


def test_filters_take_as_many_operations_for_many_rows_as_for_few() -> None:
    """Mutant: rows are filtered one by one, each in operations of its own."""

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    mixed = [Sampling(top_k=3), Sampling(top_p=0.5), Sampling(temperature=0.0)]
    counts: list[int] = []
    for times in (1, 50):
        samplings = mixed * times
        with Counted() as counted:
            distribution(torch.rand(len(samplings), 50), samplings)
        counts.append(counted.count)
    assert counts[1] < 2 * counts[0]


def test_a_pick_reports_the_most_likely_under_its_own_distribution() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).log()
    samplings = [Sampling(top_k=3), Sampling(temperature=0.0)]
    first, second = sample(logits, samplings, np.array([0.5, 0.5]), [4, 2])
    assert [token for token, _ in first.top] == [0, 1, 2]
    assert np.exp([p for _, p in first.top]).tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9])
    assert (first.token, np.exp(first.logprob)) == (1, pytest.approx(3 / 9))
    assert (second.token, second.logprob, second.top) == (3, 0.0, ((3, 0.0),))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0), Sampling(top_k=2)])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_never_drawn_from(sampling: Sampling, odd: float) -> None:
    logits = torch.tensor([[0.0, odd, 1.0]])
    with pytest.raises(EngineError, match="not finite"):
        sample(logits, [sampling], np.array([0.5]), [0])


def test_an_entropy_is_that_of_the_distribution_a_token_was_drawn_from() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 3).log()
    samplings = [Sampling(), Sampling(top_k=2), Sampling(temperature=0.0)]
    draws = np.array([0.5] * 3)
    picks = sample(logits, samplings, draws, [0] * 3, entropies=True)
    third = np.log([3 / 2, 3]) @ [2 / 3, 1 / 3]
    assert [pick.entropy for pick in picks] == pytest.approx([1.75 * np.log(2), third, 0.0])
    assert [pick.entropy for pick in sample(logits, samplings, draws, [0] * 3)] == [0.0] * 3


# --- attention spans ------------------------------------------------------------------------------


@given(st.integers(1, 3000))
def test_padded_lengths_hold_the_keys_and_are_allowed(keys: int) -> None:
    padding = KeyLengths((64, 128, 192, 384, 448, 512))
    padded = padding.pad_length(keys)
    assert keys <= padded < keys + 192 + 64
    assert padded % 512 in (0, 64, 128, 192, 384, 448)


@given(
    st.dictionaries(st.integers(0, 40), st.integers(1, 900), min_size=1, max_size=20),
    st.sampled_from([64, 1024, 10_000]),
)
def test_decode_spans_answer_every_row_once(lengths: dict[int, int], key_bytes: int) -> None:
    slots = sorted(lengths)
    padding = KeyLengths((64, 128, 192, 384, 448, 512))
    spans = decode_spans(slots, [lengths[s] for s in slots], key_bytes, padding)
    answered = [(s.row + i, s.slot + i, s.keys) for s in spans for i in range(s.rows)]
    assert [(row, slot) for row, slot, _ in answered] == list(enumerate(slots))
    assert all(keys >= lengths[slot] for _, slot, keys in answered)


@given(st.integers(0, 700), st.integers(1, 300))
def test_prefill_spans_cover_the_rows_without_needless_keys(start: int, count: int) -> None:
    padding = key_lengths(32, "cpu", torch.float32)
    spans = prefill_spans(5, 3, start, count, padding)
    assert [s.row + i for s in spans for i in range(s.rows)] == list(range(5, 5 + count))
    for span in spans:
        first, last = start + span.row - 5, start + span.row - 5 + span.rows - 1
        assert first // 64 == last // 64
        assert span.keys == padding.pad_length(last + 1)


def test_a_full_block_is_always_an_allowed_length() -> None:
    for head in (16, 32, 64, 128):
        assert key_lengths(head, "cpu", torch.float32).allowed[-1] == 512
    assert key_lengths(64, "cpu", torch.bfloat16).allowed == tuple(range(64, 513, 64))


# --- slots ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1), max_size=200), st.lists(st.integers(0, 1), max_size=200))
def test_common_prefix_is_what_it_says(a: list[int], b: list[int]) -> None:
    shared = common_prefix(a, b, 150)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b), 150) or a[shared] != b[shared]


def slot_of(index: int, held: int = 0, *, salt: int = 0, used_at: int = 0) -> CacheSlot:
    return CacheSlot(index, [salt] * held, None, used_at)


async def flying(prompt: tuple[int, ...]) -> InflightRequest:
    """Return a request in flight."""
    reply = asyncio.get_running_loop().create_future()
    return InflightRequest(GenerateRequest(id="x", prompt=prompt, max_new_tokens=9), 9, reply, 0)


def placed(context: list[int], slots: list[CacheSlot]) -> tuple[int, int, int] | None:
    found = place(context, slots)
    return found and (found.slot.index, found.source.index, found.tokens)


async def test_where_a_request_is_placed() -> None:
    context = [0] * 100
    assert placed(context, [slot_of(0), slot_of(1)]) == (0, 0, 0)
    # It continues where exactly its past is.
    assert placed(context, [slot_of(0), slot_of(1, 60)]) == (1, 1, 60)
    # The last token is computed in any case.
    assert placed(context, [slot_of(0), slot_of(1, 100)]) == (0, 1, 99)
    # A longer past of somebody else is copied, to an empty slot before an old one.
    longer = slot_of(1, 200)
    assert placed(context, [slot_of(0, 50, salt=9, used_at=1), longer, slot_of(2)]) == (2, 1, 99)
    # With no empty slot the one idle for longest is overwritten.
    old, new = slot_of(0, 50, salt=9, used_at=1), slot_of(2, 50, salt=8, used_at=2)
    assert placed(context, [new, longer, old]) == (1, 1, 99)
    longer.used_at = 3
    assert placed(context, [new, longer, old]) == (0, 1, 99)
    # A few tokens in common are no reason to copy.
    assert placed([0] * 10 + [1] * 90, [slot_of(0, 80), slot_of(1)]) == (1, 1, 0)


async def test_a_sibling_waits_for_the_prefix_that_is_being_computed() -> None:
    context = [0] * 100
    busy = slot_of(0, 30)
    busy.flight = await flying((0,) * 100)
    assert placed(context, [busy, slot_of(1)]) is None
    busy.held = [0] * 99
    assert placed(context, [busy, slot_of(1)]) == (1, 0, 99)
    assert placed([5] * 100, [busy, slot_of(1)]) == (1, 1, 0)
    assert placed(context, [busy]) is None


# --- stop strings ---------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.text("ab é", min_size=1, max_size=6))
def test_a_stop_string_is_seen_at_the_token_that_completes_it(seed: int, stop: str) -> None:
    """Tokens are pieces of one to three bytes, so that a character can span two of them."""
    rng = random.Random(seed)
    text = "".join(rng.choice("abc é") for _ in range(60)).encode()
    cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(40))})
    pieces = [text[a:b] for a, b in pairwise(cuts)]

    def decode(tokens: Any) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    for count in range(1, len(pieces) + 1):
        tokens = list(range(count))
        whole = stop in decode(tokens)
        assert ends_with_stop(tokens, [stop], decode) == whole
        if whole:
            return

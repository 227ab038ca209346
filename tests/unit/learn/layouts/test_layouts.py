"""Padded, packed and tree: the same numbers from fewer tokens. Mutants applied and seen caught:

- trie: subtree ends one too far; positions counted by place: trie of the specification; a prefix of
  another sequence shares nothing with it: prefixes; questions not shared; base of the key one too
  small (two questions become one): question test
- sorting: a common prefix counted from the part that is compared; equal sequences out of order,
  alike ones compared no further, or said to share less: sorted by their bytes
- ancestry: a subtree ends one place early; calls one query short, or left out where one
  query comes: who sees whom, the specification's calls; every later place
  sees a key: block mask; a window one too long, or counted in places: window test, who sees whom
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray
from torch import Tensor
from torch.nn.attention.flex_attention import (
    flex_attention,  # pyright: ignore[reportUnknownVariableType]
)
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from agentrl.config.learn import LearnSection
from agentrl.errors import ConfigError
from agentrl.learn import losses
from agentrl.learn.ancestry import AncestorMask
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts import trie as trie_layout
from agentrl.learn.layouts.attention import NAME, Kernel, attend
from agentrl.learn.layouts.packed import PackedLayout, PrefixTreeLayout
from agentrl.learn.layouts.packing import pack
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.layouts.probe import check_layout
from agentrl.learn.layouts.trie import flatten, keep_order, sort_by_prefix
from agentrl.learn.method import LearnMethod
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingSample, spans_of
from agentrl.learn.sequence_layout import SequenceLayout
from agentrl.learn.token_logprobs import score
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import ImageSpan
from tests.support.learning import CPU, VOCABULARY, gradients, model_of, scored_by, trees_of

EVERYTHING = 10**6
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
    "attn_implementation": "sdpa",
}

words = st.lists(st.integers(1, 3), min_size=1, max_size=7).map(np.array)
forests = st.lists(words, min_size=1, max_size=9)


@dataclass(frozen=True)
class Pair:
    """A context and what trains of it."""

    token_ids: ndarray
    mask: ndarray
    images: tuple[ImageSpan, ...] = ()


def spelled(*rows: str) -> list[ndarray]:
    """Return words as tokens."""
    return [np.array([ord(letter) for letter in row]) for row in rows]


def forest(seed: int, count: int = 9, *, turns: int = 4) -> list[Pair]:
    """Return sequences that share prompts, turns, parts of turns, all of a sequence, or nothing.

    Every token after the prompt trains or not at random; shared ones need not agree on it.
    """
    random = np.random.default_rng(seed)
    rows: list[ndarray] = []
    for _ in range(count):
        begun = rows[int(random.integers(len(rows)))] if rows and random.random() < 0.8 else None
        kept = 0 if begun is None else int(random.integers(1, len(begun) + 1))
        own = random.integers(1, VOCABULARY, int(random.integers(2, 5 * turns)))
        rows.append(own if begun is None else np.concatenate([begun[:kept], own]))
    rows.append(rows[0])
    return [Pair(row, chosen(random, len(row))) for row in rows]


def chosen(random: np.random.Generator, tokens: int) -> ndarray:
    """Return a mask that leaves the first token out and takes at least one."""
    mask = random.random(tokens) < 0.6
    mask[0] = False
    mask[int(random.integers(1, tokens))] = True
    return mask


def samples_of(pairs: Sequence[Pair], seed: int = 0) -> list[CreditedSample]:
    """Return rows with credit of both signs."""
    random = np.random.default_rng(seed)
    rows: list[CreditedSample] = []
    for index, pair in enumerate(pairs):
        none = np.zeros(len(pair.token_ids), dtype=np.int64)
        sample = TrainingSample(
            task_id="t",
            sample=index,
            reward=0.0,
            token_ids=pair.token_ids,
            mask=pair.mask,
            behaviour=-2.0 + 0.3 * random.standard_normal(len(none)),
            spans=spans_of(pair.mask, turns=np.arange(len(none)) // 3),
        )
        rows.append(CreditedSample(sample, np.full(len(none), random.standard_normal() * 2)))
    return rows


def moved(model: PreTrainedModel, rows: Sequence[CreditedSample]) -> list[CreditedSample]:
    """Return rows whose proximal policy is so far away that some tokens are clipped."""
    random = np.random.default_rng(1)
    found: list[CreditedSample] = []
    for row in scored_by(model, rows):
        assert row.sample.proximal is not None
        noise = 0.4 * random.standard_normal(len(row.token_ids))
        found.append(replace(row, sample=replace(row.sample, proximal=row.sample.proximal + noise)))
    return found


def made(config: Any, **changes: Any) -> Any:
    """Return the config of a small model."""
    return config(**SHAPE | changes)


def llama(**changes: Any) -> PreTrainedModel:
    """Return a small Llama."""
    return large(LlamaForCausalLM(made(LlamaConfig, **changes)))


def large(model: Any, scale: float = 6.0) -> PreTrainedModel:
    """Return the model with weights large enough that tokens differ clearly."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02 * scale, generator=generator)
    return model.eval()


def logprobs(model: PreTrainedModel, pairs: Sequence[Pair], layout: SequenceLayout) -> list[Tensor]:
    """Return the log-probs of each sequence's mask."""
    tokens = layout.tokens(pairs, device=CPU)
    with torch.no_grad():
        found = score(model, tokens, temperature=1.0, head_at_positions=True).logprobs
    return [row[kept] for row, kept in zip(found, tokens.mask, strict=True)]


def largest(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the largest difference."""
    return float((torch.cat(list(ones)) - torch.cat(list(others))).abs().max())


def ancestry_of(rows: Sequence[ndarray]) -> AncestorMask:
    """Return the ancestry of a trie."""
    trie = flatten(rows, sort_by_prefix(rows))
    return AncestorMask.from_positions(trie.positions, trie.ends, device=CPU)


# A, B, C, D, E, F, G, H once each; the specification's example.
GOLDEN = spelled("ABCD", "ABEF", "AGH")


def test_the_trie_of_the_specification() -> None:
    trie = flatten(GOLDEN, sort_by_prefix(GOLDEN))
    assert "".join(map(chr, trie.token_ids)) == "ABCDEFGH"
    assert trie.positions.tolist() == [0, 1, 2, 3, 2, 3, 1, 2]
    assert trie.ends.tolist() == [7, 5, 3, 3, 5, 5, 7, 7]
    assert [path.tolist() for path in trie.paths] == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 6, 7]]
    used = np.bincount(np.concatenate(trie.paths))
    assert used.tolist() == [3, 2, 1, 1, 1, 1, 1, 1]  # the weights, of 3


def test_the_calls_of_the_specification() -> None:
    ancestry = ancestry_of(GOLDEN)
    assert ancestry.chains == ((0, 4), (4, 6), (6, 8))
    spans = [(a.query_start, a.query_stop, a.key_start, a.key_stop) for a in ancestry.across]
    assert spans == [(4, 8, 0, 1), (4, 6, 1, 2)]


@given(forests)
def test_a_trie_holds_every_prefix_once_and_gives_every_sequence_back(rows: list[ndarray]) -> None:
    trie = flatten(rows, sort_by_prefix(rows))
    prefixes = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    assert len(trie.token_ids) == len(prefixes)
    for row, path in zip(rows, trie.paths, strict=True):
        assert trie.token_ids[path].tolist() == row.tolist()
        assert trie.positions[path].tolist() == list(range(len(row)))


@given(forests, st.sampled_from([1, 2, 64]))
def test_sequences_are_sorted_by_their_bytes_however_many_tokens_are_compared_at_first(
    rows: list[ndarray], first_tokens: int
) -> None:
    with patch.object(trie_layout, "FIRST_TOKENS", first_tokens):
        ordered = sort_by_prefix(rows)
    expected = sorted(range(len(rows)), key=lambda i: (rows[i].tobytes(), i))
    assert list(ordered.order) == expected
    pairs = itertools.pairwise(rows[i].tolist() for i in expected)
    alike = (itertools.takewhile(bool, map(int.__eq__, one, other)) for one, other in pairs)
    assert list(ordered.shared) == [0, *map(sum, alike)]


@given(forests, st.booleans())
def test_a_place_is_seen_by_those_below_it_and_by_each_in_one_call(
    rows: list[ndarray], share: bool
) -> None:
    trie = flatten(rows, (sort_by_prefix if share else keep_order)(rows))
    expected = np.zeros((len(trie.ends),) * 2, dtype=int)
    for path in trie.paths:
        for depth, place in enumerate(path):
            expected[place, path[: depth + 1]] = 1
    ancestry = AncestorMask.from_positions(trie.positions, trie.ends, device=CPU)
    assert ancestry.mask().int().tolist() == expected.tolist()
    calls = np.zeros_like(expected)
    for start, stop in ancestry.chains:
        calls[start:stop, start:stop] += np.tri(stop - start, dtype=int)
    for a in ancestry.across:
        calls[a.query_start : a.query_stop, a.key_start : a.key_stop] += 1
    assert calls.tolist() == expected.tolist()
    assert ancestry.longest == max(map(len, rows))


def test_a_window_counts_tokens_of_the_sequence_and_not_places() -> None:
    mask = ancestry_of(GOLDEN).mask(2).int()
    assert mask[6].tolist() == [1, 0, 0, 0, 0, 0, 1, 0]  # G is six places after A, and next to it
    assert mask[5].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_spans_are_known_where_a_device_holds_no_data() -> None:
    pairs = [Pair(row, np.arange(len(row)) > 0) for row in GOLDEN]
    tokens = PrefixTreeLayout(EVERYTHING).tokens(pairs, device=torch.device("meta"))
    assert tokens.inputs.is_meta
    assert tokens.ancestry is not None
    assert tokens.ancestry.chains == ancestry_of([row[:-1] for row in GOLDEN]).chains


def test_a_question_is_asked_once_however_many_share_it() -> None:
    random = np.random.default_rng(0)
    pairs = [Pair(row, np.arange(len(row)) > 0) for row in spelled("ABCD", "ABCE", "ABCD")]
    tokens = PrefixTreeLayout(EVERYTHING).tokens(pairs, device=CPU)
    assert tokens.inputs.tolist() == [[65, 66, 67]]
    assert tokens.predictions.tolist() == [0, 1, 2, 2]
    assert tokens.targets.tolist() == [66, 67, 68, 69]
    assert tokens.entries.tolist() == [0, 1, 2, 0, 1, 3, 0, 1, 2]
    masked = [replace(pair, mask=chosen(random, 4)) for pair in pairs]
    together = PrefixTreeLayout(EVERYTHING).tokens(masked, device=CPU)
    assert together.mask.sum().item() == sum(int(pair.mask.sum()) for pair in masked)


# Packing


def trie_tokens(rows: Sequence[ndarray]) -> int:
    """Return how many tokens the trie of the rows has."""
    return len({tuple(row[: n + 1]) for row in rows for n in range(len(row))})


@given(forests, st.integers(7, 40))
def test_lines_hold_everything_once_within_the_budget(rows: list[ndarray], limit: int) -> None:
    ended = [Pair(np.append(row, 9), np.arange(len(row) + 1) == len(row)) for row in rows]
    for layout in (PrefixTreeLayout(limit), PackedLayout(limit)):
        lines = layout.plan(ended)
        assert sorted(i for line in lines for i in line) == list(range(len(rows)))
        for line in lines:
            read = layout.tokens([ended[i] for i in line], device=CPU).inputs
            assert read.numel() <= limit
            whole = [rows[i] for i in line]
            expected = (
                trie_tokens(whole) if isinstance(layout, PrefixTreeLayout) else sum(map(len, whole))
            )
            assert read.numel() == expected


@given(forests)
def test_a_budget_that_holds_the_whole_tree_makes_one_line(rows: list[ndarray]) -> None:
    ended = [Pair(np.append(row, 9), np.arange(len(row) + 1) == len(row)) for row in rows]
    assert len(PrefixTreeLayout(max(trie_tokens(rows), max(map(len, rows)))).plan(ended)) == 1


def test_a_tree_over_the_budget_falls_apart_where_its_branches_part() -> None:
    # 10 shared by all; two forks of 20 with three branches of 5 each: 10 + 2 x (20 + 15) = 80.
    lengths, shared = [35] * 6, [0, 30, 30, 10, 30, 30]
    assert pack(lengths, shared, limit_tokens=80) == [[0, 1, 2, 3, 4, 5]]
    assert pack(lengths, shared, limit_tokens=79) == [[0, 1, 2], [3, 4, 5]]
    assert pack(lengths, shared, limit_tokens=44) == [[0, 1], [2], [3, 4], [5]]


def test_units_go_where_they_share_most_and_then_to_the_first() -> None:
    # Two trees of two branches; nothing is shared between them.
    lengths, shared = [50, 20, 49, 20], [0, 10, 0, 15]
    assert pack(lengths, shared, limit_tokens=64) == [[0, 1], [2, 3]]
    assert pack(lengths, shared, limit_tokens=69) == [[0, 1], [2, 3]]
    assert pack([30, 30, 30], [0, 0, 0], limit_tokens=60) == [[0, 1], [2]]
    assert pack([10, 40, 30], [0, 0, 0], limit_tokens=50) == [[1, 0], [2]]
    assert pack([], [], limit_tokens=1) == []


@pytest.mark.parametrize("layout", [PackedLayout(3), PrefixTreeLayout(3)])
def test_a_sequence_over_the_budget_names_the_key(layout: SequenceLayout) -> None:
    pairs = [Pair(row, np.arange(len(row)) == len(row) - 1) for row in spelled("AB", "ABCDE")]
    with pytest.raises(ConfigError, match=r"needs 4 tokens.*micro_batch_tokens=3.*at least 4"):
        layout.plan(pairs)


# The same numbers


@pytest.mark.parametrize("method", losses.METHODS, ids=lambda m: m.section.__name__)
@pytest.mark.parametrize(
    "layout", [PackedLayout(EVERYTHING), PrefixTreeLayout(EVERYTHING), PrefixTreeLayout(40)]
)
def test_loss_and_gradient_do_not_depend_on_the_layout(
    method: LearnMethod[Any], layout: SequenceLayout
) -> None:
    model = model_of()
    section = LearnSection.model_validate({"loss": method.section()})
    for seed in range(2):
        rows = moved(model, samples_of(forest(seed)))
        expected = gradients(model, rows, section, layout=PaddedLayout(EVERYTHING))
        found = gradients(model, rows, section, layout=layout)
        assert expected.norm() > 1e-3
        assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("make", [model_of, llama], ids=["qwen3", "llama"])
@pytest.mark.parametrize("layout", [PackedLayout(EVERYTHING), PrefixTreeLayout(EVERYTHING)])
def test_log_probs_do_not_depend_on_the_layout(make: Any, layout: SequenceLayout) -> None:
    model = make()
    for seed in range(5):
        pairs = forest(seed, 12, turns=6)
        expected = logprobs(model, pairs, PaddedLayout(EVERYTHING))
        assert largest(logprobs(model, pairs, layout), expected) < 1e-5
    model.requires_grad_(True)
    rows = moved(model, samples_of(forest(0)))
    one, other = (
        gradients(model, rows, LearnSection(), layout=x) for x in (PaddedLayout(999), layout)
    )
    assert (one - other).norm() <= 1e-5 * one.norm()


def test_another_branch_changes_nothing() -> None:
    model = model_of()
    rows = [np.array(x) for x in ([2, 3, 4, 5, 6], [2, 3, 7, 8, 9], [2, 10, 11])]
    pairs = [Pair(row, np.arange(len(row)) > 0) for row in rows]
    before = logprobs(model, pairs, PrefixTreeLayout(EVERYTHING))
    pairs[1] = replace(pairs[1], token_ids=np.array([2, 3, 7, 11, 1]))
    after = logprobs(model, pairs, PrefixTreeLayout(EVERYTHING))
    assert largest([before[0], before[2]], [after[0], after[2]]) < 1e-6
    assert largest(before[1:2], after[1:2]) > 1e-2


@given(st.integers(0, 50), st.randoms(use_true_random=False))
def test_swapping_siblings_changes_nothing_at_all(seed: int, random: Any) -> None:
    pairs = forest(seed, 5)
    order = random.sample(range(len(pairs)), len(pairs))
    before = logprobs(MODEL, pairs, PrefixTreeLayout(EVERYTHING))
    after = logprobs(MODEL, [pairs[i] for i in order], PrefixTreeLayout(EVERYTHING))
    assert all(before[i].equal(found) for i, found in zip(order, after, strict=True))


MODEL = model_of()


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_a_step_of_the_trainer_is_the_same(layout: Any) -> None:
    found: list[tuple[dict[str, float], dict[str, Tensor]]] = []
    for name in ("padded", layout):
        trainer = PolicyTrainer(model_of(), LearnSection(layout=name, minibatches=2), seed=0)
        metrics = trainer.step(trees_of(gap=0.3))
        found.append((metrics, {k: v.clone() for k, v in trainer.weights().items()}))
    (expected, before), (metrics, after) = found
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert all(after[name].allclose(before[name], atol=1e-6) for name in before)


# The attention of one layer


def attended(kernel: Kernel, rows: Sequence[ndarray], dtype: torch.dtype) -> list[Tensor]:
    """Return output and gradients of two query heads to one key head."""
    ancestry = ancestry_of(rows)
    generator = torch.Generator().manual_seed(0)
    places = len(ancestry.ends)
    made = [torch.randn(1, places, n, 8, generator=generator, dtype=dtype) for n in (4, 2, 2, 4)]
    query, key, value = (x.transpose(1, 2).requires_grad_() for x in made[:3])
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 2
    out, _ = attend(module, query, key, value, None, ancestry=ancestry, kernel=kernel, scaling=0.4)
    out.backward(made[3])
    return [out.detach(), *(x.grad for x in (query, key, value) if x.grad is not None)]


@given(forests)
def test_split_and_dense_attention_are_the_same(rows: list[ndarray]) -> None:
    split, dense = (attended(kernel, rows, torch.float64) for kernel in ("split", "dense"))
    assert len(split) == 4
    for one, other in zip(split, dense, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_split_attention_in_bfloat16_is_as_exact_as_bfloat16() -> None:
    rows = [pair.token_ids for pair in forest(3)]
    split, dense = (attended(kernel, rows, torch.bfloat16) for kernel in ("split", "dense"))
    for one, other in zip(split, dense, strict=True):
        assert (one - other).float().norm() < 0.02 * other.float().norm()


def test_the_block_mask_of_flex_attention_is_the_dense_one() -> None:
    ancestry = ancestry_of([pair.token_ids for pair in forest(5, 20, turns=8)])
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, 2, len(ancestry.ends), 16, generator=generator) for _ in range(3)
    )
    block_mask = ancestry.block_mask()
    with torch.no_grad(), pytest.warns(UserWarning, match="torch.compile"):
        flex: Any = flex_attention(query, key, value, block_mask=block_mask)
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=ancestry.mask()
    )
    assert torch.allclose(flex, dense, atol=1e-5)


# Models


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model_that_takes_no_attention_function_gets_a_mask(implementation: str) -> None:
    model = llama(attn_implementation=implementation)
    object.__setattr__(model, "_supports_attention_backend", False)
    pairs = forest(4)
    expected = logprobs(model, pairs, PaddedLayout(EVERYTHING))
    assert largest(logprobs(model, pairs, PrefixTreeLayout(EVERYTHING)), expected) < 1e-5
    assert model.config._attn_implementation == implementation  # pyright: ignore[reportPrivateUsage]


def test_a_sliding_window_slides_along_sequences() -> None:
    model = large(MistralForCausalLM(made(MistralConfig, sliding_window=5)))
    pairs = forest(2, 12, turns=6)
    expected = logprobs(model, pairs, PaddedLayout(EVERYTHING))
    assert largest(logprobs(model, pairs, PrefixTreeLayout(EVERYTHING)), expected) < 1e-5
    wide = large(MistralForCausalLM(made(MistralConfig, sliding_window=None)))
    assert largest(logprobs(wide, pairs, PrefixTreeLayout(EVERYTHING)), expected) > 1e-2


def test_a_model_that_read_a_tree_is_itself_for_everyone_else() -> None:
    model, untouched = llama(), llama()
    logprobs(model, forest(0), PrefixTreeLayout(EVERYTHING))
    ids = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]])
    for mask in (None, torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])):
        found = model(input_ids=ids, attention_mask=mask).logits
        assert found.equal(untouched(input_ids=ids, attention_mask=mask).logits)
    assert NAME not in str(model.config.to_dict())


@pytest.mark.parametrize("name", ["packed", "tree"])
def test_models_that_would_compute_something_else_are_refused(name: Any) -> None:
    layout = LAYOUTS[name](EVERYTHING)
    check_layout(model_of(), layout)
    for key in ("learn.layout: padded", "warmstart.layout: padded"):
        capped = large(Gemma2ForCausalLM(made(Gemma2Config, attn_implementation="eager")))
        said = rf"modifies attention with softcap, which rows .* do not support; set {key}$"
        with pytest.raises(ConfigError, match=said):
            check_layout(capped, layout, way_out=key)
    recurrent = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2)
    model = large(MambaForCausalLM(recurrent))
    with pytest.raises(ConfigError, match=r"MambaForCausalLM.*learn.layout: padded"):
        check_layout(model, layout)
    check_layout(model, PaddedLayout(EVERYTHING))

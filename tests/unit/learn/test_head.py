"""The head by chunks against the plain one. Mutants applied by hand and seen caught:

- sign of the gradient, of the entropy in it, its one-hot part or the temperature left out; weight's
  or bias' gradient of the last chunk only: comparison with the plain head
- no floor under log-probs, in either pass: word that cannot be said
- the head's gradient summed in bfloat16: bfloat16 test
- always plain; logits kept for the backward pass: memory test
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentrl.config.learn import LearnSection
from agentrl.learn import head
from agentrl.learn.head import TokenPredictions, plain, predict
from tests.support.learning import assert_close, gradients, model_of, rows_of, trees_of


@contextmanager
def chunked_from(logits: int) -> Generator[None]:
    """Let more logits than this go by chunks; the constant is for real sizes."""
    before, head.PLAIN_LOGITS = head.PLAIN_LOGITS, logits
    try:
        yield
    finally:
        head.PLAIN_LOGITS = before


class Shifted(nn.Module):
    """A head that is more than a matrix, as an adapted one is."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.weight = inner.weight
        self.shift = nn.Parameter(torch.linspace(-1, 1, inner.out_features))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits."""
        return self.inner(hidden) + self.shift


def head_of(size: int, *, bias: bool, seed: int) -> tuple[nn.Linear, Tensor, Tensor]:
    """Return a head for nine words, hidden states and targets."""
    torch.manual_seed(seed)
    return nn.Linear(5, 9, bias=bias), 2 * torch.randn(size, 5), torch.randint(0, 9, (size,))


def gradient(
    module: nn.Module, hidden: Tensor, found: TokenPredictions, *, asked: str = "both"
) -> list[Tensor]:
    """Return the gradient of a mixture of log-probs and entropies, at hidden states and weights."""
    mixture = torch.linspace(-1, 2, len(hidden))
    total = torch.zeros(())
    if asked != "entropies":
        total = total + (mixture * found.logprobs).sum()
    if asked != "logprobs":
        total = total + (mixture.flip(0) * found.entropies).sum()
    return list(torch.autograd.grad(total, [hidden, *module.parameters()]))


@settings(max_examples=60)
@given(
    size=st.integers(1, 12),
    chunk=st.integers(1, 13),
    bias=st.booleans(),
    adapted=st.booleans(),
    temperature=st.sampled_from([1.0, 0.6]),
    asked=st.sampled_from(["both", "logprobs", "entropies"]),
    seed=st.integers(0, 99),
)
def test_chunks_change_neither_values_nor_gradients(
    size: int, chunk: int, bias: bool, adapted: bool, temperature: float, asked: str, seed: int
) -> None:
    inner, hidden, targets = head_of(size, bias=bias, seed=seed)
    module = Shifted(inner) if adapted else inner
    hidden.requires_grad_()
    expected = plain(module(hidden), targets, temperature=temperature)
    with chunked_from(0):
        found = predict(module, hidden, targets, temperature=temperature, chunk_tokens=chunk)
    # The last bit of a log-prob of -17, the lowest here, is 2e-6.
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-6, rtol=5e-7)
    torch.testing.assert_close(found.entropies, expected.entropies, atol=1e-6, rtol=0)
    pairs = zip(
        gradient(module, hidden, found, asked=asked),
        gradient(module, hidden, expected, asked=asked),
        strict=True,
    )
    for one, other in pairs:
        assert (one - other).norm() <= 2e-6 * max(1.0, float(other.norm()))


def test_the_plain_head_is_what_torch_says() -> None:
    module, hidden, targets = head_of(6, bias=True, seed=0)
    found = plain(module(hidden), targets, temperature=0.7)
    words = torch.distributions.Categorical(logits=module(hidden) / 0.7)
    torch.testing.assert_close(found.logprobs, words.log_prob(targets))
    torch.testing.assert_close(found.entropies, words.entropy())


@pytest.mark.parametrize("chunk", [2, 100])
def test_a_word_that_cannot_be_said_has_no_part_in_entropy_and_gradient(chunk: int) -> None:
    module, hidden, _ = head_of(6, bias=True, seed=0)
    targets = torch.zeros(6, dtype=torch.int64)
    hidden.requires_grad_()
    with torch.no_grad():
        module.bias[3:] = -torch.inf
    few = nn.Linear(5, 3)
    few.load_state_dict({name: value[:3] for name, value in module.state_dict().items()})
    expected = plain(few(hidden), targets, temperature=1.0)
    with chunked_from(0):
        found = predict(module, hidden, targets, temperature=1.0, chunk_tokens=chunk)
    torch.testing.assert_close(found.entropies, expected.entropies)
    one, other = gradient(module, hidden, found), gradient(few, hidden, expected)
    torch.testing.assert_close(one[0], other[0])
    assert all(each.isfinite().all() for each in one)


def test_a_frozen_head_gets_no_gradient() -> None:
    module, hidden, targets = head_of(6, bias=True, seed=0)
    module.requires_grad_(False)
    hidden.requires_grad_()
    with chunked_from(0):
        found = predict(module, hidden, targets, temperature=1.0, chunk_tokens=2)
    found.logprobs.sum().backward()
    assert hidden.grad is not None
    assert module.weight.grad is None


def test_bfloat16_sums_the_heads_gradient_in_float32() -> None:
    module, hidden, targets = head_of(600, bias=False, seed=0)
    half = nn.Linear(5, 9, bias=False).to(torch.bfloat16)
    half.load_state_dict(module.state_dict())
    states = hidden.to(torch.bfloat16)
    whole = plain(half.float()(states.float()), targets, temperature=1.0).logprobs.sum()
    (expected,) = torch.autograd.grad(whole, [half.weight])
    half.to(torch.bfloat16)
    with chunked_from(0):
        found = predict(half, states, targets, temperature=1.0, chunk_tokens=1)
    (got,) = torch.autograd.grad(found.logprobs.sum(), [half.weight])
    assert found.logprobs.dtype == torch.float32
    assert (got.float() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("bonus", [0.0, 0.3])
def test_the_policy_gradient_does_not_depend_on_chunks(bonus: float) -> None:
    model, rows = model_of(), rows_of(trees_of(gap=0.5))
    config = LearnSection(entropy_bonus=bonus, head_chunk_tokens=3)
    expected = gradients(model, rows, config)
    with chunked_from(0):
        assert_close(gradients(model, rows, config), expected)


class Memory(TorchDispatchMode):
    """Follows the tensors that operations make: the largest, and the most bytes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak_bytes = self._bytes = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what an operation makes."""
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self._made(value)
        return found

    def _made(self, value: Tensor) -> None:
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # pyright: ignore[reportPrivateUsage]
        if key in self._alive:
            return
        self._alive.add(key)
        self.largest = max(self.largest, value.numel())
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._bytes -= size


VOCABULARY, PREDICTIONS, WIDTH = 50_000, 512, 16


def memory_of(chunk: int) -> tuple[Memory, int]:
    """Return what a forward and backward pass made, and how many numbers it kept between them."""
    module, hidden = nn.Linear(WIDTH, VOCABULARY, bias=False), torch.randn(PREDICTIONS, WIDTH)
    targets = torch.randint(0, VOCABULARY, (PREDICTIONS,))
    hidden.requires_grad_()
    kept = 0

    def keep(value: Tensor) -> Tensor:
        nonlocal kept
        kept += value.numel()
        return value

    with Memory() as memory, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        found = predict(module, hidden, targets, temperature=1.0, chunk_tokens=chunk)
        (found.logprobs.sum() + found.entropies.sum()).backward()
    assert module.weight.grad is not None
    return memory, kept


def test_no_more_than_a_chunk_of_logits_exists_at_once() -> None:
    by_chunks, kept = memory_of(32)
    assert by_chunks.largest == 32 * VOCABULARY
    assert kept <= (PREDICTIONS + VOCABULARY) * WIDTH + 2 * PREDICTIONS
    whole, everything = memory_of(PREDICTIONS)
    assert whole.largest == PREDICTIONS * VOCABULARY
    assert everything > PREDICTIONS * VOCABULARY
    # Four blocks of a chunk, the head's gradient, the last chunk's share of it.
    limit_bytes = 4 * (4 * 32 * VOCABULARY + 2 * VOCABULARY * WIDTH + 10 * PREDICTIONS * WIDTH)
    assert by_chunks.peak_bytes <= limit_bytes < whole.peak_bytes / 5

"""What the benchmark of engines takes for exact.

Mutants seen caught: the largest difference held to the limit of the mean; compared with a pass in
bfloat16 instead of float32; frequencies of rotations rounded with the weights.
"""

import pytest
import torch

from benchmarks.engines import LogprobGap, compare_logprobs, score
from benchmarks.samplers import Dtype, Job, Sampled, make_policy, round_weights

WORK = [Job((5, 6, 7, 8), 3), Job((9, 10, 11, 12), 2)]
TOKENS = ((1, 2, 3), (4, 5))


def replies_of(logprobs: torch.Tensor) -> list[Sampled]:
    values = iter(logprobs.tolist())
    return [Sampled(tokens, tuple(next(values) for _ in tokens)) for tokens in TOKENS]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plain_pass_is_exact_and_another_token_is_not(dtype: Dtype) -> None:
    unscored = [Sampled(tokens, (0.0,) * len(tokens)) for tokens in TOKENS]
    logprobs = score(round_weights(make_policy(), dtype), WORK, unscored)
    torch.manual_seed(0)
    model = round_weights(make_policy(), dtype)
    own = score(model, WORK, unscored)
    assert not own.equal(logprobs)
    gap = compare_logprobs(model, WORK, replies_of(own))
    assert gap.is_exact
    assert (gap.rounding == 0) == (dtype == "float32")
    if dtype == "bfloat16":
        assert gap.mean == pytest.approx(gap.rounding)
    wrong = own.clone()
    wrong[3] += 0.5
    assert not compare_logprobs(model, WORK, replies_of(wrong)).is_exact


def test_the_limits_are_those_of_the_type() -> None:
    assert LogprobGap(largest=1e-4, mean=1e-5, rounding=0).is_exact
    assert not LogprobGap(largest=2e-4, mean=1e-5, rounding=0).is_exact
    assert LogprobGap(largest=0.4, mean=0.06, rounding=0.04).is_exact
    assert not LogprobGap(largest=0.1, mean=0.061, rounding=0.04).is_exact


def test_rounding_weights_leaves_the_frequencies_of_rotations() -> None:
    model = round_weights(make_policy(), "bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}

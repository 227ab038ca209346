"""Weights of turns in the loss: what they multiply, and what they leave alone.

Mutants seen caught: the loss not multiplied; weights not in the micro-batch, or not handed on by
the trainer; sample 0's weights for all; tokens counted by weight; a row without weight not idle.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import GrpoAdvantage, LearnSection
from agentrl.config.run import MakePolicySection
from agentrl.learn.aggregate import Aggregation, LossDenominators, aggregate
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.micro_batch import CreditedSample, micro_batch
from agentrl.learn.sample import groups_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import make_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.learning import advantage_of, gradients

CPU = torch.device("cpu")
SECTION = MakePolicySection(
    hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, intermediate_size=32
)
Weights = Sequence[Mapping[int, Mapping[int, float]]]


def model_of() -> PreTrainedModel:
    model = make_model(
        SECTION, vocab_size=12, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 6.0
    return model


def tree_of(tokens: Sequence[Sequence[int]], *, name: str = "t0") -> Tree:
    """Return a group in which sample i says so many tokens in each of its turns."""
    tree, random = Tree(Task(prompt="q", id=name)), np.random.default_rng(0)
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    for sample, turns in enumerate(tokens):
        at = prompt
        for turn, n in enumerate(turns):
            at = tree.add(
                Node(
                    parent=at,
                    source="sampled",
                    token_ids=tuple(random.integers(2, 12, n).tolist()),
                    turn=turn,
                    logprobs=(-2.5,) * n,
                    versions=(0,) * n,
                )
            )
            at = tree.add(Node(parent=at, source="tool", token_ids=(4, 5), turn=turn + 1))
        tree.end(Leaf(node=at, outcome=Finished(float(sample)), sample=sample))
    return tree


TREES = [tree_of([(2, 3), (1,), (4, 1, 2)]), tree_of([(3,), (2, 2)], name="t1")]


def rows_of(trees: Sequence[Tree], weights: Weights | None = None) -> list[CreditedSample]:
    groups = groups_of(trees, weights=weights)
    samples = [sample for group in groups for sample in group.samples]
    credit = advantage_of(GrpoAdvantage())(groups)
    return [CreditedSample(s, a) for s, a in zip(samples, credit, strict=True)]


def gradient(
    rows: Sequence[CreditedSample], how: Aggregation, *, limit_tokens: int = 8192
) -> Tensor:
    """Return the gradient of one optimiser step, and its loss, as one vector."""
    return gradients(model_of(), rows, LearnSection(aggregation=how), limit_tokens=limit_tokens)


def everything(weight: float) -> Weights:
    return [{s: dict.fromkeys(range(3), weight) for s in range(3)} for _ in TREES]


SOME: Weights = [{0: {0: 0.0, 1: 2.0}, 2: {1: 0.5}}, {1: {0: 0.0}}]
"""Sample 1 of the first tree and turns that are not named keep their weight of 1."""

HOWS: tuple[Aggregation, ...] = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


def test_a_weight_stands_on_the_tokens_of_its_turn() -> None:
    (sample, unnamed, last), _ = (group.samples for group in groups_of(TREES, weights=SOME))
    assert unnamed.weights is not None
    assert unnamed.weights.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert last.weights is not None
    assert (
        last.weights.tolist()
        == [0.0] * 2 + [1.0] * 4 + [0.0] * 2 + [0.5, 0.0, 0.0, 1.0, 1.0] + [0.0] * 2
    )
    assert sample.weights is not None
    #                                  prompt      turn 0      tool        turn 1        tool
    assert sample.weights.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0]
    assert sample.sampled_tokens == 5
    block = micro_batch([rows_of(TREES, SOME)[0]], layout=PaddedLayout(10**6), device=CPU)
    assert block.weights is not None
    assert block.weights.tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0]]
    assert all(s.weights is None for group in groups_of(TREES) for s in group.samples)


def test_a_loss_by_hand() -> None:
    """Two sequences of losses, weighed: only what is above the fraction line changes."""
    losses = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 0.0]])
    weights = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = [
        aggregate(
            losses * weights, mask, how=how, counts=LossDenominators.from_token_counts([3, 2])
        )
        for how in HOWS
    ]
    assert [float(x) for x in found] == pytest.approx([20 / 5, 20 / 2, (4 / 3 + 16 / 2) / 2])


@pytest.mark.parametrize("how", HOWS)
def test_weights_of_one_change_no_bit(how: Aggregation) -> None:
    plain = gradient(rows_of(TREES), how)
    assert torch.equal(plain, gradient(rows_of(TREES, everything(1.0)), how))
    assert torch.equal(plain, gradient(rows_of(TREES, [{}, {}]), how))


@pytest.mark.parametrize("how", HOWS)
def test_weights_multiply_the_gradient_and_no_denominator(how: Aggregation) -> None:
    """At a ratio of 1 a weight of the loss is a weight of the advantage."""
    plain, rows = rows_of(TREES), rows_of(TREES, SOME)
    assert [r.sample.sampled_tokens for r in plain] == [r.sample.sampled_tokens for r in rows]
    by_hand = [
        CreditedSample(row.sample, row.advantages * weighed.sample.weights)
        for row, weighed in zip(plain, rows, strict=True)
        if weighed.sample.weights is not None
    ]
    expected = gradient(by_hand, how)
    for limit in (8192, 16):
        found = gradient(rows, how, limit_tokens=limit)
        assert (found - expected).norm() <= 2e-6 * expected.norm()
    assert (gradient(plain, how) - expected).norm() > 1e-2 * expected.norm()
    twice = gradient(rows_of(TREES, everything(2.0)), how)
    assert (twice - 2 * gradient(plain, how)).norm() <= 2e-6 * twice.norm()


def test_a_turn_without_weight_trains_nothing_and_its_trajectory_is_idle_without_others() -> None:
    weights: Weights = [{0: {0: 0.0, 1: 0.0}}, {}]
    first, _, third, *_ = rows_of(TREES, weights)
    assert first.is_idle
    assert not third.is_idle
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    figures = PolicyTrainer(model, LearnSection(), seed=0).step(TREES, weights=everything(0.0))
    assert figures["loss"] == 0
    assert figures["optimizer/skipped"] == 1
    assert figures["tokens/trained"] == 20
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_are_one_per_tree() -> None:
    with pytest.raises(ValueError, match="zip"):
        groups_of(TREES, weights=[{}])

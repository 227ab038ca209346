"""Trees to samples to micro-batches. Mutants applied by hand and seen caught:

- targets and mask not shifted, shifted twice, behaviour shifted by none: golden micro-batch
- cut one token early or late, or not at all: golden micro-batch, width test
- padded with something that counts: padding property
- what may not train trained, or dropped from its group: test of what may not train
- failed trajectories kept; NaN reward let through: tests of groups_of
- a node's versions or log-probs of another node; nodes counted from the leaf; -1 left out:
  property of samples beside trajectories
- plan: limit on real in place of padded tokens, `>` -> `>=`, padding rule dropped: plan tests
"""

import math
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, LearnError
from agentrl.learn.layouts.padded import PaddedLayout, plan
from agentrl.learn.micro_batch import CreditedSample, micro_batch
from agentrl.learn.sample import TrainingSample, groups_of, spans_of
from agentrl.message import ImageSpan
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Source, Tree, Truncated
from tests.support.learning import micro_batches

CPU = torch.device("cpu")


def tree_of(*parts: tuple[Source, tuple[int, ...]], outcome: Outcome | None = None) -> Tree:
    """Return a tree of one trajectory; a sampled token t has log-prob -t and version t."""
    tree = Tree(Task(prompt="q", id="t1"))
    at: int | None = None
    for turn, (source, token_ids) in enumerate(parts):
        own = token_ids if source == "sampled" else ()
        node = Node(
            parent=at,
            source=source,
            token_ids=token_ids,
            turn=turn,
            logprobs=tuple(-float(t) for t in own),
            versions=own,
        )
        at = tree.add(node)
    tree.end(Leaf(node=at, outcome=outcome or Finished(1.0), sample=7))
    return tree


def sample_of(*parts: tuple[Source, tuple[int, ...]]) -> TrainingSample:
    """Return the one sample of such a tree."""
    return groups_of([tree_of(*parts)])[0].samples[0]


def row_of(*parts: tuple[Source, tuple[int, ...]]) -> CreditedSample:
    """Return a row whose advantages are 100 + the token."""
    sample = sample_of(*parts)
    scored = replace(sample, proximal=-sample.token_ids - 0.5)
    return CreditedSample(scored, sample.token_ids + 100.0)


@dataclass(frozen=True)
class Pair:
    """A context and what trains of it."""

    token_ids: np.ndarray
    mask: np.ndarray
    images: tuple[ImageSpan, ...] = ()


Parts = tuple[tuple[Source, tuple[int, ...]], ...]

LONG: Parts = (
    ("prompt", (1, 2)),
    ("sampled", (3, 4)),
    ("tool", (5,)),
    ("sampled", (6,)),
    ("tool", (7,)),
)
SHORT: Parts = (("prompt", (1,)), ("sampled", (8,)), ("template", (9,)))


def test_a_micro_batch_golden() -> None:
    batch = micro_batch([row_of(*LONG), row_of(*SHORT)], layout=PaddedLayout(10), device=CPU)
    # The tool result after the last sampled token is not computed at all.
    assert batch.tokens.inputs.tolist() == [[1, 2, 3, 4, 5], [1, 0, 0, 0, 0]]
    assert batch.tokens.predictions.tolist() == [1, 2, 4, 5]
    assert batch.tokens.targets.tolist() == [3, 4, 6, 8]
    assert batch.tokens.entries.tolist() == [0, 1, 2, 3]
    assert batch.versions.tolist() == [[0, 3, 4, 0, 6], [8, 0, 0, 0, 0]]
    assert batch.turns.tolist() == [[0, 1, 1, 0, 3], [1, 0, 0, 0, 0]]
    assert batch.mask.int().tolist() == [[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]
    assert batch.behaviour.tolist() == [[0, -3, -4, 0, -6], [-8, 0, 0, 0, 0]]
    assert batch.advantages.tolist() == [[0, 103, 104, 0, 106], [108, 0, 0, 0, 0]]
    assert batch.proximal is not None
    assert batch.proximal.tolist() == [[0, -3.5, -4.5, 0, -6.5], [-8.5, 0, 0, 0, 0]]


def test_a_sample_keeps_what_was_recorded() -> None:
    sample = sample_of(*LONG)
    assert (sample.task_id, sample.sample, sample.reward) == ("t1", 7, 1.0)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sample.mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert sample.versions[sample.mask].tolist() == [3, 4, 6]
    assert sample.turns.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert sample.sampled_tokens == 3
    assert sample.nodes.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert (sample.turn_rewards, sample.truncated) == ((), False)


@example([("sampled", [3, 4], 0), ("tool", [5], 0), ("sampled", [6, 7], 0)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["prompt", "sampled", "tool", "template"]),
            st.lists(st.integers(0, 2**31 - 1), max_size=5),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_samples_hold_what_trajectories_do(
    parts: list[tuple[Source, list[int], int]],
) -> None:
    tree = Tree(Task(prompt="q", id="t1"))
    root = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
    ids = [root]
    for turn, (source, token_ids, back) in enumerate(parts):
        is_sampled = source == "sampled"
        node = Node(
            parent=ids[-1 - back % len(ids)],
            source=source,
            token_ids=tuple(token_ids),
            turn=turn,
            logprobs=tuple(-t / 3 for t in token_ids) if is_sampled else (),
            versions=tuple(t % 7 for t in token_ids) if is_sampled else (),
        )
        ids.append(tree.add(node))
    for sample, node in enumerate(ids):
        tree.end(Leaf(node=node, outcome=Finished(1.0), sample=sample, root=0))
    (group,) = groups_of([tree])
    for sample, one in zip(group.samples, tree.trajectories(), strict=True):
        assert sample.token_ids.tolist() == [*one.token_ids]
        assert sample.mask.tolist() == sample.sampled.tolist() == [*one.mask]
        assert sample.behaviour.tolist() == np.array(one.logprobs, np.float32).tolist()
        assert sample.versions.tolist() == [*one.versions]
        assert sample.turns.tolist() == [*one.turns]
        assert sample.nodes.tolist() == [*one.nodes]
        assert (sample.jumps, sample.images, sample.root) == (one.jumps, one.images, one.root)
        assert not sample.mask.flags.writeable


def test_failed_trajectories_and_groups_of_nothing_else_are_left_out() -> None:
    failed = tree_of(("prompt", (1,)), ("sampled", (2,)), outcome=Failed("env", "broke"))
    assert groups_of([failed]) == ()
    failed.end(Leaf(node=1, outcome=Truncated("turns", 0.25), sample=1))
    assert groups_of([failed])[0].rewards == (0.25,)


def test_tokens_that_may_not_train_are_context_and_count_in_the_baseline() -> None:
    """Kills: the choice ignored; a sample without a trainable token dropped from its group."""
    tree = tree_of(*LONG)
    (group,) = groups_of([tree], lambda versions: versions == 6)
    assert group.samples[0].mask.tolist() == [False, False, False, False, False, True, False]
    (group,) = groups_of([tree], lambda versions: versions > 6)
    assert (group.rewards, group.samples[0].sampled_tokens) == ((1.0,), 0)
    with pytest.raises(LearnError, match="not sampled by the policy is selected for training"):
        groups_of([tree], lambda versions: versions < 9)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_names_task_and_sample(reward: float) -> None:
    with pytest.raises(LearnError, match=f"task 't1' sample 7: its reward is {reward}"):
        groups_of([tree_of(("prompt", (1,)), ("sampled", (2,)), outcome=Finished(reward))])


def test_a_context_without_a_prompt_is_refused() -> None:
    with pytest.raises(LearnError, match="task 't1' sample 7: its first token is sampled"):
        groups_of([tree_of(("sampled", (1, 2)))])


def test_an_idle_row_has_no_credit_under_its_mask() -> None:
    sample = sample_of(*LONG)  # sampled are the third, fourth and sixth token
    assert CreditedSample(sample, np.array([5.0, 5.0, 0.0, 0.0, 5.0, 0.0, 5.0])).is_idle
    assert not CreditedSample(sample, np.array([0.0, 0.0, 0.0, 1e-9, 0.0, 0.0, 0.0])).is_idle


def test_plan_puts_equal_lengths_together_up_to_the_limit() -> None:
    assert plan([10, 30, 10, 30], limit_tokens=60) == [[1, 3], [0, 2]]
    assert plan([10, 10, 10], limit_tokens=20) == [[0, 1], [2]]
    assert plan([10, 10], limit_tokens=19) == [[0], [1]]


def test_plan_does_not_pad_more_than_another_pass_costs() -> None:
    # Ten rows of 100 beside one of 1000 would pad by 9000 tokens.
    assert plan([1000] + [100] * 10, limit_tokens=100_000) == [[0], list(range(1, 11))]
    assert plan([300, 100], limit_tokens=100_000) == [[0, 1]]


def test_a_sequence_over_the_limit_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"needs 31 tokens.*micro_batch_tokens=30.*at least 31"):
        plan([10, 31], limit_tokens=30)


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(400, 3000))
def test_plan_holds_everything_once_and_never_more_than_the_limit(
    widths: list[int], limit: int
) -> None:
    batches = plan(widths, limit_tokens=limit)
    assert sorted(i for batch in batches for i in batch) == list(range(len(widths)))
    assert all(len(batch) * max(widths[i] for i in batch) <= limit for batch in batches)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6))
def test_padding_and_everything_off_the_mask_is_zero(masks: list[list[bool]]) -> None:
    masks = [[False, *mask, True] for mask in masks]
    pairs = [Pair(np.arange(1, len(m) + 1), np.array(m)) for m in masks]
    tokens = PaddedLayout(1).tokens(pairs, device=CPU)
    assert tokens.mask.sum().item() == sum(map(sum, masks))
    expected = np.concatenate([pair.token_ids[pair.mask] for pair in pairs])
    assert tokens.targets[tokens.entries].tolist() == expected.tolist()
    before = np.concatenate([pair.token_ids[np.flatnonzero(pair.mask) - 1] for pair in pairs])
    assert tokens.inputs.flatten()[tokens.predictions].tolist() == before.tolist()
    for pair, inputs, kept in zip(pairs, tokens.inputs, tokens.mask, strict=True):
        width = len(pair.token_ids) - 1
        assert inputs[:width].tolist() == pair.token_ids[:-1].tolist()
        assert not inputs[width:].any()
        assert not kept[width:].any()


def test_micro_batches_respect_the_limit() -> None:
    rows = [row_of(*LONG), row_of(*SHORT), row_of(*LONG)]
    batches = micro_batches(rows, layout=PaddedLayout(5))
    assert [tuple(batch.mask.shape) for batch in batches] == [(1, 5), (1, 5), (1, 1)]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(-1, 1)),
        max_size=20,
    )
)
def test_spans_say_what_each_token_is(tokens: list[tuple[bool, int, int, int]]) -> None:
    """Kills: a span that goes on where one property changes; the last span left out."""
    sampled, nodes, turns, versions = np.array(tokens, dtype=int).reshape(-1, 4).T
    spans = spans_of(sampled.astype(bool), nodes=nodes, turns=turns, versions=versions)
    sample = replace(sample_of(*SHORT), spans=spans)
    arrays = (sample.sampled, sample.nodes, sample.turns, sample.versions)
    assert [*zip(*(array.tolist() for array in arrays), strict=True)] == tokens
    assert len(spans) == len([*groupby(tokens)])

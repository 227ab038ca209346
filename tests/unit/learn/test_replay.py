"""A lent success is trained as what it is: sampled by an older policy, at its own log-probs.

Mutants seen caught: its versions taken for new ones; its log-probs lost; weights not applied; its
age over the bound by one; the rule against loans nobody weighs blind to a loss that weighs them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.trainer import PolicyTrainer
from agentrl.rollout.curation.outcomes import result_of
from agentrl.rollout.curation.success_pool import PooledSuccess, SuccessPool
from agentrl.rollout.scheduler.batch import RolloutBatch
from agentrl.store.trajectory_copy import copy_branch, replace_branch
from agentrl.trajectory import Finished, Tree
from tests.support.learning import assert_close, gradients, model_of, rows_of, scored_by, trees_of

NOW, THEN = 5, 2
"""Versions of the trainer, and of the policy that had the success."""


def played(
    model: PreTrainedModel, seed: int, rewards: Sequence[float], *, version: int, shift: float = 0.0
) -> Tree:
    """Return a group whose engine said the log-probs of `model`, plus `shift` per token."""
    (tree,) = trees_of(1, seed=seed, version=version)
    said: dict[int, tuple[float, ...]] = {}
    for row in scored_by(model, rows_of([tree])):
        sample = row.sample
        assert sample.proximal is not None
        for node in np.unique(sample.nodes[sample.mask]):
            said[int(node)] = tuple((sample.proximal[sample.nodes == node] + shift).tolist())
    copy = Tree(tree.task)
    for number, node in enumerate(tree.nodes):
        copy.add(replace(node, logprobs=said.get(number, ())))
    for leaf, reward in zip(tree.leaves, rewards, strict=True):
        copy.end(replace(leaf, outcome=Finished(reward)))
    return copy


def lent(model: PreTrainedModel, *, shift: float) -> Tree:
    """Return a group without success in which an older one stands in for its sample 1."""
    group = played(model, 0, [0.0, 0.0, 0.0, 0.0], version=NOW)
    old = played(model, 1, [0.0, 0.0, 1.0, 0.0], version=THEN, shift=shift)
    return replace_branch(group, copy_branch(old, old.leaves[2]), sample=1, age=NOW - THEN)


def on_policy(rows: Sequence[CreditedSample], weight: float) -> list[CreditedSample]:
    """Return the rows as if all were sampled now, the lent one with `weight` times its credit."""
    return [
        CreditedSample(
            replace(row.sample, behaviour=row.sample.proximal),  # pyright: ignore[reportArgumentType]
            row.advantages * (weight if row.sample.reward else 1.0),
        )
        for row in rows
    ]


@pytest.mark.parametrize(
    ("shift", "weight"), [(0.5, math.exp(-0.5)), (-0.5, math.exp(0.5)), (-2.0, 2.0)]
)
def test_its_gradient_is_weighed_by_its_own_log_probs(shift: float, weight: float) -> None:
    model = model_of()
    rows = scored_by(model, rows_of([lent(model, shift=shift)]))
    bare = [replace(row, sample=replace(row.sample, proximal=None, entropies=None)) for row in rows]
    found = gradients(model, bare, LearnSection(correction=TruncatedCorrection(cap=2.0)))
    expected = gradients(model, on_policy(rows, weight), LearnSection(correction=NoCorrection()))
    assert_close(found, expected)
    as_now = gradients(model, on_policy(rows, 1.0), LearnSection(correction=NoCorrection()))
    assert (found - as_now).norm() > 0.05 * as_now.norm()


@pytest.mark.parametrize("minibatches", [1, 4])
def test_the_trainer_weighs_it_and_tells_its_age(minibatches: int) -> None:
    model = model_of()
    tree = lent(model, shift=0.7)
    trainer = PolicyTrainer(model, LearnSection(minibatches=minibatches), seed=0)
    trainer.version = NOW
    metrics = trainer.step([tree])
    lengths = [sum(t.mask) for t in tree.trajectories()]
    assert metrics["age/max"] == NOW - THEN
    assert metrics["age/mean"] == pytest.approx(3 * lengths[1] / sum(lengths))
    assert metrics["tokens/trained"] == sum(lengths)
    if minibatches == 1:
        credit = np.array([-0.5, 1.5 * math.exp(-0.7), -0.5, -0.5])
        assert metrics["loss"] == pytest.approx(-np.dot(credit, lengths) / sum(lengths), abs=1e-4)


@pytest.mark.parametrize("max_age", [NOW - THEN - 1, NOW - THEN])
def test_its_age_counts_in_the_age_bound(max_age: int) -> None:
    model = model_of()
    tree = lent(model, shift=0.0)
    batch = RolloutBatch(groups=(), trees=(tree,), version=NOW, max_age=max_age, oldest=THEN)
    trainer = PolicyTrainer(model, LearnSection(), seed=0)
    trainer.version = NOW
    metrics = trainer.step([tree], batch.trainable)
    lengths = [sum(t.mask) for t in tree.trajectories()]
    trains = max_age == NOW - THEN
    assert metrics["tokens/trained"] == sum(lengths) - (0 if trains else lengths[1])
    assert metrics["age/max"] == (3 if trains else 0)
    assert metrics["reward/mean"] == 0.25, "in the baseline it is either way"
    assert metrics["advantage/zero_fraction"] == 0
    assert batch.ages() == {0: sum(lengths) - lengths[1], 3: lengths[1]}


def test_the_pool_counts_its_age_by_its_oldest_token() -> None:
    old = played(model_of(), 1, [0.0, 0.0, 1.0, 0.0], version=THEN)
    success = PooledSuccess(group="0/0", result=result_of(old, old.leaves[2]))
    assert success.result.version == THEN
    pool = SuccessPool(max_age=NOW - THEN)
    assert pool._may_lend(success, NOW - success.result.version)  # pyright: ignore[reportPrivateUsage]
    assert not pool._may_lend(success, NOW + 1 - success.result.version)  # pyright: ignore[reportPrivateUsage]


CONFIG = """
env: {id: demo/Multiply-v0, task_limit: 8}
curation: {pool: {name: success}}
learn: {correction: {name: none}}
"""


def test_a_pool_whose_loans_nobody_would_weigh_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG)
    with pytest.raises(
        ConfigError, match=r"curation\.pool\.name is success.*correction\.name: tis"
    ):
        load_config(path)
    for key, value in [
        ("learn.correction.name", "tis"),
        ("learn.proximal.name", "behaviour"),
        ("learn.loss.name", "m2po"),
        ("curation.pool.name", "none"),
    ]:
        load_config(path, {key: value})

"""What steps made of tokens: kept, found again, bounded; and that the trainer keeps the right.

Mutants seen caught: owners not turned into the store's ids; the newest removed in place of the
oldest; a later step kept on resume; ratios upside down; a failed group shifting the owners;
advantages kept for tokens that may not train.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Int
from numpy import ndarray

from agentrl.config.learn import LearnSection
from agentrl.errors import ConfigError
from agentrl.learn.trainer import PolicyTrainer
from agentrl.store.token_credit import FOLDER, TokenCredit, TokenCreditLog, read_credit
from agentrl.task import Task
from agentrl.trajectory import Failed, Leaf, Node, Tree
from tests.support.learning import model_of, trees_of


def credit(owner: int, sample: int, *values: float) -> TokenCredit:
    numbers = np.array(values, dtype=np.float32)
    return TokenCredit(
        owner=owner, sample=sample, advantages=numbers, log_ratios=-numbers, entropies=numbers + 1
    )


@settings(max_examples=25)
@given(st.lists(st.lists(st.floats(-8, 8, width=16), max_size=5), max_size=4))
def test_what_is_written_comes_back(values: list[list[float]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        log = TokenCreditLog(Path(place), limit_bytes=10**6)
        log.write(3, [credit(at, at, *own) for at, own in enumerate(values)], groups=range(7, 11))
        found = read_credit(Path(place), 3)
    assert [*found] == [(7 + at, at) for at in range(len(values))]
    for at, own in enumerate(values):
        assert found[7 + at, at].advantages.tolist() == own
        np.testing.assert_allclose(found[7 + at, at].log_ratios, [-x for x in own])
        np.testing.assert_allclose(found[7 + at, at].entropies, [x + 1 for x in own], rtol=1e-3)


def test_a_step_that_was_not_kept_has_nothing(tmp_path: Path) -> None:
    assert read_credit(tmp_path, 1) == {}


def test_the_oldest_steps_go_when_there_is_too_much(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(500).tolist()
    TokenCreditLog(tmp_path, limit_bytes=10**6).write(1, [credit(0, 0, *noise)], groups=[0])
    (first,) = (tmp_path / FOLDER).iterdir()
    log = TokenCreditLog(tmp_path, limit_bytes=2 * first.stat().st_size + 100)
    for step in (2, 3, 4):
        log.write(step, [credit(0, 0, *noise)], groups=[0])
    assert [step for step in range(6) if read_credit(tmp_path, step)] == [3, 4]


def test_a_resumed_run_forgets_later_steps(tmp_path: Path) -> None:
    log = TokenCreditLog(tmp_path, limit_bytes=10**6)
    for step in (1, 2, 3):
        log.write(step, [credit(0, 0, 1.0)], groups=[0])
    log.truncate_after(1)
    assert [step for step in range(5) if read_credit(tmp_path, step)] == [1]


@pytest.mark.parametrize("damage", [b"", b"no zlib", None])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes | None) -> None:
    TokenCreditLog(tmp_path, limit_bytes=10**6).write(1, [credit(0, 0, 1.0)], groups=[0])
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-4] if damage is None else damage)
    with pytest.raises(ConfigError, match=r"00000001\.credit"):
        read_credit(tmp_path, 1)


def failed_tree() -> Tree:
    tree = Tree(Task(prompt="q", id="failed"))
    node = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    tree.end(Leaf(node=node, outcome=Failed("env", "gone"), sample=0))
    return tree


def trained(*, keeps: bool, epochs: int = 1) -> tuple[PolicyTrainer, list[Tree]]:
    """Return a trainer after one step, with a group that failed before the others."""
    trees = [failed_tree(), *trees_of(2, gap=0.3)]
    trainer = PolicyTrainer(model_of(), LearnSection(epochs=epochs), seed=0)
    trainer.keeps_credit = keeps
    trainer.step(trees)
    return trainer, trees


def test_the_trainer_keeps_ratio_advantage_and_entropy_of_every_token() -> None:
    trainer, trees = trained(keeps=True)
    untouched = model_of()
    assert {one.owner for one in trainer.credits} == {1, 2}
    for one in trainer.credits:
        trajectory = next(t for t in trees[one.owner].trajectories() if t.sample == one.sample)
        mask = np.array(trajectory.mask)
        with torch.no_grad():
            ids = torch.tensor(trajectory.token_ids)
            logits = untouched(input_ids=ids[None]).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)[:-1]
        own = logprobs.gather(1, ids[1:, None])[:, 0].numpy()[mask[1:]]
        entropies = -(logprobs.exp() * logprobs).sum(-1).numpy()[mask[1:]]
        behaviour = np.array(trajectory.logprobs)[mask]
        np.testing.assert_allclose(one.log_ratios, own - behaviour, atol=1e-4)
        np.testing.assert_allclose(one.entropies, entropies, atol=1e-4)
        # Rewards are equal in no group here, so all tokens of a trajectory have one advantage.
        assert len({*one.advantages.tolist()}) == 1
    signs = {(one.owner, one.sample): float(np.sign(one.advantages[0])) for one in trainer.credits}
    assert signs[1, 0] == -1.0
    assert signs[1, 3] == 1.0


def test_the_last_look_counts() -> None:
    once, _ = trained(keeps=True)
    twice, _ = trained(keeps=True, epochs=2)
    ratios = [np.concatenate([one.log_ratios for one in t.credits]) for t in (once, twice)]
    assert np.abs(ratios[0] - ratios[1]).max() > 1e-6


def keep_first_turn(versions: Int[ndarray, " tokens"]) -> Bool[ndarray, " tokens"]:
    """Return True on the first run of sampled tokens, which alone have a version."""
    is_sampled = versions >= 0
    starts = np.diff(is_sampled.astype(int), prepend=0) == 1
    return is_sampled & (np.cumsum(starts) == 1)


def test_a_token_that_may_not_train_is_marked() -> None:
    trees = trees_of(1)
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    trainer.keeps_credit = True
    trainer.step(trees, keep_first_turn)
    for one in trainer.credits:
        (trajectory,) = [t for t in trees[0].trajectories() if t.sample == one.sample]
        turns = np.array(trajectory.turns)[np.array(trajectory.mask)]
        assert (np.isnan(one.advantages) == (turns > 0)).all()
        assert (np.isnan(one.log_ratios) == (turns > 0)).all()


def test_keeping_changes_no_bit_of_the_weights() -> None:
    kept, plain = trained(keeps=True)[0], trained(keeps=False)[0]
    assert plain.credits == ()
    for name, weight in kept.weights().items():
        assert torch.equal(weight, plain.weights()[name]), name

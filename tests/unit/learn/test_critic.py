"""The critic: values where they belong, what they learn, and what they leave alone.

Mutants seen caught: minimum for maximum; the half dropped; cut around the return; never or always
detached; coefficient dropped; values in another order; the end's value one place off, or not asked
for; limit ignored; counts of the micro-batch; global seed; last layer not zero; moments, updates or
weights not restored; shape not checked; never updated; idle rows left out; explained variance
inverted; a critic missing, or unread, let through; the end of a context
that trains nothing left out.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learn import AdamWSection, CriticSection, LearnSection
from agentrl.config.learning.advantage import GaeAdvantage, ReinforcePpAdvantage
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.checkpoint import load
from agentrl.learn.contexts import rows_of
from agentrl.learn.critic import ValueHead, critic_of, explained_variance, value_loss
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of, spans_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.trajectory import Leaf, Tree, Truncated, reward_of
from tests.support.learning import CPU, block, model_of, save, trees_of

FAST = AdamWSection(learning_rate=1e-2)


def config_of(critic: CriticSection | None, **changes: object) -> LearnSection:
    """Return a config of GAE with a critic."""
    parts: dict[str, object] = {"advantage": GaeAdvantage(), "optimizer": FAST} | changes
    return LearnSection(critic=critic).model_copy(update=parts)


def trainer_of(critic: CriticSection | None, **changes: object) -> PolicyTrainer:
    """Return a trainer around the small model, seeded alike every time."""
    return PolicyTrainer(model_of(), config_of(critic, **changes), seed=0)


def cut(tree: Tree) -> Tree:
    """Return the tree with every trajectory ended by a limit."""
    found = Tree(tree.task)
    for node in tree.nodes:
        found.add(node)
    for leaf in tree.leaves:
        outcome = Truncated("turns", reward_of(leaf.outcome) or 0.0)
        found.end(Leaf(node=leaf.node, outcome=outcome, sample=leaf.sample))
    return found


def awake(trainer: PolicyTrainer) -> ValueHead:
    """Return the trainer's critic with a head that is not zero."""
    assert trainer.critic is not None
    state = {name: value.clone() for name, value in trainer.critic.state().items()}
    random = torch.Generator().manual_seed(1)
    for name, value in state.items():
        if name.startswith("head."):
            value.normal_(generator=random)
    trainer.critic.load_state(state)
    return trainer.critic


def head(trainer: PolicyTrainer) -> dict[str, Tensor]:
    """Return a copy of the critic's state."""
    assert trainer.critic is not None
    return {name: value.clone() for name, value in trainer.critic.state().items()}


def samples_of(groups: Sequence[TrainingGroup]) -> list[TrainingSample]:
    return [sample for group in groups for sample in group.samples]


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss"),
    [
        (1.0, 0.0, 2.0, 0.5, 1.125),  # cut to 0.5, which is worse
        (1.0, 0.0, 2.0, 2.0, 0.5),  # within the clip
        (1.0, 0.0, 2.0, None, 0.5),
        (1.0, 0.0, 0.0, 0.5, 0.5),  # cut to 0.5 would be better, and does not count
        (-1.0, 0.0, -2.0, 0.5, 1.125),
    ],
)
def test_value_loss_golden(
    value: float, old: float, target: float, clip: float | None, loss: float
) -> None:
    found = value_loss(block([value]), block([old]), block([target]), clip=clip)
    assert found.item() == pytest.approx(loss)


def test_a_value_that_went_too_far_gets_no_gradient() -> None:
    values = block([1.0]).requires_grad_()
    value_loss(values, block([0.0]), block([2.0]), clip=0.5).sum().backward()
    assert values.grad is not None
    assert not values.grad.any()


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9), st.floats(0.01, 9))
def test_the_clipped_value_loss_is_never_below_the_plain_one(
    value: float, old: float, target: float, clip: float
) -> None:
    blocks = (block([value]), block([old]), block([target]))
    plain = value_loss(*blocks, clip=None).item()
    assert value_loss(*blocks, clip=clip).item() >= plain - 1e-6


@pytest.mark.parametrize("hidden_size", [0, 8])
@pytest.mark.parametrize("limit_tokens", [40, 8192])
def test_values_are_of_the_context_before_each_token_and_at_the_end(
    hidden_size: int, limit_tokens: int
) -> None:
    trainer = trainer_of(CriticSection(hidden_size=hidden_size))
    critic = awake(trainer)
    trees = [cut(tree) if i else tree for i, tree in enumerate(trees_of())]
    groups = critic.add_values(
        groups_of(trees), PaddedLayout(limit_tokens), limit_tokens=limit_tokens
    )
    network = critic._head  # pyright: ignore[reportPrivateUsage]
    for sample in samples_of(groups):
        ids = torch.tensor(sample.token_ids)[None]
        with torch.no_grad():
            hidden = trainer.model.get_decoder()(input_ids=ids).last_hidden_state[0]
            values = network(hidden)[:, 0].numpy()
        assert sample.values is not None
        places = np.flatnonzero(sample.mask)
        np.testing.assert_allclose(sample.values[places], values[places - 1], atol=1e-4)
        assert not sample.values[~sample.mask][:-1].any()
        expected = values[-1] if sample.truncated else 0.0
        assert sample.final_value == pytest.approx(expected, abs=1e-4)
    assert {sample.truncated for sample in samples_of(groups)} == {True, False}


def test_a_context_beyond_the_limit_is_worth_what_its_beginning_is() -> None:
    trainer = trainer_of(CriticSection())
    critic = awake(trainer)
    (group,) = groups_of([cut(trees_of(1)[0])])
    sample = max(group.samples, key=lambda s: len(s.token_ids))
    # Two tokens of the environment follow the last sampled one, so the whole would not fit.
    limit = int(np.flatnonzero(sample.mask)[-1])
    alone = TrainingGroup("t", (sample,))
    (short,) = critic.add_values([alone], PaddedLayout(limit), limit_tokens=limit)[0].samples
    assert short.values is not None
    assert short.final_value == pytest.approx(short.values[limit], abs=1e-6)


def test_a_limit_that_ends_a_context_without_trained_tokens_is_no_end_of_the_task() -> None:
    """The history was rewritten, a context of its own, and a limit came before the next turn."""
    critic = awake(trainer_of(CriticSection()))
    sampled = np.array([0, 0, 1, 1, 0, 0, 0], dtype=bool)
    sample = TrainingSample(
        task_id="t",
        sample=0,
        reward=0.0,
        truncated=True,
        token_ids=np.array([2, 3, 4, 5, 6, 7, 8], np.int32),
        mask=sampled,
        behaviour=np.zeros(7, np.float32),
        spans=spans_of(sampled),
        jumps=((4, -1),),
    )
    mask = np.array([False, False, True])
    ended = replace(
        sample,
        token_ids=sample.token_ids[4:],
        mask=mask,
        behaviour=sample.behaviour[4:],
        spans=spans_of(mask),
        jumps=(),
    )
    layout = PaddedLayout(64)
    (group,) = critic.add_values(
        [TrainingGroup("t", (sample, ended, replace(sample, truncated=False)))],
        layout,
        limit_tokens=64,
    )
    valued, end, task_end = group.samples
    assert valued.final_value == pytest.approx(end.final_value, abs=1e-5)
    assert abs(end.final_value) > 1e-3
    assert task_end.final_value == 0.0
    assert valued.values is not None
    assert valued.values[sampled].all()
    assert not valued.values[~sampled].any()
    (row,) = rows_of(CreditedSample(valued, np.ones(7)))
    assert row.sample.token_ids.tolist() == [2, 3, 4, 5]


def test_a_sample_of_which_no_token_trains_has_values_of_zero() -> None:
    critic = awake(trainer_of(CriticSection()))
    groups = groups_of(trees_of(1), lambda versions: np.zeros(len(versions), dtype=bool))
    for sample in samples_of(critic.add_values(groups, PaddedLayout(64), limit_tokens=64)):
        assert sample.values is not None
        assert not sample.values.any()


def test_a_new_critic_says_zero_and_leaves_the_random_states_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    trainer = trainer_of(CriticSection(hidden_size=8))
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.critic is not None
    layout = PaddedLayout(8192)
    for sample in samples_of(
        trainer.critic.add_values(groups_of(trees_of()), layout, limit_tokens=8192)
    ):
        assert sample.values is not None
        assert sample.returns is not None
        assert not sample.values.any()
        # Undiscounted returns of a reward at the end.
        assert sample.returns[sample.mask].tolist() == [sample.reward] * sample.sampled_tokens


def test_a_detached_critic_leaves_the_policy_to_its_advantages() -> None:
    # While all values are 0, GAE with lambda 1 is REINFORCE++ on the turns' rewards.
    critic, plain = (
        trainer_of(CriticSection()),
        PolicyTrainer(
            model_of(),
            LearnSection(advantage=ReinforcePpAdvantage(paid="turns"), optimizer=FAST),
            seed=0,
        ),
    )
    first = critic.step(trees_of(gap=0.5))
    second = plain.step(trees_of(gap=0.5))
    assert first["loss"] == second["loss"]
    assert first["grad/norm"] == pytest.approx(second["grad/norm"], rel=1e-6)
    for name, value in plain.weights().items():
        torch.testing.assert_close(critic.weights()[name], value, atol=1e-6, rtol=0)
    assert any(value.any() for name, value in head(critic).items() if name.startswith("head."))


@pytest.mark.parametrize("shared", [False, True])
def test_only_a_shared_critic_sends_gradient_beyond_its_head(shared: bool) -> None:
    critic = awake(trainer_of(CriticSection(shared=shared)))
    tokens = PaddedLayout(8192).tokens(samples_of(groups_of(trees_of(1))), device=CPU)
    hidden = torch.ones(*tokens.inputs.shape, 16, requires_grad=True)
    critic.values(hidden, tokens).sum().backward()
    assert (hidden.grad is not None) is shared


def test_a_shared_critic_moves_the_policy_too() -> None:
    moved: list[Tensor] = []
    for coefficient in (None, 0.1, 5.0):
        section = (
            CriticSection()
            if coefficient is None
            else CriticSection(shared=True, coefficient=coefficient)
        )
        trainer = trainer_of(section, epochs=2)
        awake(trainer)
        trainer.step(trees_of(gap=0.5))
        moved.append(torch.cat([w.flatten() for w in trainer.weights().values()]))
    assert (moved[1] - moved[0]).norm() > 1e-4
    assert (moved[2] - moved[1]).norm() > 1e-4


def test_the_critic_learns() -> None:
    still = AdamWSection(learning_rate=1e-9)
    trainer = trainer_of(
        CriticSection(hidden_size=16, learning_rate=0.02, clip=None), optimizer=still
    )
    trees = trees_of(4)
    seen: list[dict[str, float]] = []
    for _ in range(40):
        trainer.version = 0
        seen.append(trainer.step(trees))
    assert seen[0]["critic/explained_variance"] == 0.0
    assert seen[-1]["critic/explained_variance"] > 0.3
    assert seen[-1]["critic/loss"] < 0.5 * seen[0]["critic/loss"]


@pytest.mark.parametrize("shared", [False, True])
def test_micro_batching_never_changes_the_critic(shared: bool) -> None:
    states: list[dict[str, Tensor]] = []
    for limit in (32, 10**6):
        trainer = trainer_of(CriticSection(shared=shared), micro_batch_tokens=limit)
        awake(trainer)
        for _ in range(2):
            trainer.version = 0
            trainer.step(trees_of(2, gap=0.5))
        states.append(head(trainer) | dict(trainer.weights()))
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_rows_without_credit_teach_the_critic() -> None:
    trainer = trainer_of(CriticSection(), advantage=GaeAdvantage(whiten=True))
    tree = Tree(trees_of(1)[0].task)
    for node in trees_of(1)[0].nodes:
        tree.add(node)
    for leaf in trees_of(1)[0].leaves:
        tree.end(replace(leaf, outcome=Truncated("turns", 1.0)))
    before = head(trainer)
    metrics = trainer.step([tree])  # equal returns whiten to exactly 0
    assert metrics["advantage/zero_fraction"] == 1.0
    assert not torch.equal(head(trainer)["head.0.bias"], before["head.0.bias"])


def test_explained_variance_golden() -> None:
    (group, *_) = groups_of(trees_of(1))
    sample = group.samples[0]
    n = len(sample.token_ids)
    returns = np.where(sample.mask, np.arange(n), np.nan)

    def of(values: np.ndarray) -> float:
        return explained_variance(
            [TrainingGroup("t", (replace(sample, values=values, returns=returns),))]
        )

    assert of(returns) == 1.0
    assert of(returns + 3) == pytest.approx(1.0)
    assert of(returns / 2) == pytest.approx(0.75)
    assert of(np.zeros(n)) == pytest.approx(0.0)
    assert explained_variance([TrainingGroup("t", (sample,))]) == 0.0
    constant = replace(sample, values=np.zeros(n), returns=np.ones(n))
    assert explained_variance([TrainingGroup("t", (constant,))]) == 0.0


def test_a_critic_is_there_exactly_where_its_values_are_read() -> None:
    with pytest.raises(ConfigError, match=r"gae needs the values of a critic.*learn\.critic is nu"):
        trainer_of(None)
    with pytest.raises(ConfigError, match=r"learn\.critic is set, but learn\.advantage grpo uses"):
        PolicyTrainer(model_of(), LearnSection(critic=CriticSection()), seed=0)
    assert critic_of(model_of(), LearnSection(), seed=0) is None


def test_a_config_without_a_critic_for_its_advantage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("env: {id: demo/Multiply-v0}\nlearn: {advantage: {name: gae}}\n")
    with pytest.raises(ConfigError, match=r"gae, which needs the values of a critic"):
        load_config(path)
    config = load_config(path, {"learn.critic": {"hidden_size": 8}})
    assert config.learn.critic == CriticSection(hidden_size=8)


def test_a_checkpoint_takes_the_critic_up_where_it_was(tmp_path: Path) -> None:
    section = CriticSection(hidden_size=4)
    one = trainer_of(section)
    one.step(trees_of(gap=0.5))
    saved = save(tmp_path, one)
    two = PolicyTrainer(model_of(3), config_of(section), seed=0)
    load(saved, two)
    for trainer in (one, two):
        trainer.step(trees_of(gap=0.5, seed=1))
    for name, value in {**head(one), **one.weights()}.items():
        assert torch.equal(value, {**head(two), **two.weights()}[name]), name


def test_a_checkpoint_of_another_critic_is_refused_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    small = trainer_of(CriticSection(hidden_size=4))
    small.step(trees_of())
    bare = PolicyTrainer(model_of(), LearnSection(optimizer=FAST), seed=0)
    for trainer, why in ((small, "hidden_size"), (bare, "written without critic")):
        saved = save(tmp_path, trainer, keep=2)
        large = PolicyTrainer(model_of(3), config_of(CriticSection(hidden_size=6)), seed=0)
        before = {name: value.clone() for name, value in large.weights().items()}
        with pytest.raises(ConfigError, match=why):
            load(saved, large)
        assert all(torch.equal(value, before[name]) for name, value in large.weights().items())

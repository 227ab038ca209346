"""POISE's baselines: golden numbers, what they may not depend on, and the probe in a trainer.

Mutants seen caught: own prediction or own reward in the mean; baseline added; places one off, or
the first sampled for the last; singular values not squared; not standardised; not cut; the worst
penalty; a batch fitted twice; layer one off; errors or the rest not restored; the first batch
without baselines; minimum for maximum; never fitted.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray

from agentrl.config.learn import AdamWSection, LayoutName, LearnSection
from agentrl.config.learning.advantage import GrpoAdvantage, PoiseAdvantage
from agentrl.config.load import load_config
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.advantages.poise import cross_predictions, cross_rewards, poise
from agentrl.learn.checkpoint import load
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of
from agentrl.learn.token_logprobs import decoder
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.value_probe import (
    PENALTIES,
    RidgeRegression,
    ValueProbe,
    explain_rewards,
    find_layer,
    mark_ends,
)
from agentrl.models.folders import make_model
from agentrl.trajectory import Finished, Tree
from tests.support.learning import SECTION, VOCABULARY, evidence_of, model_of, save, trees_of
from tests.support.turns import group, played

LAYOUT = PaddedLayout(8192)


def trainer_of(**knobs: object) -> PolicyTrainer:
    section = PoiseAdvantage.model_validate(knobs)
    config = LearnSection(advantage=section, optimizer=AdamWSection(learning_rate=1e-2))
    return PolicyTrainer(model_of(), config, seed=0)


def probe_of(trainer: PolicyTrainer) -> ValueProbe:
    assert trainer.probe is not None
    return trainer.probe


def scored(trainer: PolicyTrainer, seed: int = 0) -> tuple[TrainingGroup, ...]:
    return evidence_of(trainer.model).score_groups(groups_of(trees_of(seed=seed)))


def baselines(groups: Sequence[TrainingGroup]) -> list[float | None]:
    return [sample.baseline for group in groups for sample in group.samples]


def test_poise_golden() -> None:
    crossed = cross_predictions([0.7, 0.4], alone=0.0)
    assert crossed == (0.4, 0.7)
    samples = [
        replace(played(([1], [2, 3], reward)), baseline=baseline)
        for reward, baseline in zip((1.0, 0.0), crossed, strict=True)
    ]
    first, second = poise(group(*samples))
    assert first.tolist() == pytest.approx([0.6] * 3)
    assert second.tolist() == pytest.approx([-0.7] * 3)
    assert cross_rewards([1.0, 0.0]) == (0.0, 1.0)


def test_the_others_of_a_larger_group_are_averaged() -> None:
    assert cross_predictions([0.5, 0.25, 1.0], alone=9.0) == (0.625, 0.75, 0.375)
    assert cross_predictions([0.5, None, 1.0], alone=9.0) == (1.0, 0.75, 0.5)
    assert cross_rewards([1.0, 2.0, 6.0]) == (4.0, 3.5, 1.5)
    assert cross_predictions([0.5], alone=9.0) == (9.0,)
    assert cross_predictions([0.5, None], alone=9.0) == (9.0, 0.5)
    assert cross_rewards([1.0]) == (None,)
    assert cross_rewards([]) == ()


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.data())
def test_a_baseline_does_not_depend_on_its_own_trajectory(
    predictions: list[float], data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(predictions) - 1))
    changed = [*predictions]
    changed[i] = data.draw(st.floats(-10, 10))
    assert cross_predictions(predictions, alone=0.0)[i] == cross_predictions(changed, alone=0.0)[i]
    assert cross_rewards(changed)[i] == cross_rewards(predictions)[i]


def fit(features: ndarray, targets: ndarray, *penalties: float) -> RidgeRegression:
    return RidgeRegression.fit(features, targets, penalties)


def test_ridge_golden() -> None:
    x, y = np.array([[0.0], [1.0]]), np.array([0.0, 1.0])
    # Standardised to -1 and 1: w = 1 / (2 + penalty).
    fitted = fit(x, y, 1e-12, 2.0)
    assert fitted.predict(np.array([0.5])).tolist() == pytest.approx([0.5, 0.5])
    assert fitted.predict(np.array([1.0])).tolist() == pytest.approx([1.0, 0.75])
    assert fitted.predict(np.array([[0.75], [0.0]]))[:, 1].tolist() == pytest.approx([0.625, 0.25])
    # Cut to what was seen.
    assert fitted.predict(np.array([9.0])).tolist() == [1.0, 1.0]
    assert fitted.predict(np.array([-9.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("pairs", "width"), [(4, 9), (9, 4)])
def test_ridge_solves_its_normal_equations(pairs: int, width: int) -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((pairs, width)) * 3 + 5
    features[:, 0] = 7.0  # constant: it must not divide by 0
    targets = random.standard_normal(pairs)
    fitted = fit(features, targets, 0.5, 20.0)
    spread = features.std(axis=0)
    x = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1)
    for column, penalty in enumerate((0.5, 20.0)):
        inverse = np.linalg.inv(x.T @ x + penalty * np.eye(width))
        expected = inverse @ x.T @ (targets - targets.mean())
        np.testing.assert_allclose(fitted.weights[:, column], expected, atol=1e-10)
    np.testing.assert_allclose(fitted.weights[0], 0.0, atol=1e-12)


def test_the_penalty_is_the_one_that_predicted_best() -> None:
    """States tell the rewards of one; those of the other are noise, and the mean is best."""
    probes = [probe_of(trainer_of()) for _ in range(2)]
    trainer = trainer_of()
    random = np.random.default_rng(0)
    for seed in range(6):
        groups = scored(trainer, seed=seed)
        for probe, told in zip(probes, (True, False), strict=True):
            assert seed or probe.penalty == PENALTIES[-1]
            rewards = {group.task_id: float(i) for i, group in enumerate(groups)}
            paid = [
                replace(
                    group,
                    samples=tuple(
                        replace(s, reward=rewards[s.task_id] if told else random.standard_normal())
                        for s in group.samples
                    ),
                )
                for group in groups
            ]
            probe.add_baselines(paid, LAYOUT)
            probe.fit()
    assert probes[0].penalty < probes[1].penalty
    assert probe_of(trainer_of(penalty=3.0)).penalty == 3.0


def test_places_of_the_states() -> None:
    sampled = np.array([False, False, False, False, True, True, False, True, True])
    start, end = mark_ends(sampled, tokens=2)
    # Tokens 3 and 4 are predicted by the prompt's last two, 2 and 3.
    assert np.flatnonzero(start).tolist() == [3, 4]
    assert np.flatnonzero(end).tolist() == [7, 8]
    start, end = mark_ends(sampled, tokens=50)
    assert np.flatnonzero(start).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(end).tolist() == [4, 5, 7, 8]
    start, end = mark_ends(np.array([False, True]), tokens=10)
    assert (start.tolist(), end.tolist()) == ([False, True], [False, True])


def reference_features(trainer: PolicyTrainer, sample: TrainingSample, *, tokens: int) -> ndarray:
    """Return the features of a sample by a forward pass of its own."""
    model = trainer.model
    with torch.no_grad():
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    # The first of them is the embedding; a last one would be normalised.
    layer = states[1][0].numpy()
    places = np.flatnonzero(sample.sampled)
    first = places[0]
    assert sample.entropies is not None
    entropies = sample.entropies[sample.mask]
    means = layer[max(0, first - tokens) : first].mean(0), layer[places[-tokens:] - 1].mean(0)
    return np.concatenate([*means, [entropies.mean(), entropies.max(), entropies.std()]])


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_features_are_those_of_each_trajectory_alone(layout: LayoutName) -> None:
    trainer = trainer_of(tokens=2, layer=1)
    probe, groups = probe_of(trainer), scored(trainer)
    probe.add_baselines(groups, LAYOUTS[layout](64, None, None))
    probe.fit()
    features = probe.state()["features.0"].numpy()
    samples = [sample for group in groups for sample in group.samples]
    expected = [reference_features(trainer, sample, tokens=2) for sample in samples]
    np.testing.assert_allclose(features, np.stack(expected), atol=2e-4)
    targets = [y for group in groups for y in cross_rewards(group.rewards)]
    assert probe.state()["targets.0"].tolist() == pytest.approx(targets)


def test_no_baseline_moves_with_its_own_reward_or_tokens() -> None:
    trainer = trainer_of()
    probe, groups = probe_of(trainer), scored(trainer)
    probe.add_baselines(groups, LAYOUT)
    probe.fit()
    before = baselines(probe.add_baselines(scored(trainer, seed=1), LAYOUT))
    changed = [*scored(trainer, seed=1)]
    own, *others = changed[0].samples
    other_tokens = changed[1].samples[0]
    own = replace(other_tokens, task_id=own.task_id, reward=77.0)
    changed[0] = TrainingGroup(changed[0].task_id, (own, *others))
    after = baselines(probe.add_baselines(changed, LAYOUT))
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert after[4:] == before[4:]


def test_the_first_batch_is_compared_with_its_other_trajectories() -> None:
    trainer = trainer_of()
    groups = scored(trainer)
    rewards = [sample.reward for group in groups for sample in group.samples]
    assert baselines(probe_of(trainer).add_baselines(groups, LAYOUT)) == list(
        cross_rewards(rewards)
    )


def test_the_buffer_holds_the_latest_steps() -> None:
    trainer = trainer_of(buffer_steps=2)
    probe = probe_of(trainer)
    for seed in range(3):
        probe.add_baselines(scored(trainer, seed=seed), LAYOUT)
        probe.fit()
        probe.fit()  # nothing new
    state = probe.state()
    assert int(state["steps"]) == 2
    other = probe_of(trainer_of(buffer_steps=2))
    for seed in (1, 2):
        other.add_baselines(scored(trainer, seed=seed), LAYOUT)
        other.fit()
    assert torch.equal(other.state()["weights"], state["weights"])


def test_the_probe_learns_what_the_states_tell() -> None:
    """Rewards depend on the task alone, which the prompt's states tell."""
    still = LearnSection(
        advantage=PoiseAdvantage(penalty=1.0), optimizer=AdamWSection(learning_rate=1e-9)
    )
    trainer = PolicyTrainer(model_of(), still, seed=0)
    figures: list[float] = []
    for seed in range(6):
        trainer.version = 0
        trees: list[Tree] = []
        for number, tree in enumerate(trees_of(4, group=2, seed=seed)):
            trees.append(Tree(tree.task))
            for node in tree.nodes:
                trees[-1].add(node)
            for leaf in tree.leaves:
                trees[-1].end(replace(leaf, outcome=Finished(float(number))))
        figures.append(trainer.step(trees)["value_probe/explained_variance"])
    assert figures[-1] > 0.9


def test_explained_variance_golden() -> None:
    samples = [
        replace(played(([1], [2], reward)), baseline=baseline)
        for reward, baseline in ((0.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.0, 0.5))
    ]
    # Rests 0, 0.5, 0, -0.5 with variance 1/8; rewards with variance 1/4.
    assert explain_rewards(group(*samples)) == pytest.approx(0.5)
    assert explain_rewards(group(samples[0], samples[3])) == 0.0


def test_a_resumed_run_goes_on_with_the_same_baselines(tmp_path: Path) -> None:
    trainer = trainer_of()
    for version in range(2):
        trainer.step(trees_of(gap=0.5, seed=version, version=version))
    made = save(tmp_path, trainer)
    resumed = trainer_of()
    load(made, resumed)
    before = probe_of(trainer).state()
    assert "errors" in before
    for name, value in probe_of(resumed).state().items():
        assert torch.equal(value, before.pop(name))
    assert not before
    first = baselines(probe_of(trainer).add_baselines(scored(trainer), LAYOUT))
    assert baselines(probe_of(resumed).add_baselines(scored(trainer), LAYOUT)) == first
    assert trainer.step(trees_of(seed=2, version=2)) == resumed.step(trees_of(seed=2, version=2))


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    other = PolicyTrainer(model_of(), LearnSection(advantage=GrpoAdvantage()), seed=0)
    other.step(trees_of())
    made = save(tmp_path, other)
    with pytest.raises(
        ConfigError, match=r"without value_probe, but .* learn.advantage.name: poise"
    ):
        load(made, trainer_of())
    state = {"weights": torch.zeros(7, 8), "steps": torch.tensor(1)}
    with pytest.raises(ConfigError, match=r"has \[35, 8\] .*, but the saved one has \[7, 8\]"):
        probe_of(trainer_of()).check_state(state)


def test_a_sample_without_a_baseline_is_refused() -> None:
    with pytest.raises(LearnError, match="has no baseline, which POISE requires"):
        poise(group(played(([1], [2], 1.0))))


def test_layers() -> None:
    shape = SECTION.model_copy(update={"layers": 5})
    model = make_model(
        shape, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
    )
    layers = decoder(model).layers
    assert find_layer(model, None) is layers[2]
    assert (find_layer(model, 1), find_layer(model, 5)) == (layers[0], layers[4])
    with pytest.raises(
        ConfigError, match=r"learn.advantage.layer is 6, but the policy has 5 layers"
    ):
        find_layer(model, 6)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["learn.devices.count=2"], "supports only one device, but learn.devices.count is 2"),
        (["rollout.branching.topology=aepo"], "topology is aepo, whose trajectories share"),
        (["rollout.group_size=1"], "which compares the trajectories of a group"),
        (
            ["policy.make.layers=2", "learn.advantage.layer=3"],
            "layer is 3, but policy.make.layers is 2",
        ),
        (["learn.advantage.penalty=0"], "learn.advantage.penalty"),
        (["learn.advantage.tokens=0"], "learn.advantage.tokens"),
    ],
)
def test_a_config_that_cannot_work_is_refused(tmp_path: Path, keys: list[str], says: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("env: {id: demo/Multiply-v0}\nlearn: {advantage: {name: poise}}\n")
    with pytest.raises(ConfigError) as refusal:
        load_config(file, keys)
    assert says in str(refusal.value)

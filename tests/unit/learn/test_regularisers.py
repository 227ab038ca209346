"""KL to a reference policy, the entropy bonus, and the rules between the keys of the loss.

Mutants applied and seen caught:

- kl: sign; coefficient dropped; k3 of the inverse ratio, or not cut; k2 without its half; factor of
  the straight-through term with gradient, of the plain one without; gradient of the value; proximal
  for behaviour: golden table, expectation, written-out gradient
- entropy bonus: sign; needs: idle rows of either term, behaviour log-probs of the factor
- reference: shares the weights it was copied from; entropies in its place; metric off the mask
- aggregation of the loss, and the horizon, not read; each rule between keys weakened
"""

import gc
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor
from transformers import Qwen3ForCausalLM

from agentrl.config.learn import AdamWSection, KlSection, LearnSection, LoraSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.learning.loss import GspoLoss, PpoClipLoss, SapoLoss, aggregation_of
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.learn.checkpoint import load
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.methods import LearnMethods
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.regularisers import kl_estimate, kl_loss
from agentrl.learn.sample import TrainingGroup
from agentrl.learn.token_logprobs import score
from agentrl.learn.trainer import PolicyTrainer
from tests.support.learning import (
    CPU,
    assert_close,
    block,
    evidence_of,
    gradient_of,
    gradients,
    model_of,
    rows_of,
    save,
    scored_by,
    trees_of,
)

Estimator = Literal["k1", "k2", "k3"]
LN2 = math.log(2)


@pytest.mark.parametrize(("estimator", "value"), [("k1", -0.6931), ("k2", 0.2402), ("k3", 0.3069)])
def test_estimates_golden(estimator: Estimator, value: float) -> None:
    # The reference is twice as likely as the policy.
    found = kl_estimate(block([-LN2]), estimator=estimator)
    assert found.item() == pytest.approx(value, abs=1e-4)


@given(st.floats(-40, 40))
def test_k2_and_k3_are_never_negative_and_bounded(gap: float) -> None:
    assert 0 <= kl_estimate(block([gap]), estimator="k2").item() <= 200
    assert -1e-6 <= kl_estimate(block([gap]), estimator="k3").item() <= 20
    assert kl_estimate(block([-gap]), estimator="k1").item() == pytest.approx(
        -min(max(gap, -20), 20)
    )


# d, log(policy / behaviour), section -> value, gradient on log policy
TERMS: list[tuple[float, float, dict[str, Any], float, float]] = [
    (0.5, 0.3, {"estimator": "k1", "straight_through": False}, 0.5, 1.0),
    (0.5, 0.3, {"estimator": "k2", "straight_through": False}, 0.125, 0.5),
    (0.5, 0.3, {"estimator": "k3", "straight_through": False}, 0.106531, 0.393469),
    (0.5, 0.3, {"estimator": "k1"}, 0.5, 0.5),
    (0.5, 0.3, {"estimator": "k3"}, 0.106531, 0.5),
    (-3.0, 0.0, {}, 10.0, -3.0),  # the value is cut, the gradient is not
    (0.5, LN2, {"off_policy": True}, 0.213061, 1.0),
    (
        0.5,
        LN2,
        {"estimator": "k1", "straight_through": False, "off_policy": True},
        1.0,
        3.0,  # ratio x (d + 1)
    ),
    (
        0.5,
        LN2,
        {"estimator": "k3", "straight_through": False, "off_policy": True},
        0.213061,
        1.0,  # ratio x (k3 + 1 - exp(-d)), which is ratio x d
    ),
]


@pytest.mark.parametrize(("gap", "drift", "knobs", "value", "slope"), TERMS)
def test_value_and_gradient_of_the_kl_of_a_token_golden(
    gap: float, drift: float, knobs: dict[str, Any], value: float, slope: float
) -> None:
    logprobs = block([0.0]).requires_grad_()
    found = kl_loss(logprobs + gap, logprobs + drift, **knobs)
    found.sum().backward()
    assert logprobs.grad is not None
    assert found.item() == pytest.approx(value, abs=1e-5)
    assert logprobs.grad.item() == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize(
    ("straight_through", "off_policy"), [(True, False), (True, True), (False, True)]
)
def test_the_gradient_is_that_of_the_reverse_kl_in_expectation(
    estimator: Estimator, straight_through: bool, off_policy: bool
) -> None:
    if estimator == "k2" and not straight_through:
        return  # the value of k2 is biased, and so is its gradient with the factor
    logits = torch.tensor([0.3, -0.2, 0.6, 0.0], dtype=torch.float64).requires_grad_()
    reference = torch.tensor([0.1, 0.4, -0.5, 0.2], dtype=torch.float64).log_softmax(0)
    logs = logits.log_softmax(0)
    behaviour = torch.tensor([0.5, 0.1, -0.4, 0.3], dtype=torch.float64).log_softmax(0)
    sampler = behaviour if off_policy else logs.detach()
    # Every token there is, weighed by how often it is sampled: the expectation itself.
    term = kl_loss(
        logs - reference,
        logs - sampler,
        estimator=estimator,
        straight_through=straight_through,
        off_policy=off_policy,
    )
    (found,) = torch.autograd.grad((sampler.exp() * term).sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((logs.exp() * (logs - reference)).sum(), logits)
    torch.testing.assert_close(found, wanted)


def regularised(**changes: Any) -> LearnSection:
    return LearnSection(aggregation="token-mean", **changes)


def referred(trees_seed: int = 0) -> tuple[Any, list[Any]]:
    """Return a model, and rows with log-probs of another one as reference."""
    model = model_of()
    rows = rows_of(trees_of(2, seed=trees_seed, gap=0.3))
    (group,) = evidence_of(model_of(1)).score_reference(
        [TrainingGroup("t", tuple(r.sample for r in rows))]
    )
    return model, [type(row)(s, row.advantages) for s, row in zip(group.samples, rows, strict=True)]


def written_out(model: Any, rows: list[Any], term: Any) -> Tensor:
    """Return the gradient of the mean of term(row, t, log-probs of the vocabulary there)."""
    model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for row in rows:
        ids = torch.tensor(row.sample.token_ids)
        logs = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
        for t in np.flatnonzero(row.sample.mask):
            total = total + term(row, t, logs[t - 1])
    (total / sum(row.sample.sampled_tokens for row in rows)).backward()
    return gradient_of(model)


@pytest.mark.parametrize("off_policy", [False, True])
def test_the_kl_is_added_to_the_loss_of_every_sampled_token(off_policy: bool) -> None:
    model, rows = referred()
    section = KlSection(coefficient=0.7, estimator="k2", off_policy=off_policy)
    plain = gradients(model, rows, regularised())
    with_kl = gradients(model, rows, regularised(kl=section))

    def term(row: Any, t: int, logs: Tensor) -> Tensor:
        log = logs[row.sample.token_ids[t]]
        factor = math.exp(log.item() - row.sample.behaviour[t]) if off_policy else 1.0
        return factor * 0.35 * (log - row.sample.reference[t]).square()

    assert_close((with_kl - plain)[:-1], written_out(model, rows, term))


def test_the_entropy_bonus_pulls_towards_the_exact_entropy() -> None:
    model, rows = referred()
    plain = gradients(model, rows, regularised())
    with_bonus = gradients(model, rows, regularised(entropy_bonus=0.5))

    def term(row: Any, t: int, logs: Tensor) -> Tensor:
        del row, t
        return 0.5 * (logs.exp() * logs).sum()

    assert_close((with_bonus - plain)[:-1], written_out(model, rows, term))


def test_entropies_are_detached_unless_their_gradient_is_asked_for() -> None:
    model, rows = referred()
    tokens = PaddedLayout(10**6).tokens(rows, device=CPU)
    for wanted in (False, True):
        found = score(
            model, tokens, temperature=1.0, head_at_positions=True, entropy_gradient=wanted
        )
        assert found.entropies.requires_grad is wanted


def test_micro_batching_never_changes_the_regularised_gradient() -> None:
    model, rows = referred()
    config = regularised(kl=KlSection(coefficient=0.3, off_policy=True), entropy_bonus=0.2)
    whole = gradients(model, rows, config, limit_tokens=10**6)
    assert_close(gradients(model, rows, config, limit_tokens=30), whole)


def test_a_kl_without_a_reference_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="score_reference"):
        gradients(model_of(), rows_of(trees_of()), regularised(kl=KlSection()))


def test_needs_of_the_regularisers() -> None:
    assert LearnMethods.from_config(LearnSection()).needs.isdisjoint(
        {"reference logprobs", "idle rows"}
    )
    assert "idle rows" in LearnMethods.from_config(LearnSection(entropy_bonus=0.1)).needs
    kl = LearnMethods.from_config(LearnSection(kl=KlSection()))
    assert {"reference logprobs", "idle rows"} <= kl.needs
    # Nothing corrects here, and the factor of the KL needs to know who sampled all the same.
    bare = LearnSection(correction=NoCorrection(), kl=KlSection())
    assert "behaviour logprobs" not in LearnMethods.from_config(bare).needs
    factored = bare.model_copy(update={"kl": KlSection(off_policy=True)})
    assert "behaviour logprobs" in LearnMethods.from_config(factored).needs


FAST = AdamWSection(learning_rate=0.02)


def pulled(**changes: Any) -> LearnSection:
    return LearnSection(optimizer=FAST, **changes)


def check_reference(trainer: PolicyTrainer) -> list[CreditedSample]:
    """Check that two steps are compared with the first policy; return the second one's scores."""
    first = trainer.step(trees_of(gap=0.3))
    assert first["kl/reference"] == pytest.approx(0.0, abs=1e-7)
    trees = trees_of(version=1, gap=0.3)
    then, now = (scored_by(model, rows_of(trees)) for model in (model_of(), trainer.model))
    gaps = np.concatenate([_gaps(a, b) for a, b in zip(now, then, strict=True)])
    second = trainer.step(trees)
    assert second["kl/reference"] > 1e-4
    assert second["kl/reference"] == pytest.approx(np.mean(np.expm1(-gaps) + gaps), rel=1e-3)
    return now


def test_the_reference_is_the_first_policy_and_does_not_move() -> None:
    trainer = PolicyTrainer(model_of(), pulled(kl=KlSection(coefficient=1e-9)), seed=0)
    check_reference(trainer)
    assert trainer.model.get_input_embeddings().weight.requires_grad


def model_count() -> int:
    return sum(issubclass(type(value), Qwen3ForCausalLM) for value in gc.get_objects())


def test_the_reference_of_adapters_is_the_model_below_them() -> None:
    """No copy of the model is made; after a step it is scored as it was at first."""
    config = pulled(kl=KlSection(coefficient=1e-9), lora=LoraSection(rank=3, alpha=5.0))
    gc.collect()
    before = model_count()
    trainer = PolicyTrainer(model_of(), config, seed=0)
    assert model_count() == before + 1
    now = check_reference(trainer)
    adapters = {n: p.clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    evidence_of(trainer.model).frozen().score_reference(
        [TrainingGroup("t", tuple(r.sample for r in now))]
    )
    for name, value in adapters.items():
        assert torch.equal(trainer.model.get_parameter(name), value)
        assert value.any()


def _gaps(now: CreditedSample, then: CreditedSample) -> Float[np.ndarray, " sampled"]:
    assert now.sample.proximal is not None
    assert then.sample.proximal is not None
    return (now.sample.proximal - then.sample.proximal)[now.mask]


def test_the_kl_holds_the_policy_back() -> None:
    def distance(coefficient: float) -> float:
        trainer = PolicyTrainer(model_of(), pulled(kl=KlSection(coefficient=coefficient)), seed=0)
        steps = [trainer.step(trees_of(version=version, gap=0.3)) for version in range(6)]
        return steps[-1]["kl/reference"]

    assert distance(1.0) < distance(1e-9) / 2


def test_the_entropy_bonus_raises_the_entropy_without_any_credit() -> None:
    trees = trees_of(2, group=1)
    without = PolicyTrainer(model_of(), pulled(), seed=0)
    bonus = PolicyTrainer(model_of(), pulled(entropy_bonus=0.1), seed=0)
    found = [[trainer.step(trees) for _ in range(3)] for trainer in (without, bonus)]
    assert found[0][2]["entropy"] == found[0][0]["entropy"]
    assert found[0][2]["optimizer/skipped"] == 1.0
    assert found[1][2]["entropy"] > found[1][0]["entropy"] + 0.01
    assert found[1][2]["optimizer/skipped"] == 0.0


def test_a_resumed_run_has_the_reference_it_began_with(tmp_path: Path) -> None:
    config = pulled(kl=KlSection(coefficient=0.1))

    def trainer() -> PolicyTrainer:
        return PolicyTrainer(model_of(), config, seed=0)

    whole, stopped = trainer(), trainer()
    for each in (whole, stopped):
        each.step(trees_of(gap=0.3))
    folder = save(tmp_path, stopped)
    resumed = trainer()
    load(folder, resumed)
    later = trees_of(version=1, gap=0.3, seed=1)
    expected, found = whole.step(later), resumed.step(later)
    assert found == expected
    assert found["kl/reference"] > 1e-4
    for name, value in whole.weights().items():
        assert torch.equal(resumed.weights()[name], value)


def test_a_loss_brings_its_aggregation_and_a_config_may_choose_another() -> None:
    assert aggregation_of(PpoClipLoss()) == "token-mean"
    assert aggregation_of(GspoLoss()) == aggregation_of(SapoLoss()) == "seq-mean-token-mean"
    model, rows = model_of(), rows_of(trees_of(gap=0.3))
    own, other = (
        gradients(model, rows, LearnSection(loss=SapoLoss(), aggregation=how))
        for how in ("seq-mean-token-mean", "token-mean")
    )
    assert torch.equal(gradients(model, rows, LearnSection(loss=SapoLoss())), own)
    assert (own - other).norm() > 1e-3


def test_the_horizon_reaches_the_loss() -> None:
    model, rows = model_of(), rows_of(trees_of(gap=0.3))
    plain = gradients(model, rows, LearnSection(aggregation="seq-mean-token-sum"))
    how = "seq-mean-token-sum-norm"
    found = gradients(model, rows, LearnSection(aggregation=how, horizon_tokens=8))
    assert_close(8 * found, plain)
    with pytest.raises(ValueError, match="horizon_tokens"):
        gradients(model, rows, LearnSection(aggregation=how))


REFUSED = [
    ("aggregation: seq-mean-token-sum-norm", "divides by a constant"),
    ("horizon_tokens: 8", "has no effect"),
    ("kl: {estimator: k1, straight_through: false}", "0 in expectation"),
    ("loss: {name: m2po}", "apply part of it twice"),
    ("loss: {name: bapo, low: [0.9, 0.6]}", "initial and the maximum bound"),
    ("loss: {name: bapo, high: [0.9, 2.0]}", "initial and the maximum bound"),
]
ACCEPTED = [
    "{aggregation: seq-mean-token-sum-norm, horizon_tokens: 8}",
    "{kl: {estimator: k1}}",
    "{kl: {estimator: k1, straight_through: false, off_policy: true}}",
    "{loss: {name: m2po}, correction: {name: none}}",
    "{loss: {name: m2po}, proximal: {name: behaviour}}",
    "{loss: {name: bapo}}",
]


def config_file(folder: Path, learn: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(f"env: {{id: demo/Multiply-v0}}\nlearn: {learn}\n")
    return path


@pytest.mark.parametrize(("key", "why"), REFUSED)
def test_keys_that_do_not_go_together_are_refused(tmp_path: Path, key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_config(config_file(tmp_path, f"{{{key}}}"))


@pytest.mark.parametrize("learn", ACCEPTED)
def test_keys_that_go_together_are_taken(tmp_path: Path, learn: str) -> None:
    learnt = load_config(config_file(tmp_path, learn)).learn
    assert learnt != LearnSection(), "what was taken is in the config"

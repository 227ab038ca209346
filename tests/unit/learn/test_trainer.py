"""The trainer on a small real model. Mutants applied by hand and seen caught by this file:

- head one position off; temperature dropped, or multiplied in place of divided; entropy of the
  wrong sign: comparison with the plain full forward pass
- counts per micro-batch: micro-batch invariance; both `where(mask)` dropped: bit-identity test
- proximal log-probs placed one token off; recomputed pass left out or taken at every step;
  correction weights not applied, or of 1/ratio; behaviour taken for proximal: decoupled identities
- update skipped for live rows, made or differentiated for idle ones; version not raised
- warm-up off by one; no clipping of the norm: optimiser tests
- the order of rows, masks, weights or single advantages left out of the digest that ranks compare,
  or what is off the mask in it: test of the digest
- contexts counted as trajectories, or without their share: test of several contexts
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from agentrl.config.learn import AdamWSection, LearnSection
from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.config.learning.loss import Aggregation, PpoClipLoss
from agentrl.config.learning.proximal import BehaviourProximal
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.optimizer import warmup
from agentrl.learn.token_logprobs import head_is_plain, score
from agentrl.learn.trainer import PolicyTrainer, digest_decisions
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree
from tests.support.learning import (
    CPU,
    VOCABULARY,
    assert_close,
    gradient_of,
    gradients,
    head_of,
    model_of,
    policy_gradient,
    rows_of,
    scored_by,
    trees_of,
)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_the_plain_full_forward_pass(temperature: float) -> None:
    model = model_of()
    rows = rows_of(trees_of())
    tokens = PaddedLayout(10**6).tokens(rows, device=CPU)
    with torch.no_grad():
        found = score(model, tokens, temperature=temperature, head_at_positions=True)
        for i, row in enumerate(rows):
            # One sequence alone, unshifted and unpadded, exactly as the engine saw it.
            logits = model(input_ids=torch.tensor(row.sample.token_ids)[None]).logits[0]
            logs = (logits / temperature).log_softmax(dim=-1)
            for t in np.flatnonzero(row.sample.mask):
                expected = logs[t - 1, row.sample.token_ids[t]]
                assert found.logprobs[i, t - 1].item() == pytest.approx(expected.item(), abs=1e-6)
                entropy = -(logs[t - 1].exp() * logs[t - 1]).sum()
                assert found.entropies[i, t - 1].item() == pytest.approx(entropy.item(), abs=1e-5)
        assert not found.logprobs[~tokens.mask].any()
        whole = score(model, tokens, temperature=temperature, head_at_positions=False)
        torch.testing.assert_close(found.logprobs, whole.logprobs, atol=1e-6, rtol=0)


def test_the_head_at_positions_gives_the_gradient_of_the_full_forward_pass() -> None:
    model = model_of()
    tokens = PaddedLayout(10**6).tokens(rows_of(trees_of()), device=CPU)
    found: list[Tensor] = []
    for head_at_positions in (True, False):
        model.zero_grad(set_to_none=True)
        scores = score(model, tokens, temperature=1.0, head_at_positions=head_at_positions)
        scores.logprobs.sum().backward()
        found.append(gradient_of(model))
    assert_close(found[0], found[1])


# A cap of 1 shows in a trial; one of a million shows in the config only.
@pytest.mark.parametrize("cap", [1.0, 1e6])
def test_a_model_that_caps_its_logits_takes_the_full_forward_pass(cap: float) -> None:
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=32,
        final_logit_softcapping=cap,
    )
    assert head_is_plain(model_of())
    assert not head_is_plain(Gemma2ForCausalLM(config).eval())


def test_what_is_off_the_mask_changes_no_bit() -> None:
    model = model_of()
    row = rows_of(trees_of(1))[0]
    last = int(np.flatnonzero(row.sample.mask)[-1])

    def gradient(poison: float) -> Tensor:
        advantages = np.where(row.sample.mask, row.advantages, poison)
        row.sample.behaviour[~row.sample.mask] = poison
        row.sample.token_ids[last + 1 :] = 9 if math.isnan(poison) else 4
        return gradients(model, [CreditedSample(row.sample, advantages)], LearnSection())

    assert torch.equal(gradient(0.0), gradient(math.nan))


@settings(max_examples=12)
@given(
    st.integers(24, 80),
    st.sampled_from(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]),
    st.integers(0, 99),
)
def test_micro_batching_never_changes_the_gradient(limit: int, how: str, seed: int) -> None:
    model = model_of()
    rows = rows_of(trees_of(2, seed=seed, gap=0.5))
    config = LearnSection.model_validate({"aggregation": how})
    whole = gradients(model, rows, config, limit_tokens=10**6)
    assert_close(gradients(model, rows, config, limit_tokens=limit), whole)


def test_members_of_a_group_may_come_in_any_order() -> None:
    model = model_of()
    rows = rows_of(trees_of(gap=0.5))
    expected = gradients(model, rows, LearnSection())
    assert_close(gradients(model, rows[::-1], LearnSection()), expected)


AS_IT_WAS_SAMPLED = LearnSection(correction=NoCorrection(), proximal=BehaviourProximal())


def test_one_optimiser_step_needs_no_proximal_pass() -> None:
    model = model_of()
    rows = rows_of(trees_of(gap=0.5))
    scored = scored_by(model, rows)
    config = LearnSection()
    assert_close(gradients(model, rows, config), gradients(model, scored, config))


def test_proximal_log_probs_stand_at_their_tokens() -> None:
    model = model_of()
    rows = rows_of(trees_of())
    for row in scored_by(model, rows, limit_tokens=40):
        ids = torch.tensor(row.sample.token_ids)
        with torch.no_grad():
            logs = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
        expected = logs[:-1].gather(-1, ids[1:, None])[:, 0].numpy()
        mask = row.sample.mask
        assert row.sample.proximal is not None
        np.testing.assert_allclose(row.sample.proximal[mask], expected[mask[1:]], atol=1e-5)


@pytest.mark.parametrize("cap", [2.0, 0.5])
def test_where_current_is_proximal_the_gradient_is_weight_times_policy_gradient(cap: float) -> None:
    model = model_of()
    rows = rows_of(trees_of(gap=1.0))
    config = LearnSection(correction=TruncatedCorrection(cap=cap))
    assert_close(gradients(model, rows, config)[:-1], policy_gradient(model, rows, cap))


def test_where_behaviour_is_proximal_the_decoupled_loss_is_plain_ppo() -> None:
    model, start = model_of(), model_of(1)
    rows = scored_by(start, rows_of(trees_of()))
    for row in rows:
        assert row.sample.proximal is not None
        row.sample.behaviour[:] = row.sample.proximal
    decoupled = gradients(model, rows, LearnSection(correction=TruncatedCorrection(cap=5.0)))
    plain = gradients(model, rows, AS_IT_WAS_SAMPLED)
    assert_close(decoupled, plain)


def test_the_clip_can_be_anchored_to_the_behaviour_policy() -> None:
    model = model_of()
    rows = rows_of(trees_of(gap=1.0))
    loose = PpoClipLoss(clip_low=1.0, clip_high=1e9, dual_clip=None)
    config = AS_IT_WAS_SAMPLED.model_copy(update={"loss": loose})
    expected = policy_gradient(model, rows, math.inf)
    # Unclipped, the gradient of the ratio pi / mu is that of an uncapped weight.
    assert_close(gradients(model, rows, config)[:-1], expected)
    clipped = gradients(model, rows, AS_IT_WAS_SAMPLED)
    assert (clipped[:-1] - expected).norm() > 1e-3


def test_missing_behaviour_log_probs_weigh_one() -> None:
    random = np.random.default_rng(0)
    for config in (LearnSection(), AS_IT_WAS_SAMPLED):
        model = model_of()
        rows = rows_of(trees_of())
        for row in rows:
            row.sample.behaviour[:] = random.choice([math.nan, math.inf, -math.inf])
        found = gradients(model, rows, config)
        assert_close(found[:-1], policy_gradient(model, rows, 2.0))


class Calls:
    """Counts the forward passes of a model, with and without gradient."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.with_grad = self.without = 0
        model.get_decoder().register_forward_pre_hook(self._seen)

    def _seen(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self.with_grad += 1
        else:
            self.without += 1


@pytest.mark.parametrize(
    ("config", "passes"),
    [
        (LearnSection(), (1, 0)),
        (LearnSection(minibatches=2), (2, 1)),
        (LearnSection(epochs=3), (3, 1)),
        (AS_IT_WAS_SAMPLED.model_copy(update={"minibatches": 2}), (2, 0)),
    ],
)
def test_a_proximal_pass_is_made_only_where_it_is_needed(
    config: LearnSection, passes: tuple[int, int]
) -> None:
    trainer = PolicyTrainer(model_of(), config, seed=0)
    calls = Calls(trainer.model)
    metrics = trainer.step(trees_of(4, group=4, gap=0.3))
    assert (calls.with_grad, calls.without) == passes
    assert metrics["optimizer/updates"] == passes[0]
    assert "engine_gap/mean_abs" in metrics


def test_the_gap_is_measured_against_the_weights_at_batch_start() -> None:
    for section in (LearnSection(), AS_IT_WAS_SAMPLED):
        changes = {"epochs": 4, "optimizer": AdamWSection(learning_rate=0.05)}
        fast = section.model_copy(update=changes)
        once = PolicyTrainer(model_of(), LearnSection(), seed=0).step(trees_of(gap=0.5))
        many = PolicyTrainer(model_of(), fast, seed=0).step(trees_of(gap=0.5))
        for name in ("engine_gap/mean_abs", "engine_gap/max", "engine_gap/kl", "engine_gap/ess"):
            assert many[name] == pytest.approx(once[name], rel=1e-4)
        assert many["ratio/clip_fraction"] > 0


def test_metrics_of_a_step_golden() -> None:
    tree = Tree(Task(prompt="q", id="a"))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    for sample, (reward, versions) in enumerate([(1.0, (4, 5)), (0.0, (3,))]):
        n = len(versions)
        at = tree.add(
            Node(
                parent=prompt,
                source="sampled",
                token_ids=(5,) * n,
                turn=sample,
                logprobs=(-1.0,) * n,
                versions=versions,
            )
        )
        tree.end(Leaf(node=at, outcome=Finished(reward), sample=sample))
    tree.end(Leaf(node=prompt, outcome=Failed("env", "broke"), sample=2))
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    trainer.version = 6
    metrics = trainer.step([tree])
    expected = {
        "reward/mean": 0.5,
        "reward/std": math.sqrt(0.5),
        "advantage/zero_fraction": 0.0,
        "age/mean": 2.0,
        "age/max": 3.0,
        "tokens/trained": 3.0,
        "lengths/context_mean": 3.5,
        "lengths/context_max": 4.0,
        "lengths/sampled_mean": 1.5,
        "lengths/sampled_max": 2.0,
        "lengths/turns_mean": 1.5,
        "batch/groups": 1.0,
        "batch/trajectories": 2.0,
        "batch/failed": 1.0,
        "optimizer/updates": 1.0,
        "optimizer/skipped": 0.0,
        "learning_rate": 1e-6,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert trainer.version == 7
    assert all(math.isfinite(value) for value in metrics.values())
    assert {
        "loss",
        "entropy",
        "grad/norm",
        "engine_gap/ess",
        "ratio/clip_fraction",
    } <= metrics.keys()


def test_a_group_is_without_credit_if_nobody_in_it_has_any() -> None:
    # Rewards 0, 1, 2: the one in the middle has no credit, its group has.
    trees = trees_of(1, group=3) + trees_of(1, group=1)
    metrics = PolicyTrainer(model_of(), LearnSection(), seed=0).step(trees)
    assert metrics["advantage/zero_fraction"] == 0.5


def weights_of(trainer: PolicyTrainer) -> list[Tensor]:
    """Return a copy of the weights."""
    return [value.clone() for value in trainer.weights().values()]


def test_a_step_of_equal_rewards_moves_nothing_but_the_version() -> None:
    optimizer = AdamWSection(learning_rate=0.1, weight_decay=0.5)
    trainer = PolicyTrainer(model_of(), LearnSection(optimizer=optimizer), seed=0)
    trainer.step(trees_of())  # leaves momentum behind
    before, moments = (
        weights_of(trainer),
        {k: v.clone() for k, v in trainer.optimizer.state().items()},
    )
    trees = trees_of(1)
    equal = Tree(Task(prompt="q", id="equal"))
    for node in trees[0].nodes:
        equal.add(node)
    for leaf in trees[0].leaves:
        equal.end(Leaf(node=leaf.node, outcome=Finished(0.3), sample=leaf.sample))
    calls = Calls(trainer.model)
    metrics = trainer.step([equal])
    assert (calls.with_grad, calls.without) == (0, 1)
    assert trainer.optimizer.updates == metrics["optimizer/updates"] == 1
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert all(torch.equal(v, trainer.optimizer.state()[k]) for k, v in moments.items())
    assert trainer.version == 2
    assert metrics["advantage/zero_fraction"] == 1.0
    assert metrics["optimizer/skipped"] == 1.0
    assert metrics["loss"] == metrics["grad/norm"] == 0.0
    assert metrics["entropy"] > 0
    assert all(math.isfinite(value) for value in metrics.values())


def test_rows_without_credit_stay_in_the_denominator() -> None:
    """A batch with as many tokens again of equal rewards: half the gradient of the batch alone.

    Mutant: idle rows leave the denominator; it is another one on each rank where some have none.
    """
    optimizer = AdamWSection(learning_rate=1e-9, max_grad_norm=1e9)
    trees = trees_of(2, seed=3)
    equal: list[Tree] = []
    for number, tree in enumerate(trees):
        copy = Tree(Task(prompt="q", id=f"equal {number}"))
        for node in tree.nodes:
            copy.add(node)
        for leaf in tree.leaves:
            copy.end(Leaf(node=leaf.node, outcome=Finished(0.3), sample=leaf.sample))
        equal.append(copy)
    alone, beside = (
        PolicyTrainer(model_of(), LearnSection(optimizer=optimizer), seed=0).step(batch)[
            "grad/norm"
        ]
        for batch in (trees, [*trees, *equal])
    )
    assert alone > 0
    assert beside == pytest.approx(alone / 2, rel=1e-4)


def test_a_batch_without_trainable_tokens_stops_the_run_and_says_why() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    tree = Tree(Task(prompt="q"))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(2,), turn=0))
    tree.end(Leaf(node=at, outcome=Failed("tool", "broke"), sample=0))
    tree.end(Leaf(node=at, outcome=Finished(1.0), sample=1))
    with pytest.raises(
        LearnError, match=r"no token of this batch can train: 1 groups, 2 traj.* 1 "
    ):
        trainer.step([tree])
    with pytest.raises(LearnError, match="0 groups, 0 trajectories"):
        trainer.step([])
    assert trainer.version == 0


def test_tokens_of_a_version_that_does_not_exist_yet_are_refused() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    with pytest.raises(LearnError, match="sampled by version 3, but the trainer is at 0"):
        trainer.step(trees_of(version=3))


def test_a_greedy_policy_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="temperature is 0"):
        PolicyTrainer(model_of(), LearnSection(), seed=0, temperature=0.0)


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_move() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    with torch.no_grad():
        head_of(trainer.model)[3] = math.inf
    before = weights_of(trainer)
    with pytest.raises(LearnError, match="gradient norm of update 1 is"):
        trainer.step(trees_of())
    assert all(map(torch.equal, before, weights_of(trainer)))


def test_warmup_rises_linearly_to_the_full_rate() -> None:
    assert [warmup(k, steps=4) for k in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]
    assert warmup(1, steps=0) == 1.0
    section = AdamWSection(learning_rate=0.8, warmup_steps=4)
    trainer = PolicyTrainer(model_of(), LearnSection(optimizer=section), seed=0)
    rates = [trainer.step(trees_of(version=v))["learning_rate"] for v in range(2)]
    assert rates == pytest.approx([0.2, 0.4])


def test_the_first_adamw_update_is_what_the_formula_says() -> None:
    # One update of AdamW moves by lr x (g / (|g| + eps) + decay x w), whatever the betas.
    section = AdamWSection(learning_rate=0.01, weight_decay=0.1, epsilon=1e-2, max_grad_norm=0.5)
    config = LearnSection(optimizer=section)
    trainer = PolicyTrainer(model_of(), config, seed=0)
    weight = head_of(trainer.model)
    before = weight.detach().clone()
    gradients(trainer.model, rows_of(trees_of()), config)
    assert weight.grad is not None
    norm = gradient_of(trainer.model)
    g = weight.grad * min(1.0, 0.5 / norm.norm().item())
    expected = before - 0.01 * (g / (g.abs() + 1e-2) + 0.1 * before)
    metrics = trainer.step(trees_of())
    torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=1e-4)
    assert metrics["grad/norm"] == pytest.approx(norm.norm().item(), rel=1e-5)
    assert norm.norm() > 0.5


def test_betas_reach_the_optimiser() -> None:
    def weights_after(betas: tuple[float, float]) -> list[Tensor]:
        section = LearnSection(optimizer=AdamWSection(learning_rate=0.01, betas=betas))
        trainer = PolicyTrainer(model_of(), section, seed=0)
        for version in range(2):
            trainer.step(trees_of(seed=version, version=version))
        return weights_of(trainer)

    first, second, third = map(weights_after, [(0.9, 0.9), (0.5, 0.9), (0.9, 0.5)])
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], third[0])


def test_weights_are_named_as_hugging_face_does_and_not_copied() -> None:
    trainer = PolicyTrainer(model_of(), LearnSection(), seed=0)
    weights = trainer.weights()
    assert weights.keys() == trainer.model.state_dict().keys()
    assert not any(value.requires_grad for value in weights.values())
    assert weights["lm_head.weight"].data_ptr() == head_of(trainer.model).data_ptr()


def test_the_same_seed_makes_the_same_weights_and_another_one_other_minibatches() -> None:
    def trained(seed: int) -> list[Tensor]:
        section = LearnSection(minibatches=3, optimizer=AdamWSection(learning_rate=0.01))
        trainer = PolicyTrainer(model_of(), section, seed=seed)
        trainer.step(trees_of())
        return weights_of(trainer)

    first = trained(0)
    assert all(map(torch.equal, first, trained(0)))
    assert not all(map(torch.equal, first, trained(1)))


def next_log_probs(model: PreTrainedModel) -> Tensor:
    """Return the policy at the bandit's prompt."""
    with torch.no_grad():
        logits: Tensor = cast(Any, model)(input_ids=torch.tensor([[2, 3]])).logits
    return logits[0, -1].log_softmax(dim=-1)


def bandit(model: PreTrainedModel, version: int, random: np.random.Generator) -> Tree:
    """Return a group of one-token answers sampled from the model; only token 7 pays."""
    logs = next_log_probs(model).numpy()
    tree = Tree(Task(prompt="q"))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    chances = np.exp(logs.astype(float))
    for sample, token in enumerate(random.choice(len(logs), 16, p=chances / chances.sum())):
        at = tree.add(
            Node(
                parent=prompt,
                source="sampled",
                token_ids=(int(token),),
                turn=0,
                logprobs=(float(logs[token]),),
                versions=(version,),
            )
        )
        tree.end(Leaf(node=at, outcome=Finished(float(token == 7)), sample=sample))
    return tree


@pytest.mark.parametrize(
    "changes",
    [{}, {"minibatches": 2, "epochs": 2}, {"correction": NoCorrection()}],
)
def test_training_raises_the_probability_of_what_pays(changes: dict[str, Any]) -> None:
    section = LearnSection(optimizer=AdamWSection(learning_rate=0.02), **changes)
    trainer = PolicyTrainer(model_of(scale=1.0), section, seed=0)
    random = np.random.default_rng(0)
    before = next_log_probs(trainer.model)[7].exp()
    rewards = [
        trainer.step([bandit(trainer.model, trainer.version, random)])["reward/mean"]
        for _ in range(25)
    ]
    assert before < 0.2
    assert next_log_probs(trainer.model)[7].exp() > 0.9
    assert sum(rewards[-5:]) / 5 > 0.8


# --- what ranks compare ---------------------------------------------------------------------------


def change_credit(row: CreditedSample, *, on_mask: bool, to: float = 9.0) -> CreditedSample:
    advantages = np.array(row.advantages)
    advantages[np.flatnonzero(row.mask == on_mask)[-1]] = to
    return replace(row, advantages=advantages)


def drop_token(row: CreditedSample) -> CreditedSample:
    mask = row.mask.copy()
    mask[np.flatnonzero(mask)[0]] = False
    return replace(row, sample=replace(row.sample, mask=mask))


def weigh(row: CreditedSample) -> CreditedSample:
    return replace(row, sample=replace(row.sample, weights=np.full(len(row.mask), 0.5)))


def forget_identity(row: CreditedSample) -> CreditedSample:
    """Return a row that nothing but its tokens says which it is."""
    return replace(row, sample=replace(row.sample, token_ids=row.token_ids.copy()))


Change = Callable[[list[CreditedSample]], list[CreditedSample]]
DECISIONS: dict[str, Change] = {
    "another order": lambda rows: [rows[1], rows[0], *rows[2:]],
    "a row less": lambda rows: rows[1:],
    "a row twice": lambda rows: [rows[0], *rows],
    "credit of one token": lambda rows: [change_credit(rows[0], on_mask=True), *rows[1:]],
    "credit of all": lambda rows: [replace(r, advantages=r.advantages * 2) for r in rows],
    "a token less": lambda rows: [drop_token(rows[0]), *rows[1:]],
    "weights": lambda rows: [*rows[:-1], weigh(rows[-1])],
    "weights of another row": lambda rows: [weigh(rows[0]), *rows[1:]],
    "another row's tokens": lambda rows: [forget_identity(rows[0]), *rows[1:]],
}


def test_ranks_that_decide_otherwise_have_another_digest() -> None:
    batch = TrainingBatch.from_trees(trees_of())
    samples = [sample for group in batch.groups for sample in group.samples]
    rows = [
        CreditedSample(sample, np.full(len(sample.mask), 0.1 + place))
        for place, sample in enumerate(samples)
    ]
    same = digest_decisions(rows, batch)
    again = TrainingBatch.from_trees(trees_of())
    theirs = [sample for group in again.groups for sample in group.samples]
    others = [replace(row, sample=sample) for row, sample in zip(rows, theirs, strict=True)]
    assert digest_decisions(others, again) == same, "another process has arrays of its own"
    off_mask = [change_credit(row, on_mask=False) for row in rows]
    assert digest_decisions(off_mask, batch) == same, "nobody reads it"
    found = {name: digest_decisions(change(rows), batch) for name, change in DECISIONS.items()}
    assert len({same, *found.values()}) == 1 + len(found), found


def test_a_trajectory_of_several_contexts_weighs_as_much_as_one_of_one() -> None:
    """One samples 6 tokens in one context, the other 9 in three; on policy a loss is -advantage."""
    tree = Tree(Task(prompt="q", id="t"))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
    for sample in range(2):
        at = prompt
        for turn in range(3):
            if turn and sample:
                rewritten = Node(
                    parent=at,
                    source="prompt",
                    token_ids=(4, 5),
                    turn=turn,
                    withdraws=len(tree.context(at)),
                )
                at = tree.add(rewritten)
            count = turn + 1 + sample
            node = Node(
                parent=at,
                source="sampled",
                token_ids=(6, 7, 8, 9)[:count],
                turn=turn,
                logprobs=(-1.0,) * count,
                versions=(0,) * count,
            )
            at = tree.add(node)
        tree.end(Leaf(node=at, outcome=Finished(float(sample)), sample=sample))
    advantage = 0.5 / math.sqrt(0.5)
    losses: dict[Aggregation, float] = {
        "seq-mean-token-mean": 0.0,
        "seq-mean-token-sum": -advantage * (9 - 6) / 2,
    }
    for how, loss in losses.items():
        section = LearnSection(aggregation=how, correction=NoCorrection())
        metrics = PolicyTrainer(model_of(), section, seed=0).step([tree])
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert metrics["grad/norm"] > 0

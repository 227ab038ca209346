"""What holds for every method of every slot, taken from the tables of methods themselves.

A method that is added is tested at once, with its defaults and with each value of its choices. An
exception stands in a table here, with its reason. Mutants seen caught: equal rewards through GRPO's
and TreeRL's formula; singleton swapped; AEPO's entropies off the mask; BranchGRPO's sum over
log-probs that are no numbers; weights off the mask; log-ratios not cut before `exp` in corrections
and in losses; behaviour log-probs that are no numbers kept; D3S of rows without tokens; a reward
made of what was recorded off the mask; no entropies where no token trains.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor

from agentrl.config.learn import CriticSection, LearnSection
from agentrl.config.schema import method_of
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError
from agentrl.learn.catalogue import SLOTS, variants
from agentrl.learn.correction import CorrectionWeights, PlannedCorrection, PolicyMismatch
from agentrl.learn.loss import LossFunction, PlannedLoss, PolicyTokens
from agentrl.learn.method import LearnMethod, bind_method
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.proximal import AnchorTokens
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of
from agentrl.learn.selection import SelectionContext
from agentrl.learn.trainer import PolicyTrainer
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.learning import evidence_of, model_of

TABLES: Mapping[str, Sequence[LearnMethod[Any]]] = {slot.key: slot.methods for slot in SLOTS}

REFUSED: Mapping[str, str] = {
    "rejection divergence statistic: token_k3": "no bound is usual for it: one has to be given",
    "rejection divergence statistic: seq_sum_k3": "no bound is usual for it: one has to be given",
    "rejection divergence statistic: seq_max_k3": "no bound is usual for it: one has to be given",
}
"""Choices that are refused without another knob, and why. All the others are tested."""

UNEQUAL: Mapping[str, str] = {
    "segment_reinforce": "plain REINFORCE compares with nothing",
    "gae": "compares with the critic's values, which here are not the rewards",
    "poise": "compares with predictions, which here are not the rewards",
    "ui_s1 episode_term: row_reward": "compares turns, and of two turns one is paid",
    "tree_grpo singleton: raw": "a tree of one trajectory keeps its reward, if that is asked for",
}
"""Advantages that are not zero for equal rewards, by method or by one choice, and why."""

LONE: Mapping[str, str] = UNEQUAL | {
    "reinforce_pp": "compares with the tokens of the batch, not with a group",
}
"""Advantages of a group of one that are not zero, and why."""


def cases(slot: str) -> list[Any]:
    """Return the defaults of every method of a slot, and each value of its choices."""
    named = [
        (f"{method_of(method.section)} {words}".strip(), section)
        for method in TABLES[slot]
        for words, section in [("", method.section()), *variants(method.section)]
    ]
    return [
        pytest.param(section, id=words)
        for words, section in named
        if f"{slot} {words}" not in REFUSED
    ]


def defaults() -> list[Any]:
    """Return every method of every slot with its defaults."""
    return [
        pytest.param(slot, method.section(), id=f"{slot} {method_of(method.section)}")
        for slot, methods in TABLES.items()
        for method in methods
    ]


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_left_out_is_refused_and_says_what_is_missing(words: str) -> None:
    slot, _, choice = words.partition(" ")
    name, _, knob = choice.partition(" ")
    method = next(m for m in TABLES[slot] if method_of(m.section) == name)
    with pytest.raises(ConfigError, match="set it"):
        bind_method(TABLES[slot], dict(variants(method.section))[knob])


def is_in(exceptions: Mapping[str, str], section: ConfigSection) -> bool:
    """Return whether a section is an exception, as a method or for one of its choices."""
    name = method_of(type(section))
    same = [words for words, one in variants(type(section)) if one == section]
    return name in exceptions or any(f"{name} {words}" in exceptions for words in same)


def row_of(slot: str, section: ConfigSection) -> LearnMethod[Any]:
    """Return the row of a section."""
    return next(method for method in TABLES[slot] if method.section is type(section))


# Samples.


def tree_of(*rewards: float, logprob: float = -1.0, task: str = "t") -> Tree:
    """Return a tree of two turns per trajectory; the first two share the first turn."""
    tree = Tree(Task(prompt="q", id=task))
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))

    def turn(at: int, number: int, tokens: int) -> int:
        return tree.add(
            Node(
                parent=at,
                source="sampled",
                token_ids=tuple(2 + (len(tree.nodes) + i) % 9 for i in range(tokens)),
                turn=number,
                logprobs=(logprob, *(-1.0 - 0.1 * i for i in range(1, tokens))),
                versions=(0,) * tokens,
            )
        )

    shared: int | None = None
    for sample, reward in enumerate(rewards):
        if sample > 1 or shared is None:
            at = turn(prompt, 0, 1 + sample % 3)
            shared = tree.add(Node(parent=at, source="tool", token_ids=(4,), turn=0))
        at = turn(shared, 1, 2 + sample % 2)
        tree.end(
            Leaf(
                node=at,
                outcome=Finished(reward),
                sample=sample,
                turn_rewards=(0.0, reward),
                answer=str(reward),
                components={"milestone/1": float(reward > 0.5), "milestone_turn/1": 1.0},
            )
        )
    return tree


def group_of(*rewards: float, task: str = "t") -> TrainingGroup:
    """Return such a group with everything that a method may need."""
    (group,) = groups_of([tree_of(*rewards, task=task)])
    return replace(group, samples=tuple(evident(sample) for sample in group.samples))


def evident(sample: TrainingSample) -> TrainingSample:
    """Return a sample with all the evidence there is, 0 off its mask."""

    def numbers(scale: float) -> ndarray:
        return np.where(sample.mask, scale * np.arange(1, 1 + len(sample.mask)), 0.0)

    return replace(
        sample,
        entropies=numbers(0.1),
        proximal=numbers(-0.2),
        reference=numbers(-0.3),
        values=numbers(0.05),
        baseline=0.05,
        returns=numbers(0.04),
    )


def poisoned(sample: TrainingSample, poison: float = math.nan) -> TrainingSample:
    """Return a sample that holds a number wherever nobody may look."""

    def hole(values: ndarray | None) -> ndarray | None:
        return None if values is None else np.where(sample.mask, values, poison)

    return replace(
        sample,
        behaviour=np.where(sample.mask, sample.behaviour, poison),
        entropies=hole(sample.entropies),
        proximal=hole(sample.proximal),
        reference=hole(sample.reference),
        values=hole(sample.values),
        returns=hole(sample.returns),
    )


def silent(sample: TrainingSample) -> TrainingSample:
    """Return a sample of which no token trains, as it was before it was scored."""
    return replace(sample, mask=np.zeros_like(sample.mask), entropies=None, proximal=None)


def scored(group: TrainingGroup) -> TrainingGroup:
    """Return the group with the log-probs and entropies that a model finds."""
    (result,) = evidence_of(model_of()).score_groups([group])
    return result


def credit(section: ConfigSection, *groups: TrainingGroup) -> list[ndarray]:
    """Return the advantages where samples train; the shape of what stands elsewhere is checked."""
    samples = [sample for group in groups for sample in group.samples]
    found = bind_method(TABLES["advantage"], section)(groups)
    assert [x.shape for x in found] == [s.token_ids.shape for s in samples]
    return [x[s.mask] for x, s in zip(found, samples, strict=True)]


@pytest.mark.parametrize("section", cases("advantage"))
def test_a_group_of_one_has_no_credit_unless_it_is_asked_for(section: ConfigSection) -> None:
    (alone,) = credit(section, group_of(0.7))
    assert np.isfinite(alone).all()
    if not is_in(LONE, section) and getattr(section, "singleton", "zero") != "raw":
        assert not alone.any()


@pytest.mark.parametrize("reward", [0.0, 0.1, -3.7])
@pytest.mark.parametrize("section", cases("advantage"))
def test_equal_rewards_give_exactly_nothing(section: ConfigSection, reward: float) -> None:
    found = credit(section, group_of(*[reward] * 3), group_of(*[reward] * 6, task="other"))
    assert all(np.isfinite(x).all() for x in found)
    if not is_in(UNEQUAL, section):
        assert not any(x.any() for x in found)


@pytest.mark.parametrize("section", cases("advantage"))
def test_unequal_rewards_give_something(section: ConfigSection) -> None:
    """Guards the tests above: what is always zero would pass them."""
    found = credit(section, group_of(1.0, 0.0, 0.0, 1.0, 1.0))
    assert all(np.isfinite(x).all() for x in found)
    assert any(x.any() for x in found)


@pytest.mark.parametrize("section", cases("advantage"))
def test_a_sample_of_which_nothing_trains_breaks_no_credit(section: ConfigSection) -> None:
    group = group_of(1.0, 0.0, 0.0, 1.0)
    some = replace(group, samples=(silent(group.samples[0]), *group.samples[1:]))
    found = credit(section, scored(some))
    assert all(np.isfinite(x).all() for x in found)
    assert any(x.any() for x in found)
    nothing = replace(group, samples=tuple(silent(s) for s in group.samples))
    assert [len(x) for x in credit(section, scored(nothing))] == [0] * 4
    assert credit(section) == []


@pytest.mark.parametrize("poison", [math.nan, 77.0])
@pytest.mark.parametrize("section", cases("advantage"))
def test_credit_reads_nothing_off_the_mask(section: ConfigSection, poison: float) -> None:
    groups = group_of(1.0, 0.0, 0.0, 1.0), group_of(0.0, 1.0, task="other")
    holes = [replace(g, samples=tuple(poisoned(s, poison) for s in g.samples)) for g in groups]
    for one, other in zip(credit(section, *groups), credit(section, *holes), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("section", cases("advantage"))
def test_credit_survives_a_behaviour_log_prob_that_is_no_number(
    section: ConfigSection, broken: float
) -> None:
    group = group_of(1.0, 0.0, 0.0, 1.0)
    first = group.samples[0]
    behaviour = first.behaviour.copy()
    behaviour[np.flatnonzero(first.mask)[0]] = broken
    whole = replace(group, samples=(replace(first, behaviour=behaviour), *group.samples[1:]))
    assert all(np.isfinite(x).all() for x in credit(section, whole))


@pytest.mark.parametrize("section", cases("advantage"))
def test_credit_changes_no_sample(section: ConfigSection) -> None:
    group = group_of(1.0, 0.0, 0.0, 1.0)
    credit(section, group)
    for sample, fresh in zip(group.samples, group_of(1.0, 0.0, 0.0, 1.0).samples, strict=True):
        for key in ("behaviour", "entropies", "proximal", "values", "mask", "nodes"):
            assert np.array_equal(getattr(sample, key), getattr(fresh, key))


# Rewards.


@pytest.mark.parametrize("section", cases("reward_shaping"))
def test_a_reward_stays_a_number_and_depends_on_the_sample_alone(section: ConfigSection) -> None:
    shape = bind_method(TABLES["reward_shaping"], section)
    for sample in group_of(1.0, 0.0, -0.5).samples:
        for truncated in (False, True):
            one = replace(sample, truncated=truncated)
            assert math.isfinite(shape(one))
            assert shape(poisoned(one)) == shape(one)
            assert math.isfinite(shape(silent(one)))


@pytest.mark.parametrize("section", cases("group_reward"))
def test_a_group_reward_is_a_number_each_and_reads_nothing_off_the_mask(
    section: ConfigSection,
) -> None:
    pay = bind_method(TABLES["group_reward"], section)
    for rewards in ((1.0, 0.0, 0.0, 1.0), (0.5,)):
        group = group_of(*rewards)
        answers = ("a", None, "b", "a")
        voted = tuple(replace(s, answer=a) for s, a in zip(group.samples, answers, strict=False))
        for samples in (group.samples, voted):
            paid = pay(replace(group, samples=samples))
            assert len(paid) == len(rewards)
            assert np.isfinite(paid).all()
            hole = replace(group, samples=tuple(poisoned(sample) for sample in samples))
            assert list(pay(hole)) == list(paid)


# Selections.

MOMENT = SelectionContext(step=3, steps=10, seed=1)


@pytest.mark.parametrize("section", cases("selection"))
def test_a_selection_keeps_masks_within_what_was_sampled(section: ConfigSection) -> None:
    """Also of rows without credit, without tokens that train, and of none at all."""
    select = bind_method(TABLES["selection"], section)
    groups = group_of(1.0, 0.0, 0.0), group_of(0.7, task="lone"), group_of(1.0, 1.0, task="same")
    samples = [sample for group in groups for sample in group.samples]
    rows = [CreditedSample(s, np.full(len(s.mask), s.reward - 0.5)) for s in samples]
    rows[1] = CreditedSample(silent(rows[1].sample), rows[1].advantages)
    holes = [
        CreditedSample(poisoned(r.sample), np.where(r.mask, r.advantages, math.nan)) for r in rows
    ]
    for kept, same in zip(select(rows, MOMENT), select(holes, MOMENT), strict=True):
        assert np.isfinite(kept.advantages[kept.mask]).all()
        assert not (kept.mask & ~kept.sample.sampled).any()
        assert kept.sample.reward == same.sample.reward
        assert kept.advantages[kept.mask].tolist() == same.advantages[same.mask].tolist()
    idle = [CreditedSample(s, np.zeros(len(s.mask))) for s in samples]
    assert not any(row.advantages[row.mask].any() for row in select(idle, MOMENT))
    assert list(select([], MOMENT)) == []


# Blocks: 3 rows of 4 tokens, the second of which trains nowhere.

MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)

GAPS = (0.3, 9.0, -0.2, 1.5, 9.0, 9.0, 9.0, 9.0, -2.0, 0.1, 9.0, 9.0)
CREDIT = (1.0, 9.0, -1.0, 2.0, 9.0, 9.0, 9.0, 9.0, -1.0, -0.5, 9.0, 9.0)


def field(values: Sequence[float], mask: Tensor) -> Tensor:
    """Return a block of numbers that is 0 off the mask, as a contract says."""
    return torch.where(mask, torch.tensor(values).reshape(mask.shape), 0.0)


def counted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return turns and ages of a block."""
    turns = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
    ages = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 0], [1, 3, 0, 0]])
    return torch.where(mask, turns, 0), torch.where(mask, ages, 0)


def policy_tokens(mask: Tensor) -> tuple[PolicyTokens, Tensor]:
    """Return what a loss sees, and the log-probs that carry the gradient."""
    logprobs = field([-1 + g for g in GAPS], mask).requires_grad_()
    turns, _ = counted(mask)
    tokens = PolicyTokens(
        logprobs=torch.where(mask, logprobs, 0.0),
        proximal=field([-1.0] * 12, mask),
        behaviour=field([-1.1] * 12, mask),
        advantages=field(CREDIT, mask),
        mask=mask,
        turns=turns,
    )
    return tokens, logprobs


def settled(section: ConfigSection, tokens: PolicyTokens) -> LossFunction:
    """Return a loss; one that is planned plans with these tokens."""
    loss = bind_method(TABLES["loss"], section)
    if isinstance(loss, PlannedLoss):
        still = replace(tokens, logprobs=tokens.logprobs.detach())
        return loss.plan(still, tokens.mask.float()).loss
    return loss


def loss_and_slope(
    section: ConfigSection, tokens: PolicyTokens, logprobs: Tensor
) -> tuple[Tensor, Any]:
    """Return the losses on the mask, and the gradient of their sum."""
    found = settled(section, tokens)(tokens)
    assert found.losses.shape == found.clipped.shape == tokens.mask.shape
    masked = torch.where(tokens.mask, found.losses, 0.0)
    masked.sum().backward()
    return masked.detach(), logprobs.grad


@pytest.mark.parametrize("section", cases("loss"))
def test_a_loss_is_finite_and_has_no_gradient_off_the_mask(section: ConfigSection) -> None:
    losses, slope = loss_and_slope(section, *policy_tokens(MASK))
    assert losses.isfinite().all()
    assert slope.isfinite().all()
    assert slope[MASK].any()
    assert not slope[~MASK].any()


@pytest.mark.parametrize("section", cases("loss"))
def test_a_loss_of_nothing_is_zero_and_connected(section: ConfigSection) -> None:
    losses, slope = loss_and_slope(section, *policy_tokens(torch.zeros_like(MASK)))
    assert not losses.any()
    assert slope is not None
    assert not slope.any()


@pytest.mark.parametrize("section", cases("loss"))
def test_without_credit_there_is_no_loss_unless_idle_rows_are_needed(
    section: ConfigSection,
) -> None:
    tokens, logprobs = policy_tokens(MASK)
    idle = replace(tokens, advantages=torch.zeros_like(tokens.advantages))
    losses, slope = loss_and_slope(section, idle, logprobs)
    assert losses.isfinite().all()
    if "idle rows" not in row_of("loss", section).needs(section):
        assert not losses.any()
        assert not slope.any()


@pytest.mark.parametrize("far", [60.0, -60.0])
@pytest.mark.parametrize("section", cases("loss"))
def test_a_loss_survives_policies_that_are_far_apart(section: ConfigSection, far: float) -> None:
    tokens, logprobs = policy_tokens(MASK)
    apart = replace(tokens, proximal=tokens.proximal - far, behaviour=tokens.behaviour - far)
    losses, slope = loss_and_slope(section, apart, logprobs)
    assert losses.isfinite().all()
    assert slope.isfinite().all()


def mismatch(mask: Tensor) -> PolicyMismatch:
    """Return what corrections and rejections see."""
    turns, ages = counted(mask)
    return PolicyMismatch(
        gaps=field(GAPS, mask),
        drift=field([g / 2 for g in GAPS], mask),
        advantages=field(CREDIT, mask),
        mask=mask,
        turns=turns,
        ages=ages,
    )


def weights(section: ConfigSection, tokens: PolicyMismatch) -> CorrectionWeights:
    """Return a correction's weights; one that is planned plans with these tokens."""
    correct = bind_method(TABLES["correction"], section)
    return (correct.plan(tokens) if isinstance(correct, PlannedCorrection) else correct)(tokens)


@pytest.mark.parametrize("mask", [MASK, torch.zeros_like(MASK)], ids=["some", "none"])
@pytest.mark.parametrize("section", cases("correction"))
def test_a_correction_weighs_what_trains_and_nothing_else(
    section: ConfigSection, mask: Tensor
) -> None:
    found = weights(section, mismatch(mask))
    for block in (found.applied, found.raw):
        assert block.shape == mask.shape
        assert block.isfinite().all()
        assert (block >= 0).all()
        assert not block[~mask].any()
        assert not block.requires_grad
    assert not mask.any() or found.applied[mask].any()


@pytest.mark.parametrize("far", [60.0, -60.0])
@pytest.mark.parametrize("slot", ["correction", "rejection"])
def test_policies_that_are_far_apart_have_finite_weights(slot: str, far: float) -> None:
    tokens = mismatch(MASK)
    apart = replace(tokens, gaps=torch.where(MASK, tokens.gaps + far, 0.0))
    for case in cases(slot):
        (section,) = case.values
        if slot == "correction":
            found = weights(section, apart)
            assert found.applied.isfinite().all(), section
            assert found.raw.isfinite().all(), section
        else:
            assert bind_method(TABLES[slot], section)(apart).dtype == torch.bool


@pytest.mark.parametrize("section", cases("rejection"))
def test_a_rejection_says_of_each_token_whether_it_is_kept(section: ConfigSection) -> None:
    reject: Callable[[PolicyMismatch], Tensor] = bind_method(TABLES["rejection"], section)
    for mask in (MASK, torch.zeros_like(MASK)):
        kept = reject(mismatch(mask))
        assert (kept.shape, kept.dtype) == (mask.shape, torch.bool)
    same = replace(mismatch(MASK), gaps=torch.zeros(3, 4), drift=torch.zeros(3, 4))
    # What nobody disagrees about is kept.
    assert reject(same)[MASK].all()


@pytest.mark.parametrize("section", cases("proximal"))
def test_an_anchor_is_finite_and_carries_no_gradient(section: ConfigSection) -> None:
    anchor = bind_method(TABLES["proximal"], section)
    for mask in (MASK, torch.zeros_like(MASK)):
        found = anchor(
            AnchorTokens(
                current=field([-1.0 + g for g in GAPS], mask),
                start=field([-1.0] * 12, mask),
                behaviour=field([-1.1] * 12, mask),
                mask=mask,
                ages=counted(mask)[1],
            )
        )
        assert found.shape == mask.shape
        assert found[mask].isfinite().all()
        assert not found.requires_grad


# The whole path.


def config_of(slot: str, section: ConfigSection) -> LearnSection:
    """Return a config with one method that is not the default, and what it cannot be without."""
    several = isinstance(LearnSection.model_fields[slot].default, tuple)
    critic = CriticSection() if "values" in row_of(slot, section).needs(section) else None
    chosen: dict[str, Any] = {slot: (section,) if several else section, "critic": critic}
    return LearnSection(**chosen)


def stepped(config: LearnSection, trees: Sequence[Tree]) -> tuple[dict[str, float], list[Tensor]]:
    """Return the metrics and the weights of one step."""
    trainer = PolicyTrainer(model_of(), config, seed=0)
    figures = trainer.step(trees)
    return figures, list(trainer.weights().values())


@pytest.mark.parametrize(("slot", "section"), defaults())
def test_a_step_survives_behaviour_log_probs_that_are_no_numbers(
    slot: str, section: ConfigSection
) -> None:
    trees = [tree_of(1.0, 0.0, 0.0, logprob=math.nan), tree_of(0.0, 1.0, logprob=-math.inf)]
    figures, after = stepped(config_of(slot, section), trees)
    assert figures["engine_gap/nonfinite"] > 0
    assert all(value.isfinite().all() for value in after)
    assert math.isfinite(figures["loss"])
    assert math.isfinite(figures["grad/norm"])


@pytest.mark.parametrize(("slot", "section"), defaults())
def test_a_step_trains_and_survives_a_lone_trajectory_and_equal_rewards(
    slot: str, section: ConfigSection
) -> None:
    trees = [tree_of(1.0, 0.0, 0.0), tree_of(0.7, task="lone"), tree_of(1.0, 1.0, task="same")]
    figures, after = stepped(config_of(slot, section), trees)
    assert figures["optimizer/updates"] == 1.0
    assert all(value.isfinite().all() for value in after)

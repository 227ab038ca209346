"""What a method cannot work with is refused at load, or fails the group, and names the key.

Mutants seen caught: text read as a number; a number too large for a float; a text or a mapping
taken for rewards; numbers off the mask looked at; another shape let through; an environment not
asked; a block in the type of its first row; truth values let through; credit of a selection unread;
a loss, an anchor, a correction and a rejection of one's own that nothing looks at, or that are
given what others read; a mask that grew; weights of some rows only; a set of rewards; entropies
that one method changes for the next.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.load import load_config
from agentrl.config.section import CustomMethod
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.correction import CorrectionWeights, PolicyMismatch
from agentrl.learn.group_reward import read_rewards, reward_groups
from agentrl.learn.hint import apply_hints
from agentrl.learn.layouts.padded import pad
from agentrl.learn.loss import PolicyTokens, TokenLoss
from agentrl.learn.method import needs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.proximal import AnchorTokens
from agentrl.learn.sample import TrainingGroup, TrainingSample, entropies_of
from agentrl.learn.selection import SelectionContext
from agentrl.learn.shaping import shape_rewards
from agentrl.learn.trainer import PolicyTrainer
from agentrl.run import build
from tests.support.learning import model_of, trees_of

SILENT: list[tuple[str, Any]] = [
    ("learn.group_reward", {"name": "majority"}),
    ("learn.group_reward", {"name": "dare"}),
    ("learn.hint", {"name": "remove"}),
    ("learn.hint", {"name": "distill"}),
    ("learn.advantage", {"name": "milestones"}),
    ("learn.advantage", {"name": "nudge"}),
]
"""Methods that need to be told something, which `Doubles` does not report."""

CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"learn.advantage": {"name": "gae"}}, "learn.critic is null"),
    (
        {"learn.group_reward": {"name": "majority"}, "rollout.group_size": 1},
        "counts the votes of a group, but rollout.group_size is 1",
    ),
    (
        {"learn.group_reward": {"name": "majority"}, "curation.filter": {"name": "dapo"}},
        "curation.filter.name is dapo, which does",
    ),
    (
        {"learn.group_reward": {"name": "dare"}, "learn.reward_shaping": [{"name": "fapo"}]},
        "learn.reward_shaping has fapo",
    ),
    (
        {"learn.hint": {"name": "remove"}, "learn.correction": {"name": "none"}},
        "set learn.correction.name: tis",
    ),
    (
        {"learn.hint": {"name": "distill"}, "rollout.images": 2},
        "set rollout.images: null, or remove learn.hint",
    ),
    (
        {"learn.proximal": {"name": "snapshot"}, "learn.devices.count": 2},
        "learn.proximal.name is snapshot, which supports only one device",
    ),
    (
        {"curation.pool": {"name": "success"}, "learn.correction": {"name": "none"}},
        "curation.pool.name is success",
    ),
    (
        {"learn.advantage": {"name": "milestones"}, "rollout.group_size": 1},
        "learn.advantage.name is milestones, which compares",
    ),
    (
        {"learn.advantage": {"name": "echo", "multiplier": 1.0, "limit": 2.0}},
        "learn.advantage.multiplier is 1.0 and learn.advantage.limit is 2.0",
    ),
    ({"learn.selection": [{"name": "d3s", "samples": [0.0, 1.0]}]}, "learn.selection"),
    (
        {"learn.correction": {"name": "tis", "floor": 3.0}},
        "learn.correction.floor is 3.0 and learn.correction.cap is 2.0",
    ),
    (
        {"learn.correction": {"name": "icepop", "low": 6.0}},
        "learn.correction.low is 6.0 and learn.correction.high is 5.0",
    ),
    (
        {"learn.rejection": [{"name": "divergence", "upper": 0.5}]},
        "learn.rejection lower is 2.0 and upper is 0.5",
    ),
    (
        {"learn.rejection": [{"name": "divergence", "statistic": "token_k3"}]},
        "learn.rejection upper is null, but token_k3",
    ),
    ({"learn.critic": {}}, "learn.critic is set, but learn.advantage.name is grpo"),
    ({"learn.loss": {"name": "bapo", "high": [1.2, math.inf]}}, "learn.loss.high is [1.2, inf]"),
    ({"learn.loss": {"name": "bapo", "step_low": 1e-12}}, "learn.loss.step_low is 1e-12"),
    ({"learn.optimizer.betas": [0.9, 1.0]}, "learn.optimizer.betas"),
]


def config_file(folder: Path) -> Path:
    file = folder / "x.yaml"
    file.write_text('env: {id: "tests.support.tiny_run:Doubles"}\n')
    return file


@pytest.mark.parametrize(("key", "method"), SILENT, ids=lambda each: str(each))
def test_a_method_is_refused_of_which_the_environment_reports_nothing(
    tmp_path: Path, key: str, method: dict[str, Any]
) -> None:
    config = load_config(config_file(tmp_path), {key: method})
    env = build.build_env_factory(config, plays=False)()
    with pytest.raises(ConfigError) as refusal:
        build.check_reports(config, env)
    assert f"{key}.name is {method['name']}" in str(refusal.value)
    assert "tests.support.tiny_run:Doubles" in str(refusal.value)


@pytest.mark.parametrize(("keys", "says"), CONFLICTS, ids=[says for _, says in CONFLICTS])
def test_what_a_config_cannot_meet_is_refused_at_load(
    tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(config_file(tmp_path), keys)
    assert says in str(refusal.value)


BAD_REWARDS: list[tuple[object, str]] = [
    ([math.nan, 0.0], "sample 0: its reward is nan"),
    ([0.0, math.inf], "sample 1: its reward is inf"),
    ([0.0, -math.inf], "sample 1: its reward is -inf"),
    ([0.0, 10**400], "sample 1: its reward is 1000"),
    (["1.0", 0.0], "sample 0: its reward is '1.0'"),
    ([None, 0.0], "sample 0: its reward is None"),
    ([1.0], "1 rewards for 2 trajectories"),
    ([1.0, 0.0, 1.0], "3 rewards for 2 trajectories"),
    ([], "0 rewards for 2 trajectories"),
    (None, "it returned None; return a reward per trajectory"),
    (1.0, "it returned 1.0; return a reward per trajectory"),
    ("10", "it returned '10'; return a reward per trajectory"),
    ({0.0, 1.0}, "it returned {0.0, 1.0}; return a reward per trajectory"),
    ({0: 1.0, 1: 0.0}, "it returned {0: 1.0, 1: 0.0}; return a reward per trajectory"),
]


def groups_of_two(count: int) -> tuple[TrainingGroup, ...]:
    return TrainingBatch.from_trees(trees_of(count, group=2)).groups


@pytest.mark.parametrize(("returned", "says"), BAD_REWARDS, ids=[says for _, says in BAD_REWARDS])
def test_a_group_reward_that_is_none_fails_its_group_and_no_other(returned: Any, says: str) -> None:
    rewarded = reward_groups(
        groups_of_two(2), lambda group: returned if group.task_id == "t0" else (1.0, 0.0)
    )
    assert rewarded.places == (1,)
    (fault,) = rewarded.faults
    assert "task 't0'" in fault
    assert says in fault
    with pytest.raises(LearnError, match=r"learn\.group_reward failed for all 2 groups"):
        reward_groups(groups_of_two(2), lambda _: returned)


@pytest.mark.parametrize(
    "returned",
    [(1, 0), [True, False], np.array([1.0, 0.0]), torch.tensor([1.0, 0.0]), iter([1.0, 0.0])],
    ids=["integers", "truth", "numpy", "torch", "an iterator"],
)
def test_any_numbers_are_rewards(returned: object) -> None:
    assert read_rewards(groups_of_two(1)[0], returned) == [1.0, 0.0]


def too_few(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.zeros(len(s.mask)) for group in groups for s in group.samples][:-1]


def per_trained_token(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.zeros(s.sampled_tokens) for group in groups for s in group.samples]


def not_a_number(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.full(len(s.mask), math.nan) for group in groups for s in group.samples]


def truth_values(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.full(len(s.mask), s.reward > 0) for group in groups for s in group.samples]


def texts(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.full(len(s.mask), "1", object) for group in groups for s in group.samples]


def no_arrays(groups: Sequence[TrainingGroup]) -> Any:
    return None


def ragged(groups: Sequence[TrainingGroup]) -> Any:
    return [[1.0, [2.0]] for group in groups for _ in group.samples]


def with_gradient(groups: Sequence[TrainingGroup]) -> Any:
    return [torch.zeros(len(s.mask), requires_grad=True) for group in groups for s in group.samples]


def unknown_off_the_mask(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [np.where(s.mask, 1.0, math.nan) for group in groups for s in group.samples]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (too_few, "returned 5 arrays for 6 trajectories"),
        (per_trained_token, "task 't0' sample 0: it returned an array of shape"),
        (not_a_number, "task 't0' sample 0: the advantage of a token that trains is no finite"),
        (truth_values, "task 't0' sample 0: it returned an array of bool"),
        (texts, "task 't0' sample 0: it returned an array of object"),
        (no_arrays, "learn.advantage returned None; return an array for each trajectory"),
        (ragged, "task 't0' sample 0: it returned a list, of which no array can be made"),
        (with_gradient, "task 't0' sample 0: it returned a Tensor, of which no array can be made"),
    ],
)
def test_credit_of_ones_own_that_cannot_train_is_named_before_the_weights_move(
    function: Callable[..., Any], says: str
) -> None:
    own = CustomMethod(function=f"tests.unit.learn.test_bad_input:{function.__name__}")
    trainer = PolicyTrainer(model_of(), LearnSection(advantage=own), seed=0)
    with pytest.raises(LearnError, match=r"learn\.advantage") as failure:
        trainer.step(trees_of(3, group=2))
    assert says in str(failure.value)
    assert trainer.version == 0


def test_what_stands_off_the_mask_is_nobodys_business() -> None:
    own = CustomMethod(function="tests.unit.learn.test_bad_input:unknown_off_the_mask")
    trainer = PolicyTrainer(model_of(), LearnSection(advantage=own), seed=0)
    assert trainer.step(trees_of(3, group=2))["optimizer/skipped"] == 0


def whole_first(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [
        np.full(len(s.mask), 1 if at == 0 else -0.5)
        for group in groups
        for at, s in enumerate(group.samples)
    ]


def as_floats(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    return [values.astype(float) for values in whole_first(groups)]


def test_whole_numbers_among_advantages_cut_off_no_others() -> None:
    """Both functions return the same numbers, some of them in arrays of integers."""
    models = [model_of() for _ in range(2)]
    for model, function in zip(models, (whole_first, as_floats), strict=True):
        own = CustomMethod(function=f"tests.unit.learn.test_bad_input:{function.__name__}")
        PolicyTrainer(model, LearnSection(advantage=own), seed=0).step(trees_of(3, group=2))
    assert all(map(torch.equal, *(model.parameters() for model in models)))


def truth_advantages(
    rows: Sequence[CreditedSample], moment: SelectionContext
) -> Sequence[CreditedSample]:
    for row in rows:  # around the checks of types, which only tests have
        object.__setattr__(row, "advantages", row.advantages > 0)
    return rows


def test_a_selection_that_returns_no_numbers_is_named() -> None:
    own = CustomMethod(function="tests.unit.learn.test_bad_input:truth_advantages")
    trainer = PolicyTrainer(model_of(), LearnSection(selection=(own,)), seed=0)
    with pytest.raises(LearnError, match=r"learn\.selection, task 't0' sample 0: .* of bool"):
        trainer.step(trees_of(3, group=2))


@pytest.mark.parametrize("returned", [None, "1", 1j, np.ones(2), 10**400], ids=str)
def test_a_shaped_reward_that_is_no_number_is_named(returned: Any) -> None:
    with pytest.raises(LearnError, match=r"task 't0' sample 0: learn\.reward_shaping turned the"):
        shape_rewards(groups_of_two(1), [lambda _: returned])


def test_a_hint_function_that_returns_none_is_named() -> None:
    def lose(sample: TrainingSample) -> Any:
        return None

    with pytest.raises(LearnError, match=r"task 't0' sample 0: learn\.hint returned None"):
        apply_hints(groups_of_two(1), lose)


@needs("entropies")
def change_in_place(groups: Sequence[TrainingGroup]) -> list[np.ndarray]:
    for group in groups:
        for sample in group.samples:
            entropies_of(sample)[:] = 0.0
    return []


def test_what_was_computed_of_a_sample_cannot_be_changed_for_others() -> None:
    own = CustomMethod(function=f"{__name__}:change_in_place")
    with pytest.raises(ValueError, match="read-only"):
        PolicyTrainer(model_of(), LearnSection(advantage=own), seed=0).step(trees_of(1))


Rows = Sequence[CreditedSample]


def with_sample(row: CreditedSample, **values: Any) -> CreditedSample:
    """Return a row whose sample has other values, around the checks of types."""
    sample = copy.copy(row.sample)
    for name, value in values.items():
        object.__setattr__(sample, name, value)
    return dataclasses.replace(row, sample=sample)


def select_nothing(rows: Rows, moment: SelectionContext) -> Any:
    return None


def select_samples(rows: Rows, moment: SelectionContext) -> Any:
    return [row.sample for row in rows]


def train_the_environment(rows: Rows, moment: SelectionContext) -> Rows:
    return [with_sample(row, mask=np.arange(len(row.mask)) > 0) for row in rows]


def whole_numbers(rows: Rows, moment: SelectionContext) -> Rows:
    return [with_sample(row, mask=row.mask.astype(int)) for row in rows]


def short_weights(rows: Rows, moment: SelectionContext) -> Rows:
    return [with_sample(row, weights=np.ones(row.sample.sampled_tokens)) for row in rows]


def unknown_weights_of_rows(rows: Rows, moment: SelectionContext) -> Rows:
    return [with_sample(row, weights=np.full(len(row.mask), math.nan)) for row in rows]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (select_nothing, r"^learn\.selection returned None; return the rows that train"),
        (select_samples, r"^learn\.selection returned a TrainingSample among its rows"),
        (train_the_environment, "task 't0' sample 0: its mask has tokens that did not train"),
        (whole_numbers, "task 't0' sample 0: it returned a mask of int64"),
        (short_weights, "task 't0' sample 0: it returned an array of shape"),
        (unknown_weights_of_rows, "sample 0: the weight of a token that trains is no finite"),
    ],
)
def test_rows_of_ones_own_that_cannot_train_are_named(
    function: Callable[..., Any], says: str
) -> None:
    own = CustomMethod(function=f"{__name__}:{function.__name__}")
    trainer = PolicyTrainer(model_of(), LearnSection(selection=(own,)), seed=0)
    with pytest.raises(LearnError, match=says):
        trainer.step(trees_of(1))
    assert trainer.version == 0


def weigh_some(rows: Rows, moment: SelectionContext) -> Rows:
    twice = [with_sample(row, weights=np.full(len(row.mask), 2.0)) for row in rows[1::2]]
    return [*twice, *rows[::2]]


def weigh_all(rows: Rows, moment: SelectionContext) -> Rows:
    twice = weigh_some(rows, moment)[: len(rows[1::2])]
    return [*twice, *(with_sample(row, weights=np.ones(len(row.mask))) for row in rows[::2])]


def test_a_selection_may_give_weights_to_some_rows() -> None:
    models = [model_of() for _ in range(2)]
    for model, function in zip(models, (weigh_some, weigh_all), strict=True):
        own = CustomMethod(function=f"{__name__}:{function.__name__}")
        PolicyTrainer(model, LearnSection(selection=(own,)), seed=0).step(trees_of(1))
    assert all(map(torch.equal, *(model.parameters() for model in models)))


def test_a_block_cuts_no_row_to_the_type_of_its_first() -> None:
    assert pad([np.array([1]), np.array([0.5, 0.25])]).tolist() == [[1.0, 0.0], [0.5, 0.25]]


def scalar_loss(tokens: PolicyTokens) -> TokenLoss:
    return forced(TokenLoss, losses=token_losses(tokens).mean(), clipped=~tokens.mask)


def row_loss(tokens: PolicyTokens) -> TokenLoss:
    losses = token_losses(tokens).mean(dim=-1, keepdim=True)
    return forced(TokenLoss, losses=losses, clipped=~tokens.mask)


def unknown_loss(tokens: PolicyTokens) -> TokenLoss:
    losses = torch.where(tokens.advantages > 0, math.nan, token_losses(tokens))
    return TokenLoss(losses, torch.zeros_like(tokens.mask))


def detached_loss(tokens: PolicyTokens) -> TokenLoss:
    return TokenLoss(token_losses(tokens).detach(), torch.zeros_like(tokens.mask))


def numbers_for_flags(tokens: PolicyTokens) -> TokenLoss:
    return forced(TokenLoss, losses=token_losses(tokens), clipped=tokens.advantages)


def plain_loss(tokens: PolicyTokens) -> Any:
    return token_losses(tokens)


def token_losses(tokens: PolicyTokens) -> torch.Tensor:
    return -tokens.log_ratio.exp() * tokens.advantages


def forced(kind: type[Any], **values: Any) -> Any:
    """Return a value around the checks of types, which only tests have."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def one_anchor(tokens: AnchorTokens) -> torch.Tensor:
    return torch.tensor(-1.0)


def row_anchor(tokens: AnchorTokens) -> torch.Tensor:
    return tokens.start.mean(dim=-1, keepdim=True)


def unknown_anchor(tokens: AnchorTokens) -> torch.Tensor:
    return tokens.start - math.inf


def plain_weights(tokens: PolicyMismatch) -> Any:
    return tokens.mask.float()


def weight_per_sequence(tokens: PolicyMismatch) -> CorrectionWeights:
    ones = torch.ones(len(tokens.mask))
    return forced(CorrectionWeights, applied=ones, raw=ones, cap=1.0)


def unknown_weights(tokens: PolicyMismatch) -> CorrectionWeights:
    return CorrectionWeights(tokens.mask / 0.0, tokens.mask.float())


def keep_by_number(tokens: PolicyMismatch) -> torch.Tensor:
    return tokens.mask.float()


@pytest.mark.parametrize(
    ("slot", "function", "says"),
    [
        ("loss", scalar_loss, r"losses have the shape \[\], but there are \["),
        ("loss", row_loss, r"losses have the shape \[\d+, 1\]"),
        ("loss", unknown_loss, "losses of tokens that train are no finite numbers"),
        ("loss", detached_loss, "losses have no gradient"),
        ("loss", numbers_for_flags, r"clipped tokens are of torch\.float32"),
        ("loss", plain_loss, "the function returned a Tensor; return a TokenLoss"),
        ("proximal", one_anchor, r"log-probs have the shape \[\]"),
        ("proximal", row_anchor, r"log-probs have the shape \[\d+, 1\]"),
        ("proximal", unknown_anchor, "log-probs of tokens that train are no finite numbers"),
        ("correction", plain_weights, "returned a Tensor; return a CorrectionWeights"),
        ("correction", weight_per_sequence, r"applied weights have the shape \[\d+\]"),
        ("correction", unknown_weights, "applied weights of tokens that train are no finite"),
        ("rejection", keep_by_number, r"kept tokens are of torch\.float32"),
    ],
)
def test_what_ones_own_function_may_not_return_is_named_before_the_weights_move(
    slot: str, function: Callable[..., Any], says: str
) -> None:
    """Without a check most of these train, on another loss than the one that was meant."""
    model = model_of()
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(LearnError, match=rf"^learn\.{slot}: .*{says}"):
        PolicyTrainer(model, own_section(slot, function), seed=0).step(trees_of(1))
    assert all(map(torch.equal, before, model.parameters()))


def own_section(slot: str, function: Callable[..., Any]) -> LearnSection:
    own = CustomMethod(function=f"{__name__}:{function.__name__}")
    return LearnSection.model_validate({slot: (own,) if slot == "rejection" else own})


def loss_in_place(tokens: PolicyTokens) -> TokenLoss:
    tokens.mask.zero_()
    return TokenLoss(token_losses(tokens), tokens.mask)


def anchor_in_place(tokens: AnchorTokens) -> torch.Tensor:
    return tokens.behaviour.add_(tokens.current.mul_(0.5).sub_(0.5 * tokens.behaviour))


def anchor_beside(tokens: AnchorTokens) -> torch.Tensor:
    return tokens.behaviour + (0.5 * tokens.current - 0.5 * tokens.behaviour)


def weights_in_place(tokens: PolicyMismatch) -> CorrectionWeights:
    tokens.advantages.zero_()
    return CorrectionWeights(tokens.mask.float(), tokens.gaps.exp_())


def keep_in_place(tokens: PolicyMismatch) -> torch.Tensor:
    tokens.mask.logical_or_(tokens.mask.logical_not())
    return tokens.mask


@pytest.mark.parametrize(
    ("slot", "function", "same"),
    [
        ("loss", loss_in_place, LearnSection()),
        ("proximal", anchor_in_place, None),
        ("correction", weights_in_place, LearnSection(correction=NoCorrection())),
        ("rejection", keep_in_place, LearnSection()),
    ],
)
def test_a_function_of_ones_own_works_on_copies(
    slot: str, function: Callable[..., Any], same: LearnSection | None
) -> None:
    """What it changes in place reaches nobody else: the gradient is that of its twin."""
    section = same or own_section("proximal", anchor_beside)
    own, twin = (
        PolicyTrainer(model_of(), each, seed=0).step(trees_of(1))
        for each in (own_section(slot, function), section)
    )
    assert own["grad/norm"] == pytest.approx(twin["grad/norm"], rel=1e-5)

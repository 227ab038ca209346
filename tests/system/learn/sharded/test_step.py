"""The trainer on two and three devices: the same losses, gradients and numbers as on one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import DevicesSection, LearnSection
from agentrl.config.learning.conflicts import learning_conflicts
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import make_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.examples import spread_cases
from tests.support.learning import SECTION, VOCABULARY, model_of, trees_of
from tests.support.sharded import World, trained, world

TOLERANCE = 1e-6
"""Relative, of the norm of a parameter's gradient: the order of sums differs."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world() as opened:
        yield opened


@dataclass(frozen=True)
class Case:
    """A config, how many ranks, and how near they have to be."""

    size: int = 2
    learn: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tied: bool = True
    tolerance: float = TOLERANCE


CASES = {
    "tree": Case(),
    "tree, 3 ranks": Case(3),
    "padded, 3 ranks, untied": Case(3, {"layout": "padded"}, tied=False),
    "packed, untied": Case(2, {"layout": "packed"}, tied=False),
    "more updates": Case(2, {"minibatches": 3, "epochs": 2}),
    "an update has fewer rows than ranks": Case(3, {"minibatches": 12}),
    "sequence means, gspo": Case(2, {"loss": {"name": "gspo"}}),
    "cispo, cut": Case(3, {"loss": {"name": "cispo"}, "optimizer": {"max_grad_norm": 1e-3}}),
    "planned: m2po": Case(2, {"loss": {"name": "m2po"}, "correction": {"name": "none"}}),
    "planned: bapo": Case(3, {"loss": {"name": "bapo"}}),
    "reference and entropy": Case(2, {"kl": {"coefficient": 0.1}, "entropy_bonus": 0.01}),
    "evidence": Case(3, {"advantage": {"name": "aepo"}, "layout": "packed"}),
    "critic": Case(2, {"advantage": {"name": "gae"}, "critic": {}}),
    "shared critic": Case(3, {"advantage": {"name": "gae"}, "critic": {"shared": True}}),
    "average": Case(3, {"ema": {"decay": 0.5}}),
    "layers computed again": Case(2, {"gradient_checkpointing": True}),
    "offloaded": Case(2, {"offload": True, "kl": {"coefficient": 0.1}, "ema": {}}),
    "offloaded, bfloat16": Case(3, {"offload": True, "precision": "bfloat16"}, tolerance=0.05),
    "adapters": Case(2, {"lora": {"rank": 2}}),
    "adapters and a reference": Case(2, {"lora": {"rank": 2}, "kl": {"coefficient": 0.1}}),
    "adapters, bfloat16": Case(3, {"lora": {"rank": 2}, "precision": "bfloat16"}, tolerance=0.05),
    "bfloat16": Case(2, {"precision": "bfloat16"}, tolerance=0.05),
}


def section(changes: Mapping[str, Any]) -> LearnSection:
    optimizer = {"learning_rate": 1e-3} | changes.get("optimizer", {})
    plain = {"micro_batch_tokens": 64, **changes, "optimizer": optimizer}
    return LearnSection.model_validate(plain)


def model(*, tied: bool = True) -> PreTrainedModel:
    if tied:
        return model_of()
    untied = SECTION.model_copy(update={"tie_embeddings": False})
    return make_model(
        untied, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
    )


def unequal() -> list[Tree]:
    """A group of three answers of 1, 2 and 40 tokens, and one in which nobody is better."""
    trees: list[Tree] = []
    for name, lengths, rewards in (("a", (1, 2, 40), (1.0, 0.0, 0.5)), ("b", (3, 3), (1.0, 1.0))):
        tree = Tree(Task(prompt="q", id=name))
        prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
        for sample, (n, reward) in enumerate(zip(lengths, rewards, strict=True)):
            ids = tuple(2 + (3 * sample + 7 * k) % (VOCABULARY - 2) for k in range(n))
            at = tree.add(
                Node(
                    parent=prompt,
                    source="sampled",
                    token_ids=ids,
                    turn=0,
                    logprobs=(-2.0,) * n,
                    versions=(0,) * n,
                )
            )
            tree.end(Leaf(node=at, outcome=Finished(reward), sample=sample))
        trees.append(tree)
    return trees


BATCHES = [trees_of(3, seed=1, gap=0.3), unequal(), trees_of(2, seed=2)]


@pytest.mark.parametrize("name", spread_cases(list(CASES), 6))
def test_a_step_is_that_of_one_device(ranks: World, name: str) -> None:
    case = CASES[name]
    config = section(case.learn)
    alone = trained(ALONE, model(tied=case.tied), config, BATCHES)
    for found in ranks.run(trained, model(tied=case.tied), config, BATCHES, size=case.size):
        # Later updates begin with weights that were a little different already.
        for update, (own, wanted) in enumerate(zip(found[0], alone[0], strict=True)):
            assert_near(own, wanted, case.tolerance * (1 if update == 0 else 30))
        for own, wanted in zip(found[1], alone[1], strict=True):
            near = pytest.approx(wanted, rel=100 * case.tolerance, abs=100 * case.tolerance)
            assert own == near
        assert_near(found[2], alone[2], 1e3 * case.tolerance)
        for own, wanted in zip(found[3], alone[3], strict=True):
            assert own.owner == wanted.owner
            for name in ("advantages", "log_ratios", "entropies"):
                a, b = getattr(own, name), getattr(wanted, name)
                assert a == pytest.approx(b, abs=3e3 * case.tolerance, nan_ok=True)


def assert_near(own: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float) -> None:
    assert own.keys() == wanted.keys()
    most = max(float(each.norm()) for each in wanted.values())
    for name, value in wanted.items():
        gap = float((own[name] - value).norm())
        # A gradient that is 0 but for rounding has no relative size.
        assert gap <= tolerance * max(float(value.norm()), 0.05 * most), name


def sizes(ranks: TrainerRanks, policy: PreTrainedModel) -> tuple[int, int]:
    """Return how many numbers this rank keeps of a model that trains, and of its moments."""
    from agentrl.learn.dtensor import local

    trainer = PolicyTrainer(policy, section({}), seed=0, ranks=ranks)
    trainer.step(BATCHES[0])
    moments = trainer.optimizer.state().items()
    return (
        sum(local(p).numel() for p in trainer.model.parameters()),
        sum(local(v).numel() for name, v in moments if name.startswith("exp_avg.")),
    )


def test_a_rank_keeps_its_part_only(ranks: World) -> None:
    all_of_it = sum(p.numel() for p in model().parameters())
    for kept in zip(*ranks.run(sizes, model(), size=3), strict=True):
        assert sum(kept) == all_of_it
        assert max(kept) <= all_of_it // 3 + 200


def drawn(ranks: TrainerRanks, policy: PreTrainedModel) -> str:
    """Train with an advantage that is another one on every rank; return what is said."""
    config = section({"advantage": {"name": "custom", "function": "tests.support.sharded:differs"}})
    trainer = PolicyTrainer(policy, config, seed=0, ranks=ranks)
    torch.manual_seed(ranks.rank)
    try:
        trainer.step(BATCHES[0])
    except Exception as error:  # noqa: BLE001 - looked at by the test
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_method_that_differs_between_ranks_is_refused(ranks: World) -> None:
    for said in ranks.run(drawn, model()):
        assert said.startswith("LearnError: the credit of a batch is not the same on all 2 ranks")


class Two(TrainerRanks):
    """Says that there is another one."""

    size = 2


@pytest.mark.parametrize("proximal", ["ewma", "revised_ewma", "snapshot"])
def test_anchors_that_are_other_weights_take_one_device(proximal: str) -> None:
    config = section({"proximal": {"name": proximal}})
    with pytest.raises(ConfigError, match="supports only one device"):
        PolicyTrainer(model(), config, seed=0, ranks=Two())
    devices = DevicesSection(count=2)
    run = RunConfig.model_construct(learn=config.model_copy(update={"devices": devices}))
    found = [each for each in learning_conflicts(run) if "learn.devices.count is 2" in each]
    assert len(found) == 1


def said(
    ranks: TrainerRanks, policy: PreTrainedModel, tokens: tuple[int, ...]
) -> tuple[float, ...]:
    return PolicyTrainer(policy, section({}), seed=5, ranks=ranks).logprobs(tokens)


def test_every_rank_says_the_same_of_tokens(ranks: World) -> None:
    tokens = (2, 7, 5, 3, 11)
    alone = said(ALONE, model(), tokens)
    assert len(set(alone)) == 4
    for found in ranks.run(said, model(), tokens, size=3):
        assert found == pytest.approx(alone, rel=1e-5)

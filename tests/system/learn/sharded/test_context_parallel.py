"""Lines that ranks divide between them: the same losses, gradients and numbers as on one device.

Mutants seen to fail here: the gradient of gathered log-probs summed over ranks, parts of a backward
exchange that stay where they are, losses counted by every rank, sinks of the first heads on all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentrl.config.learn import DevicesSection, LearnSection
from agentrl.config.learning.conflicts import find_head_fault, learning_conflicts
from agentrl.config.run import MakePolicySection, RunConfig
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import make_model
from tests.support.examples import spread_cases
from tests.support.learning import VOCABULARY, trees_of
from tests.support.sharded import World, trained, world
from tests.system.learn.sharded.test_step import BATCHES, assert_near, section

TOLERANCE = 2e-6
"""Relative, of the norm of a parameter's gradient: the order of sums differs."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world(4) as opened:
        yield opened


def qwen3(kv_heads: int = 2) -> PreTrainedModel:
    shape = MakePolicySection(
        hidden_size=16, layers=2, heads=4, kv_heads=kv_heads, head_dim=8, intermediate_size=32
    )
    with torch.random.fork_rng():
        model = make_model(
            shape, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
        )
    return enlarge(model)


def gpt_oss() -> PreTrainedModel:
    """Return a model with attention sinks, and with a window in every other layer."""
    config = GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=5,
        max_position_embeddings=64,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = GptOssForCausalLM(config)
        model.set_attn_implementation("agentrl_sinks")
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
    return model


def qwen3_moe() -> PreTrainedModel:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Qwen3MoeForCausalLM(config)


def enlarge(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 6.0
    return model


MODELS = {"qwen3": qwen3, "gpt-oss": gpt_oss, "qwen3-moe": qwen3_moe}


@dataclass(frozen=True)
class Case:
    """A config, how many ranks, and how many of these divide a line."""

    size: int = 2
    context: int = 2
    learn: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str = "qwen3"
    tolerance: float = TOLERANCE


CASES = {
    "tree": Case(),
    "packed": Case(learn={"layout": "packed"}),
    "two contexts of two": Case(4),
    "two contexts, some without rows": Case(4, learn={"minibatches": 12}),
    "sequence means, gspo": Case(learn={"loss": {"name": "gspo"}}),
    "planned: m2po": Case(4, learn={"loss": {"name": "m2po"}, "correction": {"name": "none"}}),
    "reference and entropy": Case(learn={"kl": {"coefficient": 0.1}, "entropy_bonus": 0.01}),
    "evidence": Case(4, learn={"advantage": {"name": "aepo"}, "layout": "packed"}),
    "layers computed again": Case(learn={"gradient_checkpointing": True}),
    "offloaded": Case(learn={"offload": True, "ema": {}}),
    "adapters": Case(learn={"lora": {"rank": 2}}),
    "head in chunks": Case(learn={"head_chunk_tokens": 5}),
    "bfloat16": Case(learn={"precision": "bfloat16"}, tolerance=0.05),
    "sinks and windows": Case(model="gpt-oss"),
    "sinks and windows, packed": Case(4, model="gpt-oss", learn={"layout": "packed"}),
    "experts": Case(model="qwen3-moe"),
}


@pytest.mark.parametrize("name", spread_cases(list(CASES), 6))
def test_a_step_is_that_of_one_device(ranks: World, name: str) -> None:
    case = CASES[name]
    config = section(case.learn)
    make = MODELS[case.model]
    alone = trained(ALONE, make(), config, BATCHES)
    given = {"size": case.size, "context": case.context}
    for result in ranks.run(trained, make(), config, BATCHES, **given):
        for update, (own, wanted) in enumerate(zip(result[0], alone[0], strict=True)):
            assert_near(own, wanted, case.tolerance * (1 if update == 0 else 30))
        for own, wanted in zip(result[1], alone[1], strict=True):
            assert own == pytest.approx(wanted, rel=100 * case.tolerance, abs=100 * case.tolerance)
        assert_near(result[2], alone[2], 1e3 * case.tolerance)
        for own, wanted in zip(result[3], alone[3], strict=True):
            for name in ("advantages", "log_ratios", "entropies"):
                a, b = getattr(own, name), getattr(wanted, name)
                assert a == pytest.approx(b, abs=3e3 * case.tolerance, nan_ok=True)


def widest(ranks: TrainerRanks, policy: PreTrainedModel) -> int:
    """Return the most places that a layer was given at once in a step."""
    from agentrl.learn.token_logprobs import decoder

    trainer = PolicyTrainer(policy, section({"layout": "packed"}), seed=0, ranks=ranks)
    lengths = [0]

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        lengths.append(arguments[0].shape[1])

    for layer in decoder(trainer.model).layers:
        layer.register_forward_pre_hook(note)
    trainer.step(trees_of(3, seed=1))
    return max(lengths)


def test_a_rank_computes_its_places_only(ranks: World) -> None:
    alone = widest(ALONE, qwen3())
    for size in ranks.run(widest, qwen3(), context=2):
        assert size == -(-alone // 2)


def failure(ranks: TrainerRanks, policy: PreTrainedModel) -> str:
    try:
        PolicyTrainer(policy, section({}), seed=0, ranks=ranks)
    except Exception as error:  # noqa: BLE001 - looked at by the test
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_model_whose_heads_do_not_divide_is_refused(ranks: World) -> None:
    for error in ranks.run(failure, qwen3(kv_heads=1), context=2):
        assert error == (
            "ConfigError: learn.devices.context_parallel is 2, which does not divide the model's 4 "
            "attention heads and 1 key-value heads: set it to 1"
        )


@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads", "way_out"),
    [(2, 32, 8, ""), (8, 32, 8, ""), (16, 32, 8, "1 or 2 or 4 or 8"), (3, 12, 4, "1 or 2")],
)
def test_heads_divide_or_the_sizes_that_do_are_named(
    ranks: int, heads: int, kv_heads: int, way_out: str
) -> None:
    fault = find_head_fault(ranks, heads=heads, kv_heads=kv_heads)
    assert fault.rpartition("set it to ")[2] == way_out


@pytest.mark.parametrize(
    ("learn", "words"),
    [
        ({}, "does not divide learn.devices.count, 3"),
        ({"layout": "padded"}, "learn.layout: packed, or tree"),
        ({"critic": {}}, "learn.critic needs whole contexts"),
    ],
)
def test_what_cannot_be_divided_is_refused_at_load(learn: dict[str, Any], words: str) -> None:
    count = 2 if learn else 3
    devices = DevicesSection(count=count, context_parallel=2)
    config = LearnSection.model_validate(learn).model_copy(update={"devices": devices})
    run = RunConfig.model_construct(learn=config)
    (conflict,) = [each for each in learning_conflicts(run) if "context_parallel" in each]
    assert words in conflict

"""Low-rank adapters. Mutants applied by hand and seen caught:

- adapters not added to the weights: engine test; sums rounded to the base's type, adapters in
  bfloat16, rank for alpha: bfloat16 test
- shared weights not looked for; alpha or base no part of a checkpoint's identity: refusal tests
- dropout never, or always: dropout test; seed ignored, or set globally: seed test
- peft's prefix left out of the adapter's file: checkpoint test
"""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.config.learn import AdamWSection, LearnSection, LoraSection
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError
from agentrl.learn.checkpoint import load
from agentrl.learn.lora import find_absent_targets
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import GenerateRequest
from tests.support.engine_models import tiny
from tests.support.learning import model_of, save, trees_of

IDS = torch.arange(2, 12)[None]


def section(**changes: Any) -> LearnSection:
    """Return a section with adapters of rank 3 that move fast."""
    lora = LoraSection(rank=3, alpha=5.0).model_copy(update=changes.pop("lora", {}))
    return LearnSection(lora=lora, optimizer=AdamWSection(learning_rate=0.05), **changes)


def trained(model: PreTrainedModel, steps: int = 2, **changes: Any) -> PolicyTrainer:
    """Return a trainer after some steps."""
    trainer = PolicyTrainer(model, section(**changes), seed=0)
    for version in range(steps):
        trainer.step(trees_of(version=version, seed=version))
    return trainer


def logits_of(model: Any) -> Tensor:
    """Return the logits for a few tokens."""
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_only_adapters_train_and_only_they_are_in_the_optimisers_state() -> None:
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = logits_of(model)
    trainer = PolicyTrainer(model, section(), seed=0)
    torch.testing.assert_close(logits_of(model), expected)
    for version in range(2):
        trainer.step(trees_of(version=version))
    assert (logits_of(model) - expected).abs().max() > 0.01
    named = {name.split(".", 1)[1] for name in trainer.optimizer.state()}
    assert named
    assert all(".lora_" in name for name in named)
    for name, value in model.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")])


async def scored_by_engine(engine: LocalEngine, model: Any) -> float:
    """Return the largest gap, in nats, between the engine's log-probs and a model's."""
    request = GenerateRequest(id="a", prompt=(2, 3, 4), max_new_tokens=20, seed=1)
    done = await engine.generate(request)
    ids = torch.tensor([[*request.prompt, *done.token_ids]])
    with torch.no_grad():
        logs = model(input_ids=ids).logits[0].log_softmax(dim=-1)
    at = range(len(request.prompt), ids.shape[1])
    found = torch.stack([logs[t - 1, ids[0, t]] for t in at])
    return float((found - torch.tensor(done.logprobs)).abs().max())


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
async def test_the_engine_samples_from_what_the_trainer_scores(name: str) -> None:
    """GPT-2 has transposed weights, and the engine's other decoder."""
    model = tiny(name)
    async with LocalEngine(model, slots=1, context_tokens=64) as engine:
        trainer = trained(model)
        assert await scored_by_engine(engine, model) > 0.01
        await engine.load(trainer.weights(), trainer.version)
        assert await scored_by_engine(engine, model) < 1e-5


def test_weights_have_their_hugging_face_names() -> None:
    plain = model_of().state_dict()
    weights = trained(model_of()).weights()
    assert {n: v.shape for n, v in weights.items()} == {n: v.shape for n, v in plain.items()}
    assert not any(value.requires_grad for value in weights.values())


def test_an_adapters_part_survives_a_bfloat16_base() -> None:
    trainer = PolicyTrainer(model_of(), section(precision="bfloat16"), seed=0)
    name = "model.layers.0.mlp.up_proj"
    layer: Any = trainer.model.get_submodule(name)
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(1e-3)
        layer.lora_B["default"].weight.fill_(1e-3)
    weight = trainer.weights()[f"{name}.weight"]
    part = weight - layer.base_layer.weight.float()
    torch.testing.assert_close(part, torch.full_like(part, 5 / 3 * 3e-6), rtol=0.1, atol=0)
    assert layer.base_layer.weight.dtype == torch.bfloat16
    assert layer.lora_A["default"].weight.dtype == torch.float32


def saved(trainer: PolicyTrainer, folder: Path) -> Path:
    """Return a checkpoint."""
    return save(folder, trainer)


# peft asks transformers for what transformers renamed.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_a_checkpoint_is_a_model_folder_and_an_adapter_of_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = trained(model_of())
    made = saved(trainer, tmp_path)
    expected = logits_of(trainer.model)
    whole = AutoModelForCausalLM.from_pretrained(made)
    torch.testing.assert_close(logits_of(whole), expected, atol=1e-5, rtol=1e-5)
    adapted = PeftModel.from_pretrained(model_of(), str(made / "adapter"))
    torch.testing.assert_close(logits_of(adapted), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("seed", "lora", "named"),
    [
        (1, {}, "adapter 'base'"),
        (0, {"alpha": 6.0}, "adapter 'alpha' is '5.0' there and '6.0' here"),
        (0, {"rank": 4}, "tensors 'model.layers.0.mlp.down_proj.lora_A"),
    ],
)
def test_an_adapter_of_something_else_is_refused(
    tmp_path: Path, seed: int, lora: dict[str, Any], named: str
) -> None:
    made = saved(trained(model_of()), tmp_path)
    with pytest.raises(ConfigError, match=named):
        load(made, PolicyTrainer(model_of(seed), section(lora=lora), seed=0))


def test_targets_are_chosen_by_name() -> None:
    trainer = PolicyTrainer(
        model_of(), section(lora={"targets": ("q_proj", "1.mlp.up_proj")}), seed=0
    )
    names = {name.split(".lora_")[0] for name in trainer.optimizer.weights()}
    assert names == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    }


def test_a_target_is_there_by_the_last_parts_of_a_name() -> None:
    names = ["model.layers.0.self_attn.q_proj", "model.layers.10.mlp.up_proj", "lm_head"]
    there = ["q_proj", "self_attn.q_proj", "10.mlp.up_proj", "lm_head", names[0]]
    assert find_absent_targets(names, there) == []
    absent = ["proj", "0.mlp.up_proj", "head", "layers", "q_proj.weight"]
    assert find_absent_targets(names, absent) == absent


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        (("nowhere",), r"names nowhere, but Qwen3ForCausalLM has no such modules; there are down_"),
        (("v_proj", "k_prj"), r"names k_prj, but .* similar ones are k_proj"),
        (("self_attn",), "does not fit"),
        (("lm_head",), "tied embeddings"),
    ],
)
def test_targets_that_cannot_be_adapted_are_an_error(targets: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PolicyTrainer(model_of(), section(lora={"targets": targets}), seed=0)


def test_dropout_acts_in_passes_with_gradient_only() -> None:
    trainer = trained(model_of(), lora={"dropout": 0.5})
    model = cast(Any, trainer.model)
    assert torch.equal(logits_of(model), logits_of(model))
    torch.manual_seed(0)
    first, second = (model(input_ids=IDS).logits.detach() for _ in range(2))
    assert (first - second).abs().max() > 0.01
    assert torch.equal(logits_of(model), logits_of(model))


def test_the_same_seed_makes_the_same_adapters_and_touches_no_global_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    one, same, other = (PolicyTrainer(model_of(), section(), seed=s).optimizer for s in (0, 0, 1))
    assert torch.equal(torch.rand(()), expected)
    name = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert torch.equal(one.weights()[name], same.weights()[name])
    assert not torch.equal(one.weights()[name], other.weights()[name])

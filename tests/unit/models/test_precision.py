"""bfloat16 over float32 master weights, and layers computed again. Mutants applied by hand and seen
caught:

- buffers rounded too, nothing rounded, weights not published: rounded-master test
- masters rounded after each update; gradients added in bfloat16, or not added, or left at the
  parameter: tiny-update and collection tests
- layers not in training mode, or all that is in them too; dropping out not noticed: layer tests
"""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM

from agentrl.config.learn import AdamWSection, LearnSection, LoraSection
from agentrl.errors import ConfigError
from agentrl.learn.optimizer import AdamW
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model, prepare
from agentrl.models.precision import MasterWeight
from tests.support.learning import assert_close, gradients, model_of, rows_of, trees_of

HALF = LearnSection(precision="bfloat16", optimizer=AdamWSection(learning_rate=0.01))


def test_an_update_that_bfloat16_would_lose_is_kept() -> None:
    layer = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(layer.weight)
    optimizer = AdamW(layer, AdamWSection(learning_rate=1e-4))
    seen: list[float] = []
    for _ in range(100):
        layer(torch.ones(1, dtype=torch.bfloat16)).sum().backward()
        optimizer.update()
        seen.append(layer.weight.item())
    # A step of 1e-4 is 1/40 of the distance between two bfloat16 numbers below 1.
    assert seen[0] == 1.0
    assert optimizer.weights()["weight"].item() == pytest.approx(0.99, abs=1e-5)
    assert seen[-1] == torch.tensor(0.99).to(torch.bfloat16).item()


def test_a_gpu_without_bfloat16_is_refused_by_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def emulates(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", emulates)

    def name_of(device: object) -> str:
        return f"Tesla T4 ({device})"

    monkeypatch.setattr(torch.cuda, "get_device_name", name_of)
    model = model_of()
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"^policy.dtype is bfloat16, which Tesla T4 "):
        load_model(tmp_path, dtype="bfloat16", device="cuda:0")
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    with pytest.raises(ConfigError, match=r"^learn.precision is bfloat16, which Tesla T4 "):
        prepare(model, HALF, seed=0)
    assert prepare(model, LearnSection(), seed=0) is model


def test_gradients_are_collected_in_float32() -> None:
    parameter = nn.Parameter(torch.zeros((), dtype=torch.bfloat16))
    master = MasterWeight.for_parameter(parameter)
    for gradient in (1.0, 2**-9, 2**-9):
        (parameter * gradient).backward()
    assert master.weight.grad is not None
    assert master.weight.grad.item() == 1 + 2**-8
    assert parameter.grad is None


def test_float32_has_no_second_copy() -> None:
    model = model_of()
    optimizer = AdamW(model, AdamWSection())
    named = dict(model.named_parameters())
    assert all(v.data_ptr() == named[n].data_ptr() for n, v in optimizer.weights().items())


def test_a_trainer_computes_in_bfloat16_and_its_policy_is_the_rounded_master() -> None:
    model = model_of()
    frequencies = cast(Tensor, cast(Any, model).model.rotary_emb.inv_freq).clone()
    trainer = PolicyTrainer(model, HALF, seed=0)
    start = {name: value.clone() for name, value in trainer.optimizer.weights().items()}
    seen: list[torch.dtype] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        seen.append(output.last_hidden_state.dtype)

    model.get_decoder().register_forward_hook(note)
    for version in range(3):
        metrics = trainer.step(trees_of(version=version))
        assert metrics["grad/norm"] > 0
    assert set(seen) == {torch.bfloat16}
    weights, masters = trainer.weights(), trainer.optimizer.weights()
    for name, master in masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(weights[name], master.to(torch.bfloat16))
    assert any((masters[name] - value).abs().max() > 0.02 for name, value in start.items())
    assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
    assert torch.equal(cast(Any, model).model.rotary_emb.inv_freq, frequencies)
    kinds = {value.dtype for value in trainer.optimizer.state().values()}
    assert kinds == {torch.float32}


def test_bfloat16_finds_about_the_gradient_of_float32() -> None:
    found: list[Tensor] = []
    for precision in ("float32", "bfloat16"):
        config = HALF.model_copy(update={"precision": precision, "minibatches": 1})
        trainer = PolicyTrainer(model_of(scale=2.0), config, seed=0)
        before = trainer.optimizer.weights()["model.norm.weight"].clone()
        trainer.step(trees_of())
        found.append(trainer.optimizer.weights()["model.norm.weight"] - before)
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=0) > 0.9


class Kept:
    """Counts the numbers that a forward pass keeps for the backward one."""

    def __init__(self) -> None:
        self.numbers = 0

    def __call__(self, value: Tensor) -> Tensor:
        """Count and keep."""
        self.numbers += value.numel()
        return value


@pytest.mark.parametrize("lora", [None, LoraSection(rank=2)])
def test_layers_computed_again_give_the_same_gradient(lora: LoraSection | None) -> None:
    found: list[Tensor] = []
    kept: list[int] = []
    for again in (False, True):
        config = LearnSection(gradient_checkpointing=again, lora=lora)
        model = prepare(model_of(), config, seed=0)
        counter = Kept()
        with torch.autograd.graph.saved_tensors_hooks(counter, lambda x: x):
            found.append(gradients(model, rows_of(trees_of(gap=0.5)), config))
        kept.append(counter.numbers)
    assert torch.equal(found[0], found[1])
    assert_close(found[0], found[1])
    assert kept[1] < 0.5 * kept[0]


def test_nothing_but_the_layers_is_in_training_mode() -> None:
    model = prepare(model_of(), LearnSection(gradient_checkpointing=True), seed=0)
    training = {type(module).__name__ for module in model.modules() if module.training}
    assert training == {"Qwen3DecoderLayer"}


def test_layers_that_drop_out_by_themselves_are_not_computed_again() -> None:
    config = OPTConfig(
        vocab_size=12,
        hidden_size=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        word_embed_proj_dim=16,
        dropout=0.5,
    )
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match="OPTForCausalLM apply dropout"):
        prepare(OPTForCausalLM(config), LearnSection(gradient_checkpointing=True), seed=0)

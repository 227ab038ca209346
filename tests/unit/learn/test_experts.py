"""Models with experts: adapters of their attention, and what is refused by name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.config.learn import AdamWSection, LearnSection, LoraSection
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError
from agentrl.learn.lora import adapt
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import GenerateRequest
from agentrl.run.build_engine import check_file_shapes
from tests.support.engine_models import tiny
from tests.support.learning import VOCABULARY, trees_of


def expert_model() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            moe_intermediate_size=8,
            num_experts=4,
            num_experts_per_tok=2,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=False,
        )
    ).eval()


@pytest.mark.parametrize("targets", ["all-linear", ("down_proj",), ("experts",)])
def test_adapters_of_experts_are_refused_by_name(targets: Any) -> None:
    with pytest.raises(ConfigError, match=r"learn\.lora\.targets=.*[Ee]xperts"):
        adapt(expert_model(), LoraSection(rank=2, targets=targets), seed=0)


async def test_adapters_of_the_attention_train_and_reach_the_engine() -> None:
    model = expert_model()
    engine = LocalEngine(model, slots=2, context_tokens=64)
    lora = LoraSection(rank=2, targets=("q_proj", "v_proj"))
    section = LearnSection(lora=lora, optimizer=AdamWSection(learning_rate=0.05))
    trainer = PolicyTrainer(model, section, seed=0)
    for version in range(2):
        trainer.step(trees_of(version=version, seed=version))
    async with engine:
        await engine.load(trainer.weights(), trainer.version)
        request = GenerateRequest(id="a", prompt=(2, 3, 4), max_new_tokens=12, seed=1)
        completion = await engine.generate(request)
    ids = torch.tensor([[*request.prompt, *completion.token_ids]])
    with torch.no_grad():
        logprobs = trainer.model(input_ids=ids).logits[0].log_softmax(-1)
    expected = [float(logprobs[at - 1, ids[0, at]]) for at in range(3, ids.shape[1])]
    assert list(completion.logprobs) == pytest.approx(expected, abs=1e-4)


def test_vllm_is_given_no_weights_that_files_hold_in_another_shape(tmp_path: Path) -> None:
    for name, model in (("experts", expert_model()), ("dense", tiny("qwen3"))):
        model.save_pretrained(tmp_path / name)
    dense: Any = SimpleNamespace(path=tmp_path / "dense", model=tiny("qwen3"))
    check_file_shapes(dense)
    experts: Any = SimpleNamespace(path=tmp_path / "experts", model=expert_model())
    with pytest.raises(ConfigError, match="Qwen3MoeForCausalLM trains weights") as refused:
        check_file_shapes(experts)
    assert "engine.kind: local" in str(refused.value)

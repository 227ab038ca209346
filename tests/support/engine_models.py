"""Tiny random models and requests for the engine tests."""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.spec import EngineSpec
from agentrl.policy import GenerateRequest

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAST = ("qwen3", "qwen2", "llama", "mistral")
MODELS = (*FAST, "gpt2")


def recipe_in(folder: Path, model: PreTrainedModel, *, context_tokens: int) -> EngineSpec:
    """Return what a local engine in another process is made by; its policy is saved there."""
    train_tokenizer(["some words"], vocab_size=VOCABULARY, folder=folder)
    model.save_pretrained(folder)
    return EngineSpec(
        kind="local", folder=str(folder), slots=4, context_tokens=context_tokens, threads=1
    )


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """Return a fresh random model; between them they have every feature the fast decoder knows."""
    torch.manual_seed(seed)
    model: PreTrainedModel
    sizes: dict[str, Any]
    match name:
        case "qwen3":  # tied head, query and key norms, two query heads per key head
            model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True))
        case "qwen2":  # biases, four query heads on one key head
            sizes = {**SIZES, "num_key_value_heads": 1}
            model = Qwen2ForCausalLM(Qwen2Config(**sizes))
        case "llama":  # untied head, one query head per key head, scaled RoPE, biases everywhere
            sizes = {**SIZES, "num_key_value_heads": 4, "rope_parameters": LLAMA3_ROPE}
            model = LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True, mlp_bias=True))
        case "mistral":
            model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None))
        case _:
            sizes: dict[str, Any] = {
                "vocab_size": VOCABULARY,
                "n_positions": 2048,
                "bos_token_id": None,
            }
            config = GPT2Config(**sizes, eos_token_id=None, n_embd=64, n_layer=2, n_head=4)
            model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            # Fresh models have norms of 1 and biases of 0, which would hide how they are used.
            weight += 0.05 * torch.randn_like(weight)
    return model.eval()


@cache
def shared(name: str) -> PreTrainedModel:
    """Return a model that no test may change."""
    return tiny(name)


def logits_of(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Return (completion, vocabulary) float32 logits of a plain full-sequence forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0]
    return logits[len(prompt) - 1 : -1].float()


def requests(count: int, *, seed: int = 0, **changes: Any) -> list[GenerateRequest]:
    """Return requests of mixed prompt and completion lengths."""
    rng = random.Random(seed)

    def one(index: int) -> GenerateRequest:
        size = rng.choice((1, 2, 7, 64, 90, 150))
        given: dict[str, Any] = {
            "id": f"r{seed}-{index}",
            "prompt": tuple(rng.randrange(VOCABULARY) for _ in range(size)),
            "max_new_tokens": rng.choice((1, 3, 20, 45, 70)),
            "seed": index,
        }
        return GenerateRequest(**{**given, **changes})

    return [one(index) for index in range(count)]


def prompt_of(count: int, seed: int = 0) -> tuple[int, ...]:
    """Return a random prompt."""
    rng = random.Random(f"prompt {seed}")
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))

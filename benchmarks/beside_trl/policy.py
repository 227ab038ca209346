"""The policies that both contenders begin with, made once and kept."""

import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.config.load import load_config
from agentrl.models.quiet import no_bars
from agentrl.run.train import warmstart
from benchmarks.beside_trl import game
from benchmarks.beside_trl.ours import config_file

VOCABULARY = 4096
CONTEXT_TOKENS = 1024
WARM_STEPS = 220
MADE_WARMSTART = {"learning_rate": 2e-3, "warmup_steps": 20}
"""Of the made policy."""
RELEASED_WARMSTART = {"learning_rate": 1e-4, "warmup_steps": 2}
"""Of a model that was trained before."""
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
WRITTEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPLIT = Regex(r"[0-9]|\s?[A-Za-z]+|\s?[^\sA-Za-z0-9]+|\s+")


def random_policy(folder: Path, template: str) -> Path:
    """Make a Qwen3 of 4.2 M random weights that speaks with this chat template."""
    if not folder.exists():
        torch.manual_seed(0)
        tokenizer = _tokenizer(template)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY,
                hidden_size=256,
                intermediate_size=768,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=64,
                max_position_embeddings=CONTEXT_TOKENS,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=cast("int", tokenizer.eos_token_id),
                pad_token_id=cast("int", tokenizer.pad_token_id),
            )
        )
        partial = folder.with_name(f".{folder.name}.partial")
        with no_bars():
            model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    return folder


def released_policy(folder: Path, model: Path, template: str) -> Path:
    """Copy a released model that speaks ChatML, with this chat template."""
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.copytree(model, partial, dirs_exist_ok=True)
        (partial / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer = AutoTokenizer.from_pretrained(partial)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    return folder


def warm_policy(
    folder: Path,
    begin: Path,
    *,
    env: str = "Guessing",
    steps: int = WARM_STEPS,
    warmstart_keys: Mapping[str, float] = MADE_WARMSTART,
) -> Path:
    """Teach a policy to play the game, half of the time badly; takes minutes."""
    if not folder.exists():
        run = folder.with_name(f"{folder.name}-run")
        shutil.rmtree(run, ignore_errors=True)  # of a call that was stopped
        values: dict[str, Any] = {
            "run": {"name": run.name, "folder": str(run.parent), "threads": 1},
            "env": {"id": f"benchmarks.beside_trl.envs:{env}"},
            "policy": {"path": str(begin)},
            "engine": {"context_tokens": CONTEXT_TOKENS},
            "warmstart": {
                "steps": steps,
                "batch_size": 16,
                "demonstrations": 16 * min(steps, 125),
                **warmstart_keys,
                # All demonstrations begin alike: a quarter of the time that padded rows take.
                "layout": "tree",
            },
        }
        config = load_config(config_file(values, run.with_suffix(".yaml")))
        warmstart(config).rename(folder)
    return folder


def _tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of words and single digits, as large as the model's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SPLIT, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(WRITTEN),
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(template), trainer)
    tokenizer.add_tokens(list(WRITTEN))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def _texts(template: str) -> Iterator[str]:
    """Yield what the task says, and made-up words that fill the vocabulary."""
    drawn = random.Random(0)
    own = [template, game.SHORT.system, game.WORDS, game.question(1), str(game.Host.guess.__doc__)]
    for _ in range(50):
        yield from own
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=drawn.randint(1, 4))) for _ in range(8000)]
    for _ in range(4000):
        yield " ".join(drawn.choices(words, k=12))

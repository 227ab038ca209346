"""Folders of models and tokenizers that are damaged: each is an error that says what was read.

Mutants seen caught: only `OSError` and `ValueError` taken for damage; the type of an error left
out; memory that is short taken for damage; transformers' advice to run a folder's code; an adapter
beside the weights put on.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.errors import ConfigError
from agentrl.models.folders import load_model, load_skeleton, load_tokenizer
from agentrl.plan.model_shape import shape_at


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_file_in_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    train_tokenizer(["What is it?"], vocab_size=300, folder=tmp_path)
    (tmp_path / name).write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(ConfigError, match=f"cannot be read by AutoTokenizer: {name} is not UTF-8"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[]", "TypeError: "),
        ("{}", "KeyError: 'added_tokens'"),
        ("null", "AttributeError: "),
        ("{", "Expecting property name"),
        ("[" * 100_000, "RecursionError: "),
        ({"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}, "expected u32"),
        ({"added_tokens": [{"id": -1}]}, "expected u32"),
    ],
    ids=["list", "object", "null", "cut", "deep", "vocabulary", "added"],
)
def test_a_damaged_tokenizer_is_told(
    tmp_path: Path, written: str | dict[str, object], problem: str
) -> None:
    train_tokenizer(["What is it?"], vocab_size=300, folder=tmp_path)
    file = tmp_path / "tokenizer.json"
    if not isinstance(written, str):
        written = json.dumps(json.loads(file.read_text(encoding="utf-8")) | written)
    file.write_text(written, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"cannot be read by AutoTokenizer: .*{problem}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[]", "model_type"),
        ('{"model_type": "nope"}', "nope"),
        ('{"model_type": "qwen3", "hidden_size": "x"}', "hidden_size"),
        ('{"model_type": "qwen3", "num_hidden_layers": null}', "num_hidden_layers"),
    ],
)
def test_a_damaged_config_is_told(tmp_path: Path, written: str, problem: str) -> None:
    (tmp_path / "config.json").write_text(written, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"policy.path=.* cannot be read by .*{problem}"):
        load_model(tmp_path, dtype="float32", device="cpu")


def _write_config(**fields: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields), encoding="utf-8")

    return write


def _write_tensors(**tensors: Tensor | None) -> Callable[[Path], None]:
    """Put tensors in the place of those whose names end so; None removes them."""

    def write(folder: Path) -> None:
        file = folder / "model.safetensors"
        state = load_file(file)
        for end, tensor in tensors.items():
            names = [name for name in state if name.replace(".", "_").endswith(end)]
            state |= dict.fromkeys(names, tensor) if tensor is not None else {}
            state = {k: v for k, v in state.items() if tensor is not None or k not in names}
        save_file(state, file, metadata={"format": "pt"})

    return write


MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_write_tensors(layers_0_mlp_gate_weight=None), r"0\.mlp\.gate\.weight is in none"),
        (_write_config(tie_word_embeddings=False), r"lm_head\.weight is in none of its files\."),
        (_write_config(num_hidden_layers=2), r"layers\.1.* is in none of .*; and \d+ more\."),
        (
            _write_tensors(layers_0_self_attn_k_norm_weight=torch.ones(3)),
            r"k_norm\.weight is \[3\] in its files and \[8\] by its config\.json\. They would",
        ),
        (_write_tensors(experts_1_up_proj_weight=None), "cannot be read by .*conversion"),
    ],
    ids=["removed", "untied", "layers", "shape", "expert"],
)
def test_tensors_that_would_begin_as_random_numbers_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, **MOE}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    copy = load_model(tmp_path, dtype="float32", device="cpu")
    assert all(torch.equal(copy.state_dict()[k], v) for k, v in model.state_dict().items())
    del copy  # its weights are in the file
    damage(tmp_path)
    with pytest.raises(ConfigError, match=rf"policy\.path='.*{problem}"):
        load_model(tmp_path, dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.layers.0.self_attn.q_proj.weight_scale", torch.ones(1)),
        ("model.layers.0.self_attn.k_proj.bias", torch.ones(8)),
    ],
)
def test_tensors_that_layers_have_no_place_for_are_refused(
    tmp_path: Path, name: str, tensor: Tensor
) -> None:
    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, **MOE}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    # What a layer of transformers had before, or another part of a model, is no fault.
    older = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": tensor,
        "mtp.norm.weight": tensor.clone(),
    }
    state = load_file(file)
    save_file(state | older, file, metadata={"format": "pt"})
    load_model(tmp_path, dtype="float32", device="cpu")
    save_file(state | {name: tensor}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"more weights than the layers .*describes: {name}\. "):
        load_model(tmp_path, dtype="float32", device="cpu")


@pytest.mark.parametrize(
    "fields", [{"pad_token_id": 16}, {"_attn_implementation": "flash_attention_2"}]
)
def test_a_config_that_makes_no_model_has_no_skeleton(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1}
    config = {"model_type": "qwen3", **sizes, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_skeleton(tmp_path) is None


@pytest.mark.parametrize("method", ["fp8", "gptq"])
def test_quantised_weights_are_refused(tmp_path: Path, method: str) -> None:
    config = {"model_type": "qwen3", "quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for load in (
        lambda: load_model(tmp_path, dtype="float32", device="cpu"),
        lambda: shape_at(str(tmp_path)),
    ):
        with pytest.raises(ConfigError, match=rf"has weights that are quantised \({method}, .*"):
            load()


HOST = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: "
MAPPED = "unable to mmap 302 bytes from file <model.safetensors>: Cannot allocate memory (12)"


@pytest.mark.parametrize(
    "error",
    [RuntimeError(HOST), RuntimeError(MAPPED), MemoryError("3 GiB"), torch.OutOfMemoryError("3")],
    ids=["host", "mapped", "python", "device"],
)
def test_memory_that_is_short_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise error

    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", allocate)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "qwen3"
    with pytest.raises(type(error)) as failure:
        load_model(tmp_path, dtype="float32", device="cpu")
    assert failure.value is error


@pytest.mark.parametrize("leaves_config", [True, False])
def test_an_adapter_beside_the_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_config: bool
) -> None:
    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, **MOE}
    sizes |= {"num_attention_heads": 2, "head_dim": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))
    model.save_pretrained(tmp_path)
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    if not leaves_config:  # as one of the hub, of which there is no folder here
        monkeypatch.setattr("agentrl.models.folders.ADAPTER_CONFIG", "elsewhere")
    with pytest.raises(ConfigError, match=r"holds a LoRA adapter .*merge_and_unload"):
        load_model(tmp_path, dtype="float32", device="cpu")


def test_code_in_a_folder_is_not_run_and_not_advised(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it was run')\n", encoding="utf-8")
    auto = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    config = {"model_type": "mine", "auto_map": auto}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["mine.Tokenizer", None]}}), encoding="utf-8"
    )
    for load in (
        lambda: load_model(tmp_path, dtype="float32", device="cpu"),
        lambda: load_tokenizer(tmp_path),
        lambda: shape_at(str(tmp_path)),
    ):
        with pytest.raises(ConfigError, match=r"has code of its own .*does not run") as found:
            load()
        assert "trust_remote_code" not in str(found.value)

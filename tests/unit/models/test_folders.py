"""Folders of models and tokenizers that are damaged: each is an error that says what was read.

Mutants seen caught: only `OSError` and `ValueError` taken for damage; the type of an error left
out; memory that is short taken for damage; transformers' advice to run a folder's code.
"""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.errors import ConfigError
from agentrl.models.folders import load_model, load_tokenizer
from agentrl.plan.model_shape import shape_at


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


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_memory_that_is_short_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise kind("out of memory")

    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", allocate)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "qwen3"
    with pytest.raises(kind, match="out of memory"):
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

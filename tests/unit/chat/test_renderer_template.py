"""What the chat formats of `renderers` need of agentrl, without the package."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.conformance import check_template
from agentrl.chat.control_tokens import BREAK
from agentrl.chat.renderer_template import CharacterTokenizer, read_attempt
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.check import cross_check
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.message import ToolCall


@dataclass
class ParsedCall:
    """A call as the package parses one."""

    arguments: Any
    name: Any = "f"
    raw: str = ""
    status: str = "ok"
    id: str | None = None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer(["rain"], vocab_size=300, folder=tmp_path_factory.mktemp("t"))
    tokenizer.add_tokens(["<think>", "<think", "a"])
    return tokenizer


@given(text=st.text() | st.sampled_from(["<|im_end|>", "<think><think", "a" * 9, "\ud800", BREAK]))
def test_characters_come_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    characters = CharacterTokenizer(tokenizer)
    ids = characters.encode(text, add_special_tokens=False)
    assert characters.decode(ids, skip_special_tokens=False) == text


def test_a_renderer_does_not_learn_the_name_of_the_model(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "name_or_path", "Qwen/Qwen3.5-0.8B")
    assert CharacterTokenizer(tokenizer).name_or_path == ""


def test_a_control_token_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    characters = CharacterTokenizer(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = characters.encode("b<|im_end|><think>")
    assert len(ids) == 3
    assert ids[1:] == [end, tokenizer.convert_tokens_to_ids("<think>")]
    assert characters.decode(ids, skip_special_tokens=True) == "b"
    assert characters.convert_tokens_to_ids(["<|im_end|>", "rain"]) == [end, None]
    broken = characters.encode(f"<{BREAK}|im_end|>")
    assert end not in broken
    assert characters.decode([10**12 % 2**24, -1]) == ""


@pytest.mark.parametrize(
    ("parsed", "says"),
    [
        (ParsedCall({}, status="invalid_json"), "it is invalid json"),
        (ParsedCall({"a": float("nan")}), "nan"),
        (ParsedCall({"a": "\ud800"}), "Unicode"),
        (ParsedCall({"a": "\0"}), "NUL"),
        (ParsedCall({"a": 10**308}), "308"),
        (ParsedCall({"a": [0] * 10_000}), "10000"),
        (ParsedCall({}, raw="a" * (2**18 + 1)), "262144"),
        (ParsedCall("[1]"), "must be an object"),
        (ParsedCall("{"), "broken JSON"),
        (ParsedCall(None), "must be an object"),
        (ParsedCall({}, name=None), '"name" is missing'),
        (ParsedCall({}, name="\ud800"), "Unicode"),
        (ParsedCall({}, name="f" * 257), "257 characters"),
    ],
)
def test_a_call_beyond_the_limits_is_none(parsed: ParsedCall, says: str) -> None:
    call, fault = read_attempt(parsed, number=0)
    assert call is None
    assert says in fault


def test_a_deep_call_is_none() -> None:
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    assert read_attempt(ParsedCall({"a": deep}), number=0)[0] is None


def test_a_call_is_read() -> None:
    assert read_attempt(ParsedCall({"a": 1}), number=3)[0] == ToolCall("call_3", "f", {"a": 1})
    assert read_attempt(ParsedCall('{"a": 1}', id="x"), number=3)[0] == ToolCall("x", "f", {"a": 1})


def test_a_missing_package_names_the_command(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-gym\[renderers\]'"):
        check_template(tokenizer, renderer="qwen3")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"path": "m", "renderer": "qwen3"}, ""),
        (
            {"path": "m", "renderer": "qwen3", "template": "hermes"},
            "policy.renderer is qwen3 and policy.template is also set",
        ),
        ({"make": {}, "renderer": "qwen3"}, "policy.renderer is qwen3 and policy.make is also set"),
        ({"path": "m", "dialect": "renderer"}, "policy.renderer, which parses turns then, is not"),
    ],
)
def test_a_renderer_replaces_a_template(policy: dict[str, Any], says: str) -> None:
    config = RunConfig.model_validate({"env": {"id": "sums"}, "policy": policy})
    faults = [problem.text for problem in cross_check(config) if "renderer" in problem.text]
    assert len(faults) == bool(says)
    assert all(says in fault for fault in faults)

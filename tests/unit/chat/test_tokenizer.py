"""A tokenizer from a run's own texts. Mutants these tests were seen to kill: digits not isolated;
special tokens left inside training texts; the texts not cut at the generation prompt; the alphabet
learnt instead of given."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from agentrl.chat.dialects import DIALECTS, TEMPLATES
from agentrl.chat.format import ChatFormat
from agentrl.chat.tokenizer import conversation_text, train_tokenizer
from agentrl.env import say
from agentrl.errors import ConfigError
from agentrl.message import Message

TEXTS = [
    conversation_text((Message("user", f"What is {a} {op} {b}?"), say(f"It is {a + b}.").message))
    for a in range(1, 40, 3)
    for b in range(100, 140, 7)
    for op in ("plus", "minus", "over")
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=600, folder=tmp_path_factory.mktemp("tokenizer"))


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def shown(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    return [cast("str", tokenizer.decode([token])) for token in token_ids]


def test_constant_text_is_few_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert shown(tokenizer, ids(tokenizer, TEXTS[0])) == [
        *("<|im_start|>", "user\nWhat is ", "1", " plus ", "1", "0", "0", "?", "<|im_end|>"),
        *("\n", "<|im_start|>", "assistant\n", "It is ", "1", "0", "1", ".", "<|im_end|>", "\n"),
    ]


@given(text=st.text(st.characters(codec="utf-8")))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(ids(tokenizer, text)) == text


@given(number=st.integers(0), around=st.text(st.characters(codec="utf-8"), max_size=5))
@settings(max_examples=100, deadline=None)
def test_digits_are_the_same_alone_and_in_context(
    tokenizer: PreTrainedTokenizerFast, number: int, around: str
) -> None:
    alone = ids(tokenizer, str(number))
    assert shown(tokenizer, alone) == list(str(number))
    digits = {token for digit in "0123456789" for token in ids(tokenizer, digit)}
    text = "".join(char for char in around if char not in "0123456789")
    found = [t for t in ids(tokenizer, f"{text}{number}{text}\n{number}") if t in digits]
    assert found == alone * 2


def test_nothing_is_learnt_across_turns(tmp_path: Path) -> None:
    """However common `assistant` and the first word of an answer are together."""
    texts = [conversation_text((Message("user", ""), say("yes").message))] * 50
    tokenizer = train_tokenizer(texts, vocab_size=600, folder=tmp_path)
    vocabulary = [cast("str", tokenizer.decode([i])) for i in range(len(tokenizer))]
    assert {"assistant\n", "yes"} <= set(vocabulary)
    special = set(tokenizer.all_special_tokens)
    assert not [v for v in vocabulary if v not in special and ("\nyes" in v or "<|" in v)]


def test_same_texts_same_tokenizer(tmp_path: Path) -> None:
    shuffled = list(TEXTS)
    Random(0).shuffle(shuffled)
    for name, texts in (("one", TEXTS), ("other", shuffled)):
        train_tokenizer(texts, vocab_size=500, folder=tmp_path / name)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_a_model_folder_gives_the_tokenizer_back(template: str, tmp_path: Path) -> None:
    """A model's config beside it must not make `AutoTokenizer` put another class in its place."""
    made = train_tokenizer(TEXTS, vocab_size=500, folder=tmp_path, template=template)
    Qwen3Config(vocab_size=len(made)).save_pretrained(tmp_path)
    loaded = cast("PreTrainedTokenizerBase", AutoTokenizer.from_pretrained(tmp_path))
    text = "What is 12 plus 30?\n  It is 42. Ünïcode\t" + DIALECTS[template].end_of_turn
    assert ids(loaded, text) == ids(made, text)
    assert loaded.eos_token == made.eos_token == DIALECTS[template].end_of_turn
    assert loaded.pad_token == made.pad_token == DIALECTS[template].pad
    chat, again = ChatFormat(made), ChatFormat(loaded)
    assert chat.dialect == again.dialect == DIALECTS[template]
    assert chat.opening((Message("user", text),)) == again.opening((Message("user", text),))


def test_special_tokens_come_first(tokenizer: PreTrainedTokenizerFast) -> None:
    special = DIALECTS["hermes"].special_tokens
    assert tokenizer.convert_tokens_to_ids(list(special)) == [0, 1, 2]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.eos_token_id == 2


def test_limits(tmp_path: Path) -> None:
    assert len(train_tokenizer(TEXTS, vocab_size=270, folder=tmp_path)) == 270
    assert len(train_tokenizer([], vocab_size=300, folder=tmp_path)) == 259
    with pytest.raises(ConfigError, match="258, but 256 bytes and 3 special"):
        train_tokenizer(TEXTS, vocab_size=258, folder=tmp_path)
    with pytest.raises(ConfigError, match="which is not a dialect"):
        train_tokenizer(TEXTS, vocab_size=300, folder=tmp_path, template="own")


def test_half_a_surrogate_pair_is_a_question_mark_as_in_an_episode() -> None:
    text = conversation_text((Message("user", "a\ud800b"),))
    assert "a?b" in text
    assert text.isascii()

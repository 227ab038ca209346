"""A small tokenizer made from a run's own texts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl.chat.control_tokens import BREAK, ControlTokens
from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects import find_dialect
from agentrl.chat.template import as_dict
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

BYTES = 256


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    folder: Path,
    template: str = "hermes",
    sees: bool = False,
) -> "PreTrainedTokenizerFast":
    """Train a byte-level BPE and save it to `folder`, to be loaded by `AutoTokenizer`.

    Every digit is a token of its own and nothing else bounds a token, so that the text all
    conversations share becomes few tokens. Any text can be tokenised and comes back unchanged.
    The same texts in any order give the same tokenizer. `texts` are rendered conversations
    (`conversation_text`) or any others; `vocab_size` is an upper bound; `template` names the
    shipped template that goes with it and decides the special tokens, those of images among them
    for a policy that `sees`.
    """
    dialect = _find_shipped(template)
    if sees and dialect.image_tokens is None:
        raise ConfigError(
            f"template {template!r} supports no images, but policy.make.vision creates a "
            "vision-language policy; set policy.template: hermes"
        )
    if sees and dialect.image_tokens is not None:
        special = (*dialect.special_tokens, *dialect.image_tokens)
        dialect = replace(dialect, special_tokens=special)
    least = BYTES + len(dialect.special_tokens)
    if vocab_size < least:
        raise ConfigError(
            f"vocab_size is {vocab_size}, but {BYTES} bytes and {len(dialect.special_tokens)} "
            f"special tokens need {least}; raise policy.make.vocab_size"
        )
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train(texts, dialect, vocab_size=vocab_size),
        pad_token=dialect.pad,
        eos_token=dialect.end_of_turn,
        bos_token=dialect.begin_of_text,
        additional_special_tokens=_list_further_tokens(dialect),
        chat_template=dialect.template,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def conversation_text(
    messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, template: str = "hermes"
) -> str:
    """Return a conversation as a shipped template renders it, before there is a tokenizer."""
    dialect = _find_shipped(template)
    control = ControlTokens(special=dialect.special_tokens, written=())
    dicts = [as_dict(message, control) for message in messages]
    text = _render(dialect, dicts, [control.neutral_in(tool) for tool in tools])
    return text if text.isascii() else text.encode(errors="replace").decode()


def _train(texts: Iterable[str], dialect: ToolCallDialect, *, vocab_size: int) -> "Tokenizer":
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dialect.special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_stretches(texts, dialect), trainer)
    return tokenizer


def _stretches(texts: Iterable[str], dialect: ToolCallDialect) -> Iterator[str]:
    """Yield what lies between special tokens, and apart what a policy would have sampled.

    No token can span these boundaries when a conversation is tokenised, so none is learnt there.
    """
    ask = [{"role": "user", "content": ""}]
    rendering = _render(dialect, ask, [], generation_prompt=True)
    prompt = re.escape(rendering.removeprefix(_render(dialect, ask, [])))
    turns = re.compile(f"({prompt})")
    parts = re.compile("|".join(map(re.escape, (*dialect.special_tokens, BREAK))))
    for text in texts:
        for turn in turns.split(text):
            yield from filter(None, parts.split(turn))


def _render(
    dialect: ToolCallDialect,
    messages: list[dict[str, Any]],
    tools: list[ToolSchema],
    *,
    generation_prompt: bool = False,
) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=cast("list[Any]", tools) or None,
        chat_template=dialect.template,
        add_generation_prompt=generation_prompt,
    )
    return rendered[0]


def _list_further_tokens(dialect: ToolCallDialect) -> list[str]:
    role_tokens = {dialect.pad, dialect.end_of_turn, dialect.begin_of_text}
    return [token for token in dialect.special_tokens if token not in role_tokens]


def _find_shipped(template: str) -> ToolCallDialect:
    dialect = find_dialect(template, key="policy.template")
    if not dialect.special_tokens:
        raise ConfigError(
            f"the dialect {template!r} declares no special tokens, which a new tokenizer takes "
            "from its dialect; set policy.template: hermes"
        )
    return dialect

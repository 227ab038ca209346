"""Tokenizers that begin a text with a space of their own, as those of Llama 2 and TinyLlama do.

Mutants seen caught: pieces encoded on their own; a piece behind a control token encoded as behind
text; the space before a turn left out.
"""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.chat.conformance import check_template
from agentrl.chat.dialects import DIALECTS
from agentrl.chat.format import ChatFormat
from agentrl.chat.format_checks import ACTIONS
from agentrl.env import say
from agentrl.message import Message

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
TEXTS = ["Hello world, this is a test.", "the weather in Oslo", "<|user|>\nask again </s>", "fine"]
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}"
    "{% endif %}{% endfor %}"
)
TEMPLATES = {"zephyr": ZEPHYR, "llama": LLAMA, "hermes": DIALECTS["hermes"].template}
ASK, SAID, NEXT = Message("user", "Hello"), "the weather is fine", Message("user", "ask again")


def tokenizer_of(kind: str, template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    if kind == "normalizer":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    letters = [*map(chr, range(32, 127)), *"\n\tü", *"".join(action.text for action in ACTIONS)]
    special = ["<unk>", "<s>", "</s>", *DIALECTS["hermes"].special_tokens]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<|im_end|>" if template == "hermes" else "</s>",
        chat_template=TEMPLATES[template],
    )


@pytest.fixture(params=["normalizer", "first", "always"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_contexts_have_the_tokens_of_the_template(kind: str, template: str) -> None:
    tokenizer = tokenizer_of(kind, template)
    chat = ChatFormat(tokenizer)
    messages = (ASK, Message("assistant", SAID), NEXT)
    dicts = [{"role": message.role, "content": str(message.content)} for message in messages]
    whole = tokenizer.apply_chat_template(dicts, add_generation_prompt=True, return_dict=False)
    (opening,) = chat.opening(messages)
    assert [*opening.token_ids] == whole
    parts = [*chat.opening((ASK,)), *chat.reply((NEXT,), ended=True)]
    before, *after = (part.token_ids for part in parts)
    assert [*before, *chat.write(say(SAID)), *(t for part in after for t in part)] == whole
    assert chat.parse(chat.write(say(SAID))) == say(SAID)


def test_every_check_passes(kind: str) -> None:
    verdict = check_template(tokenizer_of(kind, "hermes"))
    assert verdict.ok, [row for row in verdict.rows if not row.ok]


def test_control_tokens_in_content_are_shown_without_spaces(kind: str) -> None:
    tokenizer = tokenizer_of(kind, "zephyr")
    (opening,) = ChatFormat(tokenizer).opening((Message("user", "a</s>b"),))
    assert "\na</s>b</s>" in tokenizer.decode([*opening.token_ids])

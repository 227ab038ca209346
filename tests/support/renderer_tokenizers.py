"""The package `renderers` as tests/peers.sh installs it, and small tokenizers for its renderers."""

import re
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.chat.renderer_template import build_renderer_config
from agentrl.chat.tokenizer import train_tokenizer

PLACE = Path(__file__).parents[2] / ".bench" / "renderers"
_TEXT_TAG = re.compile(r"</?(?!bos|eos|sop|assistant)[a-z_]+(?::opensource)?>")
"""Control tokens that the families' tokenizers do not call special."""


class AskedTokens:
    """A tokenizer that has every token, and remembers those that a renderer asks for."""

    name_or_path = chat_template = ""
    unk_token_id = None
    eos_token_id = 0

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self.ids.setdefault(tokens, len(self.ids))
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.convert_tokens_to_ids(text)]

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def add_package() -> None:
    """Let the package be imported, behind everything that is installed."""
    if str(PLACE) not in sys.path:
        sys.path.append(str(PLACE))


def tokenizer_of_renderer(name: str, folder: Path) -> PreTrainedTokenizerFast:
    """Return a small tokenizer with the tokens that a renderer asks for when it is made."""
    from renderers import create_renderer  # pyright: ignore[reportMissingImports]

    asked = AskedTokens()
    create_renderer(asked, build_renderer_config(name, {}))
    texts = ["What is the weather in Oslo? It is raining. The sum of 12 and 30 is 42."]
    tokenizer = train_tokenizer(texts, vocab_size=300, folder=folder)
    new = [token for token in asked.ids if token not in tokenizer.all_special_tokens]
    special = [token for token in new if not _TEXT_TAG.fullmatch(token)]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([token for token in new if token not in special])
    tokenizer.save_pretrained(folder)
    return tokenizer

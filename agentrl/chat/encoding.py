"""Rendered text to token ids, with the same boundaries wherever a text stands."""

import re
from typing import TYPE_CHECKING

from agentrl.chat.control_tokens import BREAK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextTokenizer:
    """Tokenises rendered text.

    Tokens end at every `BREAK`, and before and after every generation prompt: the tokens of a turn
    do not depend on the prompt it continues, as those that a policy samples do not.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, generation_prompt: str) -> None:
        self._tokenizer = tokenizer
        prompt = re.escape(generation_prompt)
        self._cuts = re.compile(f"{BREAK}|({prompt})" if prompt else BREAK)

    def __call__(self, text: str) -> tuple[int, ...]:
        """Return the token ids; control tokens in `text` become control tokens.

        Half of a surrogate pair, which no tokenizer takes, becomes a question mark.
        """
        if not text.isascii():
            text = text.encode(errors="replace").decode()
        pieces = [piece for piece in self._cuts.split(text) if piece]
        return tuple(
            token
            for piece in pieces
            for token in self._tokenizer.encode(piece, add_special_tokens=False)
        )

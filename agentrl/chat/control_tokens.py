"""Control tokens, and how text that is only text is kept from becoming one."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BREAK = "\ufdd0"
"""A Unicode noncharacter: text is tokenised apart on its two sides, and it becomes no token."""


class ControlTokens:
    """The added tokens of a tokenizer that mean something to a chat template.

    `special` ones are those the tokenizer calls special. `written` ones are not, yet the template
    writes them, such as `<tool_call>` of Qwen3. White space never is one: Gemma has tokens of line
    breaks, which mean nothing else.
    """

    def __init__(self, *, special: Iterable[str], written: Iterable[str]) -> None:
        self.special = frozenset(special)
        self.written = frozenset(written) - self.special
        self._special = _match_any(self.special)
        self._all = _match_any(self.special | self.written)

    @classmethod
    def from_tokenizer(cls, tokenizer: "PreTrainedTokenizerBase", template: str) -> "ControlTokens":
        """Return those of `tokenizer` under the Jinja source `template`."""
        added = cast("Iterable[Any]", tokenizer.added_tokens_decoder.values())
        return cls(
            special={t.content for t in added if t.special} | set(tokenizer.all_special_tokens),
            written={
                t.content
                for t in added
                if not t.special and t.content.strip() and t.content in template
            },
        )

    def last_in(self, text: str) -> re.Match[str] | None:
        """Return the match of the last control token in a rendered text."""
        return next(reversed(list(self._all.finditer(text))), None)

    def special_in(self, text: str) -> list[re.Match[str]]:
        """Return the matches of special tokens in a rendered text."""
        return list(self._special.finditer(text))

    def neutral(self, text: str, *, trusted: bool = False) -> str:
        """Return `text` with its control tokens broken, so that they stay text.

        Trusted text (the system prompt, the policy's own words) keeps `written` tokens: naming
        `<think>` there means the token. Special ones are broken in every text.
        """
        pattern = self._special if trusted else self._all
        return pattern.sub(_break_token, text.replace(BREAK, ""))

    def neutral_in(self, value: Any, *, trusted: bool = False) -> Any:
        """Return a JSON value with every text in it made neutral, keys too."""
        match value:
            case str():
                return self.neutral(value, trusted=trusted)
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {
                    self.neutral_in(key, trusted=trusted): self.neutral_in(item, trusted=trusted)
                    for key, item in items
                }
            case list() | tuple():
                several = cast("Iterable[Any]", value)
                return [self.neutral_in(item, trusted=trusted) for item in several]
            case _:
                return value


def _match_any(tokens: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _break_token(match: re.Match[str]) -> str:
    return f"{match[0][0]}{BREAK}{match[0][1:]}"

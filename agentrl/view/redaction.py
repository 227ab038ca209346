"""Texts to hide: values of environment variables that look like keys, and patterns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

HIDDEN = "[redacted]"

_KEY_NAMES = re.compile(
    r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|passphrase|credentials?|auth)(?:_|$)"
)
_SHORTEST = 8
"""Letters of a value that can be a key; a shorter one would hide half of every text."""
_SHAPES = (
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
)
"""Keys that are known by their looks alone."""


def key_values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names look like those of keys, longest first."""
    values = {
        value.strip()
        for name, value in environ.items()
        if _KEY_NAMES.search(name) and len(value.strip()) >= _SHORTEST
    }
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


class SecretRedaction:
    """Hides secrets in texts, and says where they are in them."""

    def __init__(self, environ: Mapping[str, str], patterns: Sequence[str] = ()) -> None:
        values = [re.escape(value) for value in key_values(environ)]
        # One by one: a pattern of the user's may begin with flags of its own.
        self._patterns = [re.compile(one) for one in (*values, *_SHAPES, *patterns)]

    def text(self, text: str) -> str:
        """Return a text without its secrets."""
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without the secrets in its texts, keys among them."""
        match value:
            case str():
                return self.text(value)
            case dict():
                items = cast(dict[Any, Any], value).items()
                return {self.value(key): self.value(item) for key, item in items}
            case list() | tuple():
                return [self.value(item) for item in cast(Sequence[Any], value)]
            case _:
                return value

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where secrets are: first letter and one past the last."""
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                yield match.span()

"""The text of each token, from the tokenizer that the run has left in its folder."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

_FILE = "tokenizer.json"


class TokenTexts:
    """Token ids to texts. Without a vocabulary, a token is shown as its id."""

    def __init__(self, pieces: Mapping[int, str] | None = None, *, by_bytes: bool = False) -> None:
        self._pieces = pieces
        self._texts: dict[int, str] = {}
        self._bytes = _byte_of_letter() if by_bytes else {}

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Read the vocabulary of a `tokenizer.json`, for which no tokenizer is needed."""
        tokenizer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        vocabulary: Any = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: pieces with their scores
            pieces = {id: str(piece) for id, (piece, _) in enumerate(vocabulary)}
        else:
            pieces = {id: piece for piece, id in vocabulary.items()}
        added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or ()}
        return cls(pieces | added, by_bytes=_is_by_bytes(tokenizer))

    @property
    def is_known(self) -> bool:
        return self._pieces is not None

    def text(self, id: int) -> str:
        """Return the text of a token; bytes that are no whole letter as `<e2 82>`."""
        if id not in self._texts:
            self._texts[id] = self._text(id)
        return self._texts[id]

    def texts(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of all different ids."""
        return {id: self.text(id) for id in sorted({*ids})}

    def _text(self, id: int) -> str:
        piece = None if self._pieces is None else self._pieces.get(id)
        if piece is None:
            return f"<{id}>"
        if not self._bytes:
            return piece.replace("\u2581", " ")
        if any(letter not in self._bytes for letter in piece):
            return piece
        data = bytes(self._bytes[letter] for letter in piece)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return f"<{data.hex(' ')}>"


def find_vocabulary(folder: Path, policy: str | None) -> TokenTexts:
    """Return a run's vocabulary: its policy's, its newest checkpoint's, or `policy`'s."""
    checkpoints = sorted((folder / "checkpoints").glob(f"*/**/{_FILE}"), reverse=True)
    places = [folder / "policy" / _FILE, *checkpoints]
    if policy is not None:
        places.append(Path(policy) / _FILE)
    for place in places:
        try:
            return TokenTexts.from_file(place)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # it is not there, or not whole, as while a run begins
    return TokenTexts()


def _is_by_bytes(tokenizer: Mapping[str, Any]) -> bool:
    decoder: Any = tokenizer.get("decoder") or {}
    kinds = {decoder.get("type"), *(one.get("type") for one in decoder.get("decoders") or ())}
    return "ByteLevel" in kinds


@cache
def _byte_of_letter() -> dict[str, int]:
    """Return the byte behind each letter of a byte-level vocabulary.

    Printable bytes of Latin-1 stand for themselves, the others for letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    byte_map = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return byte_map | {chr(0x100 + at): byte for at, byte in enumerate(others)}

"""The text of each token, from the tokenizer that the run has left in its folder."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"


class TokenTexts:
    """Token ids to texts. Without a tokenizer, a token is shown as its id."""

    def __init__(self, tokenizer: "Tokenizer | None") -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._bytes = {} if tokenizer is None or not _is_by_bytes(tokenizer) else _byte_of_letter()

    @property
    def is_known(self) -> bool:
        return self._tokenizer is not None

    def text(self, id: int) -> str:
        """Return the text of a token; bytes that are no whole letter as `<e2 82>`."""
        if id not in self._texts:
            self._texts[id] = self._text(id)
        return self._texts[id]

    def texts(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of all different ids."""
        return {id: self.text(id) for id in sorted({*ids})}

    def _text(self, id: int) -> str:
        piece = None if self._tokenizer is None else self._tokenizer.id_to_token(id)
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
        if place.is_file():
            from tokenizers import Tokenizer

            return TokenTexts(Tokenizer.from_file(str(place)))
    return TokenTexts(None)


def _is_by_bytes(tokenizer: "Tokenizer") -> bool:
    decoder: Any = json.loads(tokenizer.to_str()).get("decoder") or {}
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

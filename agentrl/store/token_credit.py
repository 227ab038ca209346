"""`credit/`: what each training step made of each token, one file a step, for whoever looks.

    credit/00000012.credit    zlib of: length 4 | JSON | advantages 4 | log-ratios 2 | entropies 2

Little-endian floats, one of each per token that the policy sampled, trajectory after trajectory as
the JSON lists them. A token that did not train has NaN. Two bytes keep three significant digits.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import ConfigError

FOLDER = "credit"
_SUFFIX = ".credit"
_LENGTH = struct.Struct("<I")
_LEVEL = 1
"""Of zlib: what repeats is gone at any level, and the trainer waits for it."""

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCredit:
    """Credit that a step gave the sampled tokens of one trajectory, in the order of sampling."""

    owner: int
    """The trajectory's group: its place in the batch, or the store's id once it is written."""
    sample: int
    advantages: Numbers
    log_ratios: Numbers
    """Of the trainer's probability, when it last looked at the token in the step, to that of the
    engine that sampled it; NaN where the token did not train."""
    entropies: Numbers
    """Of the trainer's policy then, in nats; NaN as above."""


class TokenCreditLog:
    """Writes a run's credit, and forgets the oldest when there is too much. Owns the folder."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self._folder = folder / FOLDER
        self._limit_bytes = limit_bytes

    def truncate_after(self, step: int) -> None:
        for number, file in _list_files(self._folder):
            if number > step:
                file.unlink()

    def write(self, step: int, credits: Sequence[TokenCredit], *, groups: Sequence[int]) -> None:
        """Write a step, whole or not at all; then remove the oldest steps above the limit.

        `groups` are the store's ids of the batch's groups.
        """
        self._folder.mkdir(exist_ok=True)
        file = self._folder / f"{step:08d}{_SUFFIX}"
        # No fsync, on purpose: losing a step here costs a picture, and the trainer waits for it.
        partial = file.with_suffix(".partial")
        partial.write_bytes(_pack(credits, groups))
        partial.replace(file)
        files = sorted(_list_files(self._folder), reverse=True)
        room = self._limit_bytes
        for _, file in files:
            room -= file.stat().st_size
            if room < 0:
                file.unlink()


def read_credit(folder: Path, step: int) -> dict[tuple[int, int], TokenCredit]:
    """Return the token credit of a step of a run, by the store's group and the sample.

    Empty where nothing is kept of the step. Raises `ConfigError` for a file that is not whole.
    """
    file = folder / FOLDER / f"{step:08d}{_SUFFIX}"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        return {(one.owner, one.sample): one for one in _unpack(data)}
    except (ValueError, KeyError, struct.error, zlib.error) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); it was edited or the disk is faulty: remove it, and "
            "the step is shown without advantages"
        ) from error


def _list_files(folder: Path) -> list[tuple[int, Path]]:
    return [(int(file.stem), file) for file in folder.glob(f"*{_SUFFIX}") if file.stem.isdigit()]


def _pack(credits: Sequence[TokenCredit], groups: Sequence[int]) -> bytes:
    rows = [[groups[one.owner], one.sample, len(one.advantages)] for one in credits]
    head = json.dumps({"rows": rows}).encode()
    parts = [
        np.concatenate([getattr(one, name) for one in credits] or [np.zeros(0)]).astype(kind)
        for name, kind in _ARRAYS
    ]
    data = b"".join((_LENGTH.pack(len(head)), head, *(part.tobytes() for part in parts)))
    return zlib.compress(data, _LEVEL)


def _unpack(packed: bytes) -> Iterator[TokenCredit]:
    data = zlib.decompress(packed)
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length
    rows: list[list[int]] = json.loads(data[_LENGTH.size : at])["rows"]
    total = sum(count for _, _, count in rows)
    arrays: list[Numbers] = []
    for _, kind in _ARRAYS:
        arrays.append(np.frombuffer(data, kind, total, at).astype(np.float32))
        at += total * np.dtype(kind).itemsize
    start = 0
    for owner, sample, count in rows:
        advantages, log_ratios, entropies = (part[start : start + count] for part in arrays)
        yield TokenCredit(
            owner=owner,
            sample=sample,
            advantages=advantages,
            log_ratios=log_ratios,
            entropies=entropies,
        )
        start += count


_ARRAYS = (("advantages", "<f4"), ("log_ratios", "<f2"), ("entropies", "<f2"))

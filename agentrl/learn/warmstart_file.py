"""Progress of a warm start: one file, from which a run that was interrupted goes on."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.config.learn import LearnSection
from agentrl.config.run import WarmstartSection
from agentrl.errors import LearnError
from agentrl.learn.sequence_layout import MaskedTokens
from agentrl.runtime.atomic_files import replaced_file
from agentrl.weight_sync.safetensors import write_safetensors

LEAST_INTERVAL_S = 60.0
WRITE_SHARE = 0.1
"""Most of the time that is spent on writing."""
_SAID = "warmstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmstartPosition:
    """Steps of a warm start that are done."""

    losses: Sequence[float] = ()
    """Loss of each step."""
    trained_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class WarmstartFile:
    """Weights and moments of a warm start that is under way, in `path`."""

    path: Path
    fingerprint: str
    """Fingerprint of what it is trained on and how; see `fingerprint`."""
    _next_s: float = field(default_factory=lambda: time.monotonic() + LEAST_INTERVAL_S)

    @property
    def is_due(self) -> bool:
        """True a minute after the last time, or later where writing takes long."""
        return time.monotonic() >= self._next_s

    def write(self, position: WarmstartPosition, state: Mapping[str, Tensor]) -> None:
        """Replace the file; a kill or a full disk leaves the one before."""
        began_s = time.monotonic()
        header = {_SAID: json.dumps({"of": self.fingerprint, **asdict(position)})}
        with replaced_file(self.path) as file:
            write_safetensors(file, state, said=header)
        ended_s = time.monotonic()
        self._next_s = ended_s + max(LEAST_INTERVAL_S, (ended_s - began_s) / WRITE_SHARE)

    def read(self, load_state: Callable[[Mapping[str, Tensor]], None]) -> WarmstartPosition | None:
        """Load the file's state and return its position.

        None where there is no file, or it was trained on something else. Raises `LearnError` for
        a damaged one.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                header: dict[str, Any] = json.loads((file.metadata() or {})[_SAID])
                if header.pop("of") != self.fingerprint:
                    return None
                position = WarmstartPosition(**header)
                load_state({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise LearnError(
                f"{self.path} is damaged: {error}; remove it to begin the warm start anew"
            ) from error
        return position


def fingerprint(
    rows: Sequence[MaskedTokens],
    section: WarmstartSection,
    learn: LearnSection,
    *,
    seed: int,
    weights: Sequence[Tensor],
) -> str:
    """Return a digest of all that the steps of a warm start are computed from, but the first
    weights' values."""
    digest = hashlib.sha256()
    shapes = [tuple(weight.shape) for weight in weights]
    digest.update(repr((section.model_dump(), learn.precision, seed, shapes)).encode())
    for row in rows:
        digest.update(b"%d " % len(row.token_ids))
        digest.update(row.token_ids.tobytes())
        digest.update(row.mask.tobytes())
        spans = [(span.image.digest, span.start, span.stop) for span in row.images]
        digest.update(repr(spans).encode())
    return digest.hexdigest()

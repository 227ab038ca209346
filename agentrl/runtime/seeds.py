"""Seeds by name: every random choice of a run is a function of what it is for."""

import hashlib


def derive(*parts: int | str) -> int:
    """Return a 63-bit seed from its parts, such as `derive(run_seed, task.id, sample, turn)`."""
    blob = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(blob).digest()[:8], "big") >> 1

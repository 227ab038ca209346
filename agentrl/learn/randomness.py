"""The random states of a process, as JSON: Python's, numpy's, and torch's on every device."""

import base64
import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Return the global random states as they are now."""
    numpy: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, gauss = numpy
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), position, has_gauss, gauss],
        "torch": _encode_state(torch.get_rng_state()),
        "cuda": [_encode_state(state) for state in torch.cuda.get_rng_state_all()],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` returned, after a round trip through JSON.

    States of CUDA devices this process does not have are left out.
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(_decode_state(state["torch"]))
    for device, encoded in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(_decode_state(encoded), device)


def _encode_state(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode_state(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())

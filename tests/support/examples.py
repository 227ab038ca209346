"""How many examples a costly property draws."""

import os

THOROUGH = "AGENTRL_THOROUGH"
"""The variable that asks for all of them; `make test-all` and CI set it."""


def examples(count: int) -> int:
    """Return `count` where all are asked for, else a fifth."""
    return count if os.environ.get(THOROUGH) else -(-count // 5)

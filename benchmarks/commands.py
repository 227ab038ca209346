"""A command of `agentrl` in a process of its own, for benchmarks that are whole runs."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"
TIMEOUT_S = 3 * 3600
"""Twice what the longest of these runs takes on cores that do nothing else."""
MADE = {"policy.make": "null", "warmstart": "null"}
"""Keys of a run that trains from a policy that is there: add `policy.path`."""
WARMSTART = {
    "policy.make": "{hidden_size: 128, layers: 4, vocab_size: 1536}",
    "warmstart.demonstrations": "10000",
    "warmstart.steps": "450",
    "warmstart.batch_size": "64",
    "warmstart.layout": "padded",
}
"""Keys of the policy and warm start that docs/results.md compares methods and modes from."""
QUICK_WARMSTART = {"warmstart.demonstrations": "100", "warmstart.steps": "20"}
"""Keys of a warm start after which a policy can be trained and has learnt little."""


def agentrl(
    command: str, keys: Mapping[str, str], config: Path = QUICKSTART, *options: str
) -> None:
    """Run `agentrl COMMAND` on a config with some keys changed; raise if it fails.

    Its progress, and what it says of a failure, go where ours do.
    """
    overrides = [f"{key}={value}" for key, value in keys.items()]
    line = [sys.executable, "-m", "agentrl.cli", command, str(config), *overrides, *options]
    subprocess.run(line, check=True, timeout=TIMEOUT_S)

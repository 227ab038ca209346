"""Training and sampling as on a GPU, by a device that is simulated: see tests/support.

Nothing of its tensors may meet one of the CPU, and what the host waits for is counted. Mutants seen
caught: a block mask made on the CPU; metrics chosen by a mask, and read one by one; a cache made in
inference mode and cleared outside of it.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.simulated_plays import METHODS

WAITS_A_PASS = {
    "padded": {"learn/token_logprobs.py _hidden: aten._local_scalar_dense.default": 1},
    "packed": {"learn/layouts/ancestry.py from_positions: aten._to_copy.default": 2},
}
"""Most waits by layout and line: transformers looks whether positions are those of a packed line;
ours reads positions and ends, which the host had before."""
WAITS_A_STEP = 9
"""Those of its one pass, the metrics for the alarm and at the end, and the gradient's norm."""
WAITS_A_TOKEN = 3
"""Log-probs and tokens that were drawn, and log-probs of others where they are asked for."""


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from tests.support.simulated_device import main; "
    )
    code += "main('tests.support.simulated_plays')"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def part(played: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = played[name]
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_step_on_a_device_is_that_of_the_cpu(played: dict[str, Any], method: str) -> None:
    found = part(played, "play_steps")[method]
    # Attention is computed in another order there, which bfloat16 rounds to the next number.
    limit = 1e-2 if "bfloat16" in method else 1e-5
    assert found["distance"] <= limit
    assert found["metrics"] <= limit


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_offloaded_is_in_the_hosts_memory(played: dict[str, Any], precision: str) -> None:
    found = part(played, "play_offload")[precision]
    assert (found["devices"], found["model"]) == (["cpu"], ["sim"])
    assert found["distance"] == 0  # the state is all there is
    assert found["masters"] == (precision == "bfloat16")


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_pass_waits_for_the_device_no_more_than_it_did(
    played: dict[str, Any], layout: str
) -> None:
    found = part(played, "play_waits")[layout]
    one, several = found["passes"]
    assert (one, several > 4) == (1, True)
    allowed = WAITS_A_PASS[layout]
    more = {p: n for p, n in found["each pass"].items() if n > allowed.get(p, 0)}
    assert more == {}
    assert found["step"] <= WAITS_A_STEP


def test_the_engine_samples_on_a_device_what_it_samples_on_the_cpu(played: dict[str, Any]) -> None:
    found = part(played, "play_engine")
    assert found["same"]
    assert found["steps"] > 10
    assert sum(found["each step"].values()) <= WAITS_A_TOKEN


def test_masks_are_made_on_the_device(played: dict[str, Any]) -> None:
    assert part(played, "play_masks") == {"same": [True] * 3, "devices": ["sim"]}

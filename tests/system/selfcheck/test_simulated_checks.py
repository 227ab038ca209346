"""Checks on a device that is not the CPU: nothing of theirs is on both, and figures are right.

Mutants seen caught: factors of a loss that stay on the CPU; targets of the head that stay there.
"""

import json
import subprocess
import sys

import pytest

from tests.support.simulated_checks import NAMES


@pytest.mark.nightly
def test_checks_pass_on_another_device() -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from tests.support.simulated_checks import main"
    )
    command = [sys.executable, "-c", f"{code}; main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    ends = {name: (each["status"], each["reason"]) for name, each in found.items()}
    assert ends == dict.fromkeys(NAMES, ("passed", ""))
    assert found["gap"]["figures"]["float32.mean_nats"] < 1e-3
    assert found["throughput"]["figures"]["dtype"] == "bfloat16"

"""What a trial of isolation that failed is said to have lacked."""

import subprocess

from agentrl_sandbox.needs import explain_trial_error


def test_a_trial_that_is_late_is_no_machine_without_namespaces() -> None:
    """Kills: the command with its script, as the reason for which nothing can be isolated."""
    why = explain_trial_error(subprocess.TimeoutExpired(["python", "-c", "import sys"], 5.0))
    assert why == "the trial took more than 5 s, so the machine is busy; try again when it is not"


def test_a_trial_that_failed_says_why() -> None:
    failed = subprocess.CalledProcessError(1, ["python"], stderr=b"unshare: no\n")
    assert explain_trial_error(failed) == "unshare: no"
    silent = subprocess.CalledProcessError(1, ["python"], stderr=b"")
    assert explain_trial_error(silent) == "the trial ended with exit code 1"

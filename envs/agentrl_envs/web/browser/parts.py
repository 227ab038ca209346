"""Parts that a browser needs on this machine: a row of `agentrl doctor`."""

import shutil

from agentrl.errors import ConfigError
from agentrl.runtime.doctor import ProbedPart
from agentrl_envs.web.browser.chromium import INSTALL, find
from agentrl_sandbox.cgroup import explain_no_cgroups


def parts() -> tuple[ProbedPart, ...]:
    """Return the browser, and what isolates it. Nothing is started."""
    try:
        program = ProbedPart("chromium", True, find(), INSTALL)
    except ConfigError:
        program = ProbedPart("chromium", False, "not found", INSTALL)
    bubblewrap = shutil.which("bwrap")
    isolated = ProbedPart(
        "isolation",
        bubblewrap is not None,
        "no network, no files"
        if bubblewrap
        else "no bwrap on PATH; browsers do not start without it",
        "apt-get install bubblewrap",
    )
    without = explain_no_cgroups()
    bounded = ProbedPart(
        "memory bound",
        not without,
        without or "a cgroup around every browser",
        "see the cgroup rows below",
    )
    return program, isolated, bounded

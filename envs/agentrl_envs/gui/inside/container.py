"""The first process of a desktop in a container: takes what the host has for it, then serves."""

import os
import sys

from agentrl_envs.gui.inside import server
from agentrl_sandbox.inside import kernel
from agentrl_sandbox.inside.arrival import arrive

_SCREENS = "/tmp/.X11-unix"


def main() -> None:
    """Arrive by the socket that the first argument names; the others are the agent's."""
    arrive(sys.argv.pop(1))
    kernel.drop_capabilities()
    # As where bubblewrap makes the desktop: what programs write looks the same.
    os.umask(0o077)
    os.mkdir(_SCREENS, 0o700)
    server.main()

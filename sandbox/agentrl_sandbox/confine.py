"""Runs before one program, as a script: joins cgroups, then becomes it, in bubblewrap or as it is.

Whoever starts it (Playwright starts the browser) may have no other way to hand something over, so
the plan is an argument.

Standard library only, and no import of agentrl: it runs with `-I -S`.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(plan: dict[str, Any]) -> None:
    """Do what the plan says and become its program."""
    for path in plan["cgroups"]:
        with open(path, "wb", buffering=0) as file:
            file.write(b"0")
    if plan["enter"]:
        fd = os.memfd_create("plan")
        os.write(fd, json.dumps(plan["bubblewrap"]).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, "-I", "-S", plan["enter"], str(fd)])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execve(plan["command"][0], plan["command"], plan["environ"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

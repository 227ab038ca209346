"""Runs between the host and a supervisor: makes namespaces and a root, and becomes the supervisor.

    this process               gives up root, enters a user namespace, forks, keeps nothing, waits
    its child, process 1       has namespaces of every kind, makes its root, becomes the supervisor

Standard library, and modules that come with it in one archive: it runs with `-I -S`. Whoever opens
the first session waits for its imports.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from agentrl_sandbox import enter
from agentrl_sandbox.inside import kernel, root
from agentrl_sandbox.inside.root import RootStep

HOST_NAME = "sandbox"
_CGROUPS = "/proc/self/ns/cgroup"
_PRIVATE = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS


def main() -> NoReturn:
    """Read the plan from the descriptor that the last argument names, and do what it says."""
    with open(int(sys.argv[-1]), "rb") as file:
        plan = json.load(file)
    try:
        _isolate(plan)
    except OSError as error:
        sys.exit(str(error))


def _isolate(plan: dict[str, Any]) -> NoReturn:
    data = {path: _read(fd) for path, fd in plan["data"].items()}
    userns_fd = enter.give_up_root(plan)
    if userns_fd is None:
        kernel.enter_user_namespace()
    else:
        kernel.join(userns_fd, kernel.CLONE_NEWUSER)
    # Not before: every change of user or of its rights clears it.
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != plan["parent"]:
        os._exit(1)  # it died before we had asked for that
    kernel.forbid_new_privileges()
    kernel.leave_keyring()
    kernel.unshare(kernel.CLONE_NEWPID)  # the next child is the first of its own
    alive, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_fd)
        _become(plan, data, parent=alive)
    # Outside of the process namespace nobody in it can name us; nor is there anything to take.
    kernel.set_dumpable(False)
    kernel.drop_capabilities()
    # All but the end that says we live: else the host would not see the supervisor's end at once.
    os.dup2(write_fd, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(pid, 0)
    os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))


def _become(plan: dict[str, Any], data: Mapping[str, bytes], *, parent: int) -> NoReturn:
    """Turn this freshly forked process, the first of its namespace, into the supervisor."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if _is_closed(parent):
            os._exit(1)  # it died before we had asked for that
        os.setsid()
        kernel.unshare(_PRIVATE)
        if os.path.exists(_CGROUPS):
            kernel.unshare(kernel.CLONE_NEWCGROUP)
        kernel.name_machine(HOST_NAME)
        root.make([RootStep(*step) for step in plan["steps"]], data)
        kernel.drop_capabilities(keep=kernel.CAPABILITIES_OF_KEEPERS)
        kernel.hand_down_capabilities(kernel.CAPABILITIES_OF_KEEPERS)
        kernel.die_with_parent(signal.SIGKILL)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if not plan["command"]:
            with open("/proc/self/uid_map", "rb") as file:
                os.write(1, file.read())
            os._exit(0)
        os.execve(plan["command"][0], plan["command"], {})
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


def _is_closed(pipe: int) -> bool:
    os.set_blocking(pipe, False)
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()

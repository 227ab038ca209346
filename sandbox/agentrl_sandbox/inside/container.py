"""The first process of a container: takes the supervisor's descriptors, and becomes it in private.

A container of an engine owns none of its namespaces, so nothing in it may mount. One user namespace
further in, where its user has capabilities, the supervisor finds what it has without an engine as
well: a process namespace it owns, few devices, and nothing that two sessions could both write to.
"""

import glob
import os
import sys
from typing import NoReturn

from agentrl_sandbox.inside import fork_server, kernel
from agentrl_sandbox.inside.arrival import arrive

DEVICES = ("full", "null", "random", "urandom", "zero")
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "shm": "/home/agent",
}
"""Beside the devices. Shared memory counts as files of the session, because it is."""
OF_AGENTRL = (
    "agentrl",
    "agentrl_envs",
    "agentrl_sandbox",
    "agentrl_tools",
    "agentrl_gym-*.dist-info",
)
"""Names that an installation of agentrl puts among Python packages."""
_PACKAGES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/opt/*/lib")
_STAGE = "/sys"
"""Covered anyway, so it can hold the devices until they are covered too."""


def main() -> NoReturn:
    """Take standard input and error from the socket named by the first argument, and serve."""
    arrive(sys.argv[1])
    refuse_agentrl()
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID)
    pid = kernel.fork()
    if pid > 0:
        os.closerange(0, 3)  # else the host would not see the supervisor's end as soon as it comes
        _, status = os.waitpid(pid, 0)
        os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))
    hide()
    kernel.drop_capabilities(keep=kernel.CAPABILITIES_OF_KEEPERS)
    fork_server.main()
    os._exit(1)


def refuse_agentrl() -> None:
    """End where the image has agentrl among its Python packages: environments are answers."""
    tops = {*_PACKAGES, f"{sys.prefix}/lib", f"{sys.prefix}/lib64"}
    patterns = (f"{top}/python*/*-packages/{name}" for top in tops for name in OF_AGENTRL)
    matches = [path for pattern in patterns for path in glob.glob(pattern)]
    if matches:
        sys.exit(
            f"the image has {min(matches)}, where its sessions could read the answers of agentrl's "
            "environments; set sandbox.image to an image without agentrl"
        )


def hide() -> None:
    """Cover what the engine mounts: its view of the machine, and what several sessions can write.

    Mounts of the container cannot be taken away from inside, so something lies on top of them.
    """
    quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
    read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | quiet
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    kernel.mount("proc", "/proc", "proc", quiet | kernel.MS_NODEV)
    kernel.mount("devices", _STAGE, "tmpfs", quiet, "size=64k,mode=755")
    for name in DEVICES:
        os.close(os.open(f"{_STAGE}/{name}", os.O_CREAT | os.O_EXCL, 0o600))
        kernel.mount(f"/dev/{name}", f"{_STAGE}/{name}", None, kernel.MS_BIND)
    for name, target in LINKS.items():
        os.symlink(target, f"{_STAGE}/{name}")
    kernel.mount(_STAGE, "/dev", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("none", "/dev", None, read_only)
    kernel.mount("empty", _STAGE, "tmpfs", quiet | kernel.MS_RDONLY, "size=4k,mode=555")
    if os.path.exists("/etc/resolv.conf"):  # the host's
        kernel.mount("/dev/null", "/etc/resolv.conf", None, kernel.MS_BIND)

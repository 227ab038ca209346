"""Keeps a container without an engine: its users, its mounts, and its first process.

    this process      a user namespace whose root is nobody here, a mount namespace with the
                      container's files, in no cgroup of the container
    its child         process 1 of namespaces of every other kind; it only reaps

It reads lines from standard input: `start` starts process 1, and its pid here is answered. It ends
with its standard input, and everything inside ends with it.
"""

import json
import os
import signal
import sys
from typing import Any, NoReturn

from agentrl_sandbox import enter
from agentrl_sandbox.inside import kernel, session_directory

ROOT = f"{enter.STAGE}/root"
"""Place of the container's files in the mount namespace of the keeper."""
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)
"""Those of root inside: over files, users, its processes and ports; none over namespaces."""
_KINDS = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def main() -> NoReturn:
    """Do what the plan says, until standard input ends."""
    plan = read_plan()
    try:
        _keep(plan)
    except OSError as error:
        sys.exit(str(error))


def read_plan() -> dict[str, Any]:
    """Return the plan in the file behind the descriptor that we were started with."""
    with open(int(sys.argv[1]), "rb") as file:
        return json.load(file)


def become_root(first_id: int) -> int:
    """Enter a user namespace whose ids begin at `first_id` here, as its root; return it."""
    extents = ((0, first_id, 2**16),)
    userns_fd = enter.namespace(first_id, {"uid": extents, "gid": extents, "programs": {}})
    if userns_fd is None:
        raise OSError("the map of a user namespace was refused")
    enter_users(userns_fd)
    return userns_fd


def enter_users(userns_fd: int) -> None:
    """Join a user namespace, as its root."""
    kernel.join(userns_fd, kernel.CLONE_NEWUSER)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _keep(plan: dict[str, Any]) -> NoReturn:
    # Bound as root: no user inside gets through the folders above them.
    lower = {f"lower-{at}": path for at, path in enumerate(plan["lower"])}
    enter.stage({**lower, "files": plan["files"]})
    os.mkdir(ROOT, 0o755)
    become_root(plan["first_id"])
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    options = {
        "lowerdir": ":".join(f"{enter.STAGE}/{name}" for name in lower),
        "upperdir": f"{enter.STAGE}/files/upper",
        "workdir": f"{enter.STAGE}/files/work",
    }
    text = ",".join(f"{key}={value}" for key, value in options.items()) + ",userxattr"
    kernel.mount("overlay", ROOT, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, text)
    _answer("ready")
    pid = 0
    for line in sys.stdin:
        if line == "start\n":
            pid = _start(plan)
            _answer(f"{pid}")
    if pid:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _answer(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _start(plan: dict[str, Any]) -> int:
    """Start process 1 in namespaces of its own, and return its pid once its root is made."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ready, ready_fd = os.pipe()
    numbers, number = os.pipe()
    helper = os.fork()
    if helper == 0:
        _start_first(plan, ready_fd, number)
    os.close(ready_fd)
    os.close(number)
    pid = int(os.read(numbers, 32) or b"0")
    why = os.read(ready, 4096)
    os.close(ready)
    os.close(numbers)
    if not pid or why != b"y":
        raise OSError(f"the container's root cannot be made: {why.decode(errors='replace')}")
    return pid


def _start_first(plan: dict[str, Any], ready_fd: int, number: int) -> NoReturn:
    """Start process 1 from a process of its own: only once may one have a child in another."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _become_first(plan, ready_fd)
        os.write(number, f"{pid}\n".encode())
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.waitpid(pid, 0)
    finally:
        os._exit(0)


def _become_first(plan: dict[str, Any], ready_fd: int) -> NoReturn:
    try:
        kernel.die_with_parent(signal.SIGKILL)
        os.setsid()
        kernel.unshare(_KINDS | (0 if plan["shares_network"] else kernel.CLONE_NEWNET))
        if not plan["shares_network"]:
            session_directory.raise_loopback()
        kernel.name_machine("container")
        _make_root()
        kernel.forbid_new_privileges()
        kernel.leave_keyring()
        kernel.drop_capabilities(keep=CAPABILITIES)
        kernel.set_dumpable(False)
        kernel.install_filter(bytes.fromhex(plan["filter"]))
        os.write(ready_fd, b"y")
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # which the kernel keeps from a process 1
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                signal.sigwait({signal.SIGCHLD})
    except OSError as error:
        os.write(ready_fd, str(error).encode()[:4000])
    finally:
        os._exit(1)


def _make_root() -> None:
    kernel.mount("none", "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    for name in ("proc", "dev", "tmp", "etc"):
        os.makedirs(f"{ROOT}/{name}", exist_ok=True)
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", f"{ROOT}/proc", "proc", quiet)
    dev = f"{ROOT}/dev"
    kernel.mount("dev", dev, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=64k")
    for name in _DEVICES:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_EXCL, 0o666))
        kernel.mount(f"/dev/{name}", f"{dev}/{name}", None, kernel.MS_BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}")
    kernel.mount("shm", f"{dev}/shm", "tmpfs", quiet, "mode=1777,size=64m")
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", f"{dev}/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    for name, target in _LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    os.chdir(ROOT)
    pivot()


def pivot() -> None:
    """Make the directory that we are in the root, and let go of the old one."""
    import ctypes

    kernel.check(ctypes.CDLL(None, use_errno=True).pivot_root(b".", b"."), "pivot_root")
    kernel.detach(".")
    os.chdir("/")


if __name__ == "__main__":
    main()

"""The filter of system calls: what it decides, and who is asked."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_sandbox.inside import notify

ASKED = """
import ctypes, errno, os, socket
from agentrl_sandbox.inside import kernel, notify, seccomp

NEW = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]

def attempt(flags):
    if kernel.system_call(UNSHARE, flags) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "done"

if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
kernel.enter_user_namespace()  # the keeper: privileged in here, and nobody outside
ours, theirs = socket.socketpair()
asking = os.fork()
if asking == 0:
    ours.close()
    kernel.enter_user_namespace()
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    fd = kernel.install_filter_with_listener(seccomp.build(notify_unshare=True))
    assert not os.get_inheritable(fd)
    socket.send_fds(theirs, [b"!"], [fd])
    os.close(fd)
    try:
        kernel.install_filter_with_listener(seccomp.build(notify_unshare=True))
    except OSError as error:
        theirs.send(errno.errorcode[error.errno].encode())
    before = os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")
    results = [attempt(flags) for flags in (kernel.CLONE_NEWPID, NEW, NEW, 1 << 60 | NEW)]
    after = os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")
    results.append(str([a != b for a, b in zip(before, after)]))
    theirs.send(" ".join(results).encode())
    theirs.recv(1)
    print(attempt(NEW), flush=True)  # to nobody
    os._exit(0)
theirs.close()
_, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
listener = notify.Listener(fd)
assert ours.recv(100) == b"EBUSY"
allowed = 0
while True:
    ready = notify.select.poll()
    ready.register(listener, notify.select.POLLIN)
    ready.register(ours, notify.select.POLLIN)
    assert ready.poll(10_000)
    asked = listener.next()
    if asked is None:
        break
    assert (asked.pid, asked.number) == (asking, UNSHARE), asked
    assert listener.waits(asked)
    if asked.args[0] == NEW and not allowed:
        allowed += listener.allow(asked)
    elif asked.args[0] == NEW:
        assert listener.refuse(asked, errno.ENOSPC)
    else:
        assert listener.refuse(asked)
    assert not listener.refuse(asked)  # answered already
print(ours.recv(1000).decode(), flush=True)
listener.close()
ours.send(b"!")
assert os.waitpid(asking, 0)[1] == 0
"""

KILLED = """
import os, signal, socket
from agentrl_sandbox.inside import kernel, notify, seccomp

ours, theirs = socket.socketpair()
asking = os.fork()
if asking == 0:
    kernel.forbid_new_privileges()
    fd = kernel.install_filter_with_listener(seccomp.build(notify_unshare=True))
    socket.send_fds(theirs, [b"!"], [fd])
    os.close(fd)
    theirs.recv(1)
    kernel.unshare(0)
    os._exit(1)
theirs.close()
_, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
listener = notify.Listener(fd)
assert listener.next() is None  # and does not block
ours.send(b"!")
poll = notify.select.poll()
poll.register(listener, notify.select.POLLIN)
assert poll.poll(10_000)
asked = listener.next() if RECEIVED else None
os.kill(asking, signal.SIGKILL)
assert os.waitpid(asking, 0)[1] == signal.SIGKILL
if asked is not None:
    assert not listener.waits(asked)
    assert not listener.allow(asked)
assert listener.next() is None
print("gone")
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1] / "sandbox",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.bubblewrap
def test_one_call_of_an_unprivileged_process_is_let_through_by_its_keeper() -> None:
    assert notify.available()
    told, after = run(ASKED).splitlines()
    assert told == "EPERM done ENOSPC EPERM [True, True]"
    assert after == "ENOSYS"


@pytest.mark.bubblewrap
@pytest.mark.parametrize("received", [True, False])
def test_a_caller_that_dies_while_it_waits_is_noticed(received: bool) -> None:
    assert run(KILLED.replace("RECEIVED", str(received))) == "gone\n"

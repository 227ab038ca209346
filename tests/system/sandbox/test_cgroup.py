"""Cgroups: where they may be made, what is written, and that the kernel then holds the bounds.

The part `cgroup` runs on whichever version this machine has.

Mutants seen caught, 22 in all, among them: a path outside of the mount; v1 for the memory of v2; a
pool with the whole machine; forks without memory of their own; limits raised in the wrong order;
children left outside; the pid of another namespace; nothing killed at the end; no lease, or one
that is never released; a half-made cgroup left behind, or one whose maker was cancelled,
or that its process could not join; a thread for each step of a session.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.runtime import threads
from agentrl.runtime.cgroup_place import CgroupPath, explain_refusal, locate
from agentrl.runtime.memory_limit import NO_LIMIT_BYTES, total_bytes
from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox.cgroup import (
    CgroupLimits,
    CgroupRoot,
    ProcessCgroup,
    available_bytes,
    host_pid,
    pool_bounds,
    processes_max,
    session_bounds,
)
from agentrl_sandbox.cgroup.group import field
from agentrl_sandbox.cgroup.room import room_bytes
from agentrl_sandbox.cgroup.sandbox_cgroups import PoolCgroup, SessionCgroup
from agentrl_sandbox.cgroup.values import values
from agentrl_sandbox.reaping import record
from agentrl_sandbox.reaping.owner import LeaseOwner

MIB = 2**20
MINE = f"agentrl-{LeaseOwner.current().text}-"
HYBRID = """\
23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CONTAINER = "700 690 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
EVERYTHING = frozenset(("cpu", "memory", "pids", "io"))


def nothing(_: str) -> frozenset[str]:
    return frozenset()


def everything(_: str) -> frozenset[str]:
    return EVERYTHING


# -- where ------------------------------------------------------------------------------------


def test_v1_has_a_directory_per_controller() -> None:
    membership = "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/slice\n0::/\n"
    root = "/sys/fs/cgroup"
    want = {"memory": f"{root}/memory/jobs/7", "pids": f"{root}/pids"}
    want["cpu"] = f"{root}/cpu,cpuacct/slice"
    assert locate(HYBRID, membership, nothing) == CgroupPath(1, want)


def test_v2_has_one_directory() -> None:
    directory = "/sys/fs/cgroup/user.slice/run-3.scope"
    want = CgroupPath(2, dict.fromkeys(("memory", "pids", "cpu"), directory))
    assert locate(UNIFIED, "0::/user.slice/run-3.scope\n", everything) == want
    # We moved ourselves down when that one was divided; ours are made where we were.
    assert locate(UNIFIED, "0::/user.slice/run-3.scope/agentrl-host\n", everything) == want


def test_v2_without_a_memory_controller_is_no_place() -> None:
    assert locate(UNIFIED, "0::/\n", nothing) is None
    assert locate(HYBRID.splitlines(keepends=True)[-1], "4:memory:/x\n0::/\n", nothing) is None


def test_the_version_that_has_the_memory_is_used() -> None:
    mountinfo = "\n".join(line for line in HYBRID.splitlines() if "rw,memory" not in line)
    found = locate(mountinfo, "8:pids:/\n0::/x\n", lambda _: frozenset(("memory",)))
    assert found == CgroupPath(2, {"memory": "/sys/fs/cgroup/unified/x"})


def test_a_container_sees_its_own_part() -> None:
    inside = locate(CONTAINER, "4:memory:/docker/ab/more\n", nothing)
    assert inside == CgroupPath(1, {"memory": "/sys/fs/cgroup/memory/more"})
    exactly = locate(CONTAINER, "4:memory:/docker/ab\n", nothing)
    assert exactly == CgroupPath(1, {"memory": "/sys/fs/cgroup/memory"})


@pytest.mark.parametrize("path", ["/docker/abc", "/", "/docker/ab/../cd", "/../x"])
def test_what_is_outside_of_the_mount_is_no_place(path: str) -> None:
    assert locate(CONTAINER, f"4:memory:{path}\n", nothing) is None


def test_what_is_left_behind_elsewhere_would_never_be_found() -> None:
    assert "not below /sys/fs/cgroup" in explain_refusal(CgroupPath(1, {"memory": "/tmp"}))
    assert "not writable" in explain_refusal(CgroupPath(1, {"memory": "/sys/fs/cgroup/none"}))


@pytest.mark.cgroup
def test_processes_have_to_be_bounded_too(cgroups: CgroupRoot) -> None:
    directories = dict(cgroups.place.directories)
    del directories["pids"]
    assert (
        explain_refusal(CgroupPath(cgroups.place.version, directories))
        == "there is no pids controller"
    )


def test_a_mount_point_may_have_a_space() -> None:
    line = "35 31 0:32 / /c\\040g rw - cgroup cgroup rw,memory\n"
    assert locate(line, "4:memory:/x\n", nothing) == CgroupPath(1, {"memory": "/c g/x"})


# -- what -------------------------------------------------------------------------------------


def written(version: int, bounds: CgroupLimits) -> list[tuple[str, str]]:
    return [(v.file, v.text) for v in values(2 if version == 2 else 1, bounds)]


def test_what_is_written() -> None:
    bounds = CgroupLimits(memory_bytes=MIB, processes=7)
    assert written(1, bounds) == [
        ("memory.limit_in_bytes", "1048576"),
        ("memory.memsw.limit_in_bytes", "1048576"),
        ("memory.kmem.tcp.limit_in_bytes", "262144"),
        ("pids.max", "7"),
    ]
    assert written(2, bounds) == [
        ("memory.max", "1048576"),
        ("memory.swap.max", "0"),
        ("pids.max", "7"),
    ]
    assert written(1, CgroupLimits()) == written(2, CgroupLimits()) == []


@given(st.integers(1, 2000), st.integers(1, 2**42), st.integers(0, 2**42), st.integers(2, 2**22))
def test_a_pool_never_gets_the_whole_machine(
    sessions: int, total: int, spare: int, most: int
) -> None:
    bounds = pool_bounds(
        Limits(),
        sessions=sessions,
        total_bytes=total,
        free_memory_bytes=spare,
        processes_max=most,
    )
    assert bounds.memory_bytes is not None
    assert bounds.processes is not None
    assert bounds.memory_bytes <= total - min(spare, total // 2)
    assert bounds.processes <= most // 2
    one = session_bounds(Limits())
    need_bytes = sessions * (one.memory_bytes or 0)
    assert min(need_bytes, total // 2) <= bounds.memory_bytes <= need_bytes + 256 * MIB


def test_a_small_pool_gets_what_its_sessions_need_and_no_more() -> None:
    limits = Limits(memory_bytes=100 * MIB, disk_bytes=28 * MIB, processes=16)
    assert session_bounds(limits) == CgroupLimits(memory_bytes=160 * MIB, processes=25)
    assert session_bounds(limits, members=3) == CgroupLimits(memory_bytes=416 * MIB, processes=59)
    roomy = {"total_bytes": 2**40, "free_memory_bytes": 2**30, "processes_max": 2**22}
    want = CgroupLimits(memory_bytes=2 * 160 * MIB + 256 * MIB, processes=2 * 25 + 64)
    assert pool_bounds(limits, sessions=2, **roomy) == want


def test_what_is_left_of_a_limit() -> None:
    assert room_bytes(100, 60, "inactive_file 20\ntotal_inactive_file 30\n") == 70
    assert room_bytes(100, 60, "inactive_file 20\n") == 60
    assert room_bytes(100, 160, "") == 0
    assert room_bytes(100, 10, "inactive_file 20\n") == 100
    assert field("oom 3\noom_kill 2\n", "oom_kill") == 2
    assert field("under_oom 0\n", "oom_kill") == 0


def test_there_is_memory_here() -> None:
    assert 0 < available_bytes() <= total_bytes() < NO_LIMIT_BYTES
    assert processes_max() > 100


# -- and really -------------------------------------------------------------------------------

TREE = """
import os, sys, time
def child(work):
    pid = os.fork()
    if pid == 0:
        try: work()
        finally: os._exit(0)
    return pid
"""
HOG = """
input()
def eat():
    kept = []
    while True: kept.append(bytearray(b'x' * 2**20))
status = os.waitpid(child(eat), 0)[1]
print(os.WTERMSIG(status), flush=True)
input()
"""
BOMB = """
input()
made = 0
try:
    while made < 500:
        child(lambda: time.sleep(60)); made += 1
except BlockingIOError as error:
    print(made, type(error).__name__, flush=True)
input()
"""
HOLDER = """
input()
held = bytearray(b'x' * 2**24)
print('holds', flush=True)
input()
"""
GROWN = """
told, tell = os.pipe()
child(lambda: child(lambda: os.write(tell, b'x') and time.sleep(600)) and time.sleep(600))
os.read(told, 1)
print('grown', flush=True)
input()
"""
WALKER = """
import ctypes, os, socket
control = socket.socket(fileno=0)
if os.geteuid() == 0:
    os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
assert ctypes.CDLL(None).unshare(0x30000000) == 0  # CLONE_NEWUSER | CLONE_NEWPID
_, fds, _, _ = socket.recv_fds(control, 1, 8)
told, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(told, 1)
    for fd in fds: os.write(fd, b"0")
    control.send(b"joined %d" % os.getpid())
    while True: os.read(0, 1)
socket.send_fds(control, [b"x"], [os.pidfd_open(pid)])
os.write(tell, b"x")
os.waitpid(pid, 0)
"""


@pytest.fixture
def cgroups() -> Iterator[CgroupRoot]:
    found = CgroupRoot.find()
    assert found is not None
    yield found
    for directory in found.place.directories.values():
        left = [name for name in os.listdir(directory) if name.startswith(MINE)]
        assert left == [], f"left behind in {directory}"
    assert [text for text in leases() if MINE in text] == []


def leases() -> list[str]:
    """Return what this process has written down to be removed."""
    folder = record.state_directory() / LeaseOwner.current().text
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return [path.read_text(errors="replace") for path in files]


@pytest.fixture
def group(cgroups: CgroupRoot) -> Iterator[ProcessCgroup]:
    made = cgroups.make("test", CgroupLimits(memory_bytes=64 * MIB, processes=20))
    yield made
    assert made.remove()


@pytest.fixture
def tree(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a line, works in a child of its own, and says what came of it."""
    command = [sys.executable, "-I", "-S", "-c", TREE + request.param]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def go(process: subprocess.Popen[str]) -> str:
    """Let it work, and return what it says."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.cgroup
def test_what_is_made_is_leased_before(group: ProcessCgroup) -> None:
    paths = set(group.directories.values())
    assert all(any(path in text for text in leases()) for path in paths)


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [HOG], indirect=True)
def test_memory_of_the_whole_tree_is_bounded_and_the_kill_is_counted(
    group: ProcessCgroup, tree: subprocess.Popen[str]
) -> None:
    assert group.oom_kills() == 0
    group.add(tree.pid)
    assert go(tree) == str(int(signal.SIGKILL))
    assert group.oom_kills() == 1
    assert tree.poll() is None, "the largest process is killed, and not its parent"
    assert group.memory_bytes() < 64 * MIB


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [BOMB], indirect=True)
def test_processes_of_the_whole_tree_are_bounded(
    group: ProcessCgroup, tree: subprocess.Popen[str]
) -> None:
    group.add(tree.pid)
    assert go(tree) == "19 BlockingIOError"
    assert len(group.pids()) == 20


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [HOG], indirect=True)
def test_the_bound_of_a_pool_holds_for_its_sessions(
    cgroups: CgroupRoot, tree: subprocess.Popen[str]
) -> None:
    pool = cgroups.make("pool", CgroupLimits(memory_bytes=48 * MIB, processes=50))
    try:
        session = pool.make("session", CgroupLimits(memory_bytes=512 * MIB, processes=20))
        session.add(tree.pid)
        assert pool.pids() == [tree.pid]
        assert go(tree) == str(int(signal.SIGKILL))
        assert session.oom_kills() == 1
    finally:
        assert pool.remove()


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [GROWN], indirect=True)
def test_a_pool_with_a_process_of_its_own_can_still_have_sessions(
    cgroups: CgroupRoot, tree: subprocess.Popen[str]
) -> None:
    """In v2 a cgroup with processes cannot have bounded children: they move."""
    assert tree.stdout is not None
    assert tree.stdout.readline() == "grown\n"
    pool = cgroups.make("pool", CgroupLimits(memory_bytes=256 * MIB, processes=50))
    try:
        pool.add(tree.pid)
        session = pool.make("session", CgroupLimits(processes=20))
        assert (pool.pids(), session.pids()) == ([tree.pid], [])
        pool.add_tree(tree.pid)
        assert len(pool.pids()) == 3
        session.add_tree(tree.pid)
        assert len(session.pids()) == 3
    finally:
        assert pool.remove()
    assert tree.wait(30) == -signal.SIGKILL


def memory_limit(group: ProcessCgroup) -> int:
    names = ("memory.limit_in_bytes", "memory.max")
    paths = [Path(group.directories["memory"], name) for name in names]
    return next(int(path.read_text()) for path in paths if path.exists())


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [HOLDER], indirect=True)
def test_limits_can_be_raised_and_lowered_but_not_below_what_is_used(
    group: ProcessCgroup, tree: subprocess.Popen[str]
) -> None:
    for memory_bytes in (512 * MIB, 32 * MIB, 128 * MIB):
        group.limit(CgroupLimits(memory_bytes=memory_bytes))
        assert memory_limit(group) == memory_bytes
    group.add(tree.pid)
    assert go(tree) == "holds"
    with pytest.raises(OSError, match=r"in use|busy"):
        group.limit(CgroupLimits(memory_bytes=8 * MIB))
    assert memory_limit(group) == 128 * MIB
    assert tree.poll() is None


@pytest.mark.cgroup
def test_a_group_that_cannot_have_its_limits_is_not_made(cgroups: CgroupRoot) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        cgroups.make("wrong", CgroupLimits(processes=-5))


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [HOG], indirect=True)
async def test_a_start_that_is_cancelled_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, cgroups: CgroupRoot, tree: subprocess.Popen[str]
) -> None:
    """What is looked at is what `cgroups` looks at in the end."""
    del cgroups
    create, made, go_on = CgroupRoot.make, threading.Event(), threading.Event()

    def slowly(self: CgroupRoot, name: str, bounds: CgroupLimits) -> ProcessCgroup:
        group = create(self, name, bounds)
        made.set()
        assert go_on.wait(30)
        return group

    monkeypatch.setattr(CgroupRoot, "make", slowly)
    starting = asyncio.create_task(PoolCgroup.around(tree.pid, SandboxSettings()))
    assert await asyncio.to_thread(made.wait, 30)
    starting.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.cgroup
@pytest.mark.parametrize("tree", [HOLDER], indirect=True)
async def test_a_session_takes_one_call_in_a_thread_to_begin_and_one_to_end(
    monkeypatch: pytest.MonkeyPatch, group: ProcessCgroup, tree: subprocess.Popen[str]
) -> None:
    start, calls = threads._start, list[object]()  # pyright: ignore[reportPrivateUsage]

    def count(*args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        calls.append(args)
        return start(*args, **kwargs)

    monkeypatch.setattr(threads, "_start", count)
    fence = SessionCgroup(Limits())
    fence.close()
    await fence.live(group, "session", tree.pid)
    assert len(calls) == 2, calls
    assert tree.wait(30) == -signal.SIGKILL, "it was inside"


@pytest.mark.cgroup
async def test_a_session_that_cannot_be_moved_leaves_no_cgroup(
    monkeypatch: pytest.MonkeyPatch, group: ProcessCgroup
) -> None:
    def fail(self: ProcessCgroup, pid: int) -> None:
        assert os.path.isdir(self.directories["memory"])
        raise OSError("the kernel refuses")

    monkeypatch.setattr(ProcessCgroup, "add_tree", fail)
    fence = SessionCgroup(Limits())
    task = asyncio.create_task(fence.live(group, "session", os.getpid()))
    fence.close()
    await task
    assert "session" not in os.listdir(group.directories["memory"])


@pytest.mark.cgroup
def test_whoever_holds_a_door_moves_itself(group: ProcessCgroup) -> None:
    """A process without any right, in namespaces of its own, and its host pid by a pidfd."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", "-c", WALKER]
    with ours, theirs, subprocess.Popen(command, stdin=theirs.fileno()) as process:
        fds = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in group.join_files()]
        socket.send_fds(ours, [b"x"], fds)
        _, (pidfd,), _, _ = socket.recv_fds(ours, 1, 1)
        assert ours.recv(16) == b"joined 1"
        pid = host_pid(pidfd)
        assert group.pids() == [pid]
        os.kill(pid, signal.SIGKILL)
        process.wait(30)
        with pytest.raises(ProcessLookupError):
            host_pid(pidfd)
        for fd in (*fds, pidfd):
            os.close(fd)


@pytest.mark.cgroup
def test_what_a_killed_process_left_is_removed(cgroups: CgroupRoot) -> None:
    code = (
        "from agentrl_sandbox.cgroup import CgroupLimits, CgroupRoot\n"
        "pool = CgroupRoot.find().make('left', CgroupLimits(memory_bytes=2**26, processes=9))\n"
        "pool.make('inner', CgroupLimits(processes=5))\n"
        "print(*set(pool.directories.values()), sep='|', flush=True); input()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    mine = cgroups.make("kept", CgroupLimits(memory_bytes=64 * MIB))
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        ) as owner:
            assert owner.stdout is not None
            left = owner.stdout.readline().strip().split("|")
            assert all(map(os.path.isdir, left))
            owner.kill()
        deadline_s = time.monotonic() + 60
        while any(map(os.path.exists, left)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not any(map(os.path.exists, left))
        assert os.path.isdir(mine.directories["memory"])
    finally:
        assert mine.remove()

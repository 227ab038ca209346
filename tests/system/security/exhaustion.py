"""Attacks that use something up: processes, memory, disk, time, output, places in the pool."""

import asyncio

from agentrl.errors import AgentrlError
from agentrl.sandbox import ExecResult
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import LIMITS, Arena
from tests.system.security.attack import Attack, Gap, brief, unexpected

_SOCKETS = "what sockets hold is no process's memory, and cgroup v1 counts it only where asked to"
_PER_PROCESS = "the limit is on each process; only a memory cgroup counts a whole session"


async def _flood(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Output is cut, says so, and neither end of it is lost to the other cell."""
    for timeout_s in (1.5, 15):  # a slow machine has the second try
        result = await session.exec(arena.program(attack.code), timeout_s=timeout_s)
        kept = max(len(result.stdout), len(result.stderr))
        if kept:
            break
    found = unexpected(result, attack)
    if not result.truncated or not 0 < kept < 2 * LIMITS.output_bytes:
        found.append(f"{kept} characters kept, truncated={result.truncated}")
    return found


async def _flood_between(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    started = await session.exec(arena.program(attack.code))
    await asyncio.sleep(1)
    result = await session.exec("print('mine')")
    bounded = max(len(r.stdout) for r in (started, result)) < 2 * LIMITS.output_bytes
    return [] if bounded else ["output between cells is not bounded"]


async def _hang_everywhere(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Others are answered while every session of the attacker hangs until its deadline."""
    found = list[str]()
    for within_s in (4, 20):  # a slow machine has the second try
        if not (found := await _hung(arena, session, attack, within_s)):
            break
    return found


async def _hung(
    arena: Arena, session: SandboxSession, attack: Attack, within_s: float
) -> list[str]:
    async with asyncio.TaskGroup() as group:
        sessions = [await arena.pool.open() for _ in range(16)]
        hung = [group.create_task(s.exec(attack.code, timeout_s=within_s)) for s in sessions]
        hung += [group.create_task(session.exec("while True: pass", timeout_s=within_s))]
        await asyncio.sleep(0.2)
        answered = await arena.canary.exec("secret")
        fresh = await arena.pool.open()
        first = await fresh.exec("6 * 7")
        early = sum(task.done() for task in hung)
        await fresh.close()
    found = [brief(r) for r in (task.result() for task in hung) if r.status != "timeout"]
    for one in sessions:
        await one.close()
    if early or not answered.ok or first.value != "42":
        found.append(f"nobody else was answered meanwhile: {brief(answered)}, {brief(first)}")
    return found


async def _per_user(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """What the kernel counts per user must not be counted over two sessions together."""
    async with arena.session() as other:
        await session.exec(arena.program(attack.code))
        result: ExecResult = await other.exec(
            arena.program(
                "assert call(294, 26, 0) != 'EMFILE', 'no inotify instance is left'\n"
                "assert call(222, 107, 1, 0, ctypes.addressof(ctypes.c_int())) != 'EAGAIN'\n"
                "through"
            )
        )
    return unexpected(result, attack)


async def _births_go_on(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Interpreters start and are copied elsewhere, whatever lies unread in sockets."""
    async with arena.session() as other:
        found = unexpected(await session.exec(arena.program(attack.code)), attack)
        await other.exec("__import__('os')._exit(0)")
        try:
            async with asyncio.timeout(20):
                copy = await other.fork()
                found += unexpected(await copy.exec("[]"), attack)
                await copy.close()
                async with arena.session() as fresh:
                    found += unexpected(await fresh.exec("[]"), attack)
        except AgentrlError as error:
            found.append(f"no interpreter starts any more: {error}")
    return found


ATTACKS = (
    Attack(
        name="fork-bomb",
        title="fork 400 processes that sleep",
        held_by="process limit of the session",
        ends=("limit",),
        code="""
import time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(20)
""",
    ),
    Attack(
        name="fork-tree",
        title="fork in all children at once, and keep every one of them busy",
        held_by="process limit of the session, deadline",
        gaps={"process": Gap("processes are counted 20 times a second only", shown=False)},
        ends=("limit", "timeout", "error"),
        timeout_s=2,
        code="""
for _ in range(9):
    os.fork()
while True: pass
""",
    ),
    Attack(
        name="thread-bomb",
        title="start 5000 threads",
        held_by="process limit, memory limit",
        ends=("limit", "oom"),
        code="""
import threading, time
for _ in range(5000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    ),
    Attack(
        name="memory-bomb",
        title="allocate and touch 4 GiB",
        held_by="memory limit",
        ends=("oom",),
        code="""
hoard = []
for n in range(1024):
    hoard.append(bytes([n % 255 + 1]) * 2**22)
""",
    ),
    Attack(
        name="memory-map",
        title="map 4 GiB shared with children",
        held_by="memory limit",
        ends=("oom", "error"),
        code="""
import mmap
region = mmap.mmap(-1, 2**32)
for at in range(0, 2**32, 4096):
    region[at] = 1
""",
    ),
    Attack(
        name="memory-of-a-tree",
        title="hold 200 MiB in each of 5 processes, four times the limit together",
        held_by="memory cgroup of the session",
        gaps={
            "namespaces": Gap(_PER_PROCESS, unless="cgroup"),
            "bubblewrap": Gap(_PER_PROCESS, unless="cgroup"),
            "docker": Gap("the container's limit is on all its sessions together"),
            "process": Gap(_PER_PROCESS, shown=False),
        },
        ends=("ok", "oom", "crash", "limit"),
        code="""
import time
pipes = []
for _ in range(5):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        hold = b"x" * (200 * 2**20)
        os.write(theirs, b"1")
        time.sleep(20)
        os._exit(0)
    os.close(theirs)
    pipes.append((ours, pid))
held = sum(os.read(ours, 1) == b"1" for ours, _ in pipes)
for ours, pid in pipes:
    os.kill(pid, 9); os.waitpid(pid, 0); os.close(ours)
if held * 200 > 600: through.append(f"{held * 200} MiB held at once")
through
""",
    ),
    Attack(
        name="memory-in-memfds",
        title="keep 600 MiB in anonymous files, which no process maps",
        held_by="filter or memory cgroup",
        ends=("ok", "oom", "crash", "limit", "error"),
        gaps={
            "process": Gap("anonymous files count as nobody's memory", unless="cgroup"),
        },
        code="""
import time
piece = b"x" * 2**22
held, pids = 0, []
for _ in range(3):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        made = 0
        try:
            for n in range(50):
                fd = os.memfd_create(str(n))
                made += os.write(fd, piece)
        except OSError:
            pass
        os.write(theirs, made.to_bytes(8, "big"))
        time.sleep(20)
        os._exit(0)
    pids.append(pid)
    os.close(theirs)
    held += int.from_bytes(os.read(ours, 8), "big")
for pid in pids:
    os.kill(pid, 9); os.waitpid(pid, 0)
if held > 2**28 + 2**27: through.append(f"{held >> 20} MiB held at once")
through
""",
    ),
    Attack(
        name="memory-in-sockets",
        title="keep 400 MiB in buffers of sockets that nobody reads",
        held_by="memory cgroup of the session (v1: a quarter of its limit for sockets)",
        ends=("ok", "oom", "crash", "limit", "error"),
        timeout_s=15.0,
        gaps={
            "namespaces": Gap(_SOCKETS, shown=False, unless="cgroup"),
            "bubblewrap": Gap(_SOCKETS, shown=False, unless="cgroup"),
            "docker": Gap(_SOCKETS, shown=False),
            "process": Gap(_SOCKETS, shown=False, unless="cgroup"),
        },
        code="""
import socket, time
MOST, EACH = 400 * 2**20, 16
def fill(report):
    held, sent = [], 0
    try:
        while sent < 2 * MOST // EACH and len(held) < 40:
            server = socket.create_server(("127.0.0.1", 0))
            client = socket.create_connection(server.getsockname())
            held += [server, client, server.accept()[0]]
            client.setblocking(False)
            try:
                for _ in range(1000): sent += client.send(b"x" * 2**16)
            except BlockingIOError: pass
    except OSError: pass
    os.write(report, sent.to_bytes(8, "big"))
    time.sleep(600)
pids, reports, held = [], [], 0
for number in range(EACH):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0: fill(theirs)
    os.close(theirs)
    pids.append(pid)
    reports.append(ours)
for ours in reports: held += int.from_bytes(os.read(ours, 8), "big")
for pid in pids: os.kill(pid, 9)
if held >= MOST: through.append(f"{held >> 20} MiB in sockets")
through
""",
    ),
    Attack(
        name="memory-in-segments",
        title="keep 512 MiB in System V segments, attached one at a time",
        held_by="filter or memory cgroup",
        ends=("ok", "oom", "crash", "limit", "error"),
        gaps={"process": Gap("they are the host's, and stay when the session ends", shown=False)},
        code="""
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
made, ids = 0, []
for _ in range(16):
    number = libc.shmget(0, 2**25, 0o1600)
    if number < 0: break
    ids.append(number)
    address = libc.shmat(number, None, 0)
    if address in (None, 2**64 - 1): break
    ctypes.memset(address, 1, 2**25)
    libc.shmdt(ctypes.c_void_p(address))
    made += 2**25
for number in ids: libc.shmctl(number, 0, None)
if made > 2**28: through.append(f"{made >> 20} MiB held at once")
through
""",
    ),
    Attack(
        name="zip-bomb",
        title="unpack 16 MiB of zeros 256 times over",
        held_by="memory limit",
        ends=("oom",),
        code="""
import gzip
member = gzip.compress(bytes(2**24))
gzip.decompress(member * 256)
""",
    ),
    Attack(
        name="disk-one-file",
        title="write one file until the disk is full",
        held_by="file size limit, size of the session's file system",
        ends=("limit",),
        code="""
with open("big", "wb") as file:
    for _ in range(512): file.write(bytes(2**20))
""",
    ),
    Attack(
        name="disk-many-files",
        title="write many files until the disk is full",
        held_by="size of the session's file system (`process`: counted after each cell)",
        ends=("limit",),
        code="for n in range(64): open(f'{n}', 'wb').write(bytes(2**20))",
    ),
    Attack(
        name="disk-inodes",
        title="make 5000 empty files, directories and links",
        held_by="number of files in the session's file system",
        gaps={"process": Gap("bytes are counted there, not files")},
        ends=("limit",),
        code="""
for n in range(2000):
    open(f"file-{n}", "w").close(); os.mkdir(f"directory-{n}")
    os.symlink("x", f"link-{n}"); os.link("file-0", f"hard-{n}")
""",
    ),
    Attack(
        name="disk-reserve",
        title="reserve 512 MiB without writing it, in one file and in many",
        held_by="file size limit, size of the session's file system",
        ends=("limit",),
        code="""
attempt("one file", lambda: os.posix_fallocate(os.open("one", 66), 0, 2**29))
assert not through, through
for n in range(32):
    fd = os.open(f"{n}", 66)
    os.posix_fallocate(fd, 0, 2**22)
    os.close(fd)
""",
    ),
    Attack(
        name="disk-sparse",
        title="make files of one TiB that hold nothing",
        held_by="file size limit",
        ends=("ok", "limit"),
        code="""
attempt("truncate", lambda: os.truncate(os.open("sparse", 66), 2**40))
attempt("seek", lambda: os.pwrite(os.open("sparse", 66), b"x", 2**40))
through
""",
    ),
    Attack(
        name="deep-directories",
        title="nest 2000 directories, so deep that no path reaches the last one",
        held_by="number of files, files handled without recursion",
        ends=("ok", "limit"),
        code="""
for n in range(2000):
    os.mkdir("d" * 200); os.chdir("d" * 200)
through
""",
    ),
    Attack(
        name="endless-loop",
        title="loop for ever",
        held_by="deadline, held by the host",
        ends=("timeout",),
        timeout_s=0.5,
        code="while True: pass",
    ),
    Attack(
        name="finalizer-without-end",
        title="loop in a finalizer, where no exception gets out",
        held_by="deadline, held by the host",
        ends=("timeout",),
        timeout_s=0.5,
        code="class D:\n  def __del__(self):\n    while True: pass\nD()",
    ),
    Attack(
        name="timer-storm",
        title="have a signal come ten thousand times a second, in all later cells",
        held_by="an interpreter that a signal ends is replaced",
        ends=("ok", "crash", "error", "timeout"),
        code="""
import signal
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
through
""",
    ),
    Attack(
        name="extended-attributes",
        title="hide 64 MiB in extended attributes of one file",
        held_by="size of the session's file system, or its kernel without such attributes",
        gaps={"process": Gap("the directory is one of the host's", shown=False)},
        code="""
open("a", "w").close()
held = 0
try:
    for number in range(1100):
        os.setxattr("a", f"user.{number}", b"x" * 60_000)
        held += 60_000
except OSError: pass
if held > 2**26: through.append(f"{held >> 20} MiB in attributes")
through
""",
    ),
    Attack(
        name="endless-c-call",
        title="never come back from one call: a pattern that backtracks, without a signal check",
        held_by="deadline, held by the host",
        ends=("timeout",),
        timeout_s=0.5,
        code="import re; re.match('(a+)+$', 'a' * 64 + 'b')",
    ),
    Attack(
        name="giant-number",
        title="compute a number of a hundred million digits",
        held_by="deadline, memory limit",
        ends=("timeout", "oom", "error"),
        timeout_s=1,
        code="10 ** 10 ** 8 // 3",
    ),
    Attack(
        name="deaf-loop",
        title="ignore every signal, then loop",
        held_by="SIGKILL at the deadline",
        ends=("timeout",),
        timeout_s=0.5,
        code="""
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
""",
    ),
    Attack(
        name="stop-oneself",
        title="stop the own process and its children with SIGSTOP",
        held_by="SIGKILL at the deadline",
        ends=("timeout",),
        timeout_s=0.5,
        code="""
import signal
if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
""",
    ),
    Attack(
        name="sleep-with-false-clock",
        title="replace the clock and the timers of Python, and sleep past the deadline",
        held_by="deadline on the host's own clock",
        ends=("timeout",),
        timeout_s=0.5,
        code="""
import time
for name in ("time", "monotonic", "perf_counter", "process_time"):
    setattr(time, name, lambda: 0.0)
time.sleep(60)
""",
    ),
    Attack(
        name="cpu-of-children",
        title="leave the computing to children",
        held_by="deadline, limit on CPU time",
        ends=("timeout", "limit"),
        timeout_s=1,
        code="""
for _ in range(4):
    if os.fork() == 0:
        while True: pass
os.wait()
""",
    ),
    Attack(
        name="flood-stdout",
        title="write to stdout without end",
        held_by="bounded buffers, output cut in the middle",
        ends=("timeout", "limit"),
        play=_flood,
        code="while True: os.write(1, b'x' * 65536)",
    ),
    Attack(
        name="flood-stderr",
        title="have children write to stderr without end",
        held_by="bounded buffers, output cut in the middle",
        ends=("timeout", "limit"),
        play=_flood,
        code="""
for _ in range(3):
    if os.fork() == 0: break
while True:
    try: os.write(2, b'x' * 65536)
    except OSError: pass
""",
    ),
    Attack(
        name="flood-between-cells",
        title="leave a process behind that writes to stdout after its cell has answered",
        held_by="bounded buffers",
        play=_flood_between,
        code="""
if os.fork() == 0:
    while True:
        try: os.write(1, b'x' * 65536)
        except OSError: pass
through
""",
    ),
    Attack(
        name="open-files",
        title="open files until there is no descriptor left",
        held_by="limit on open files",
        ends=("limit",),
        code="""
fds = []
try:
    for _ in range(100_000): fds.append(os.open("/dev/null", 0))
except OSError:
    assert len(fds) < 64, f"{len(fds)} files are open"
    raise
""",
    ),
    Attack(
        name="shared-memory",
        title="fill /dev/shm, /tmp and /run with 64 MiB each",
        held_by="read-only root, size of the session's file system",
        code="""
def fill(path):
    try:
        with open(path, "wb") as file:
            for _ in range(64): file.write(bytes(2**20))
    finally:
        if os.path.exists(path): os.unlink(path)
every = ("/dev/shm", "/tmp", "/var/tmp", "/run", "/run/lock", "/dev/mqueue")
for place in every[:1] if HOST["bare"] else every:
    attempt(place, fill, f"{place}/security-fill")
def small(top):
    made = []
    try:
        for n in range(16):
            made.append(f"{top}/security-{n}")
            with open(made[-1], "wb") as file: file.write(bytes(2**22))
    finally:
        for path in made:
            if os.path.exists(path): os.unlink(path)
for place in every[:1] if HOST["bare"] else every[:4]:
    attempt(f"{place} in pieces", small, place)
through
""",
        gaps={"process": Gap("the host's /dev/shm, /run and /tmp are the session's too")},
    ),
    Attack(
        name="per-user-quotas",
        title="use up what the kernel counts per user: inotify instances, timers",
        held_by="no inotify, a limit on queued signals and timers in each user namespace",
        play=_per_user,
        code="""
import time
libc, timer = ctypes.CDLL(None), ctypes.c_int()
number = 222 if platform.machine() == "x86_64" else 107
pipes = []
for _ in range(18):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        for _ in range(40): call(294, 26, 0)
        for _ in range(10_000):
            if libc.syscall(number, 1, 0, ctypes.byref(timer)) < 0: break
        os.write(theirs, b"1")
        time.sleep(30)
    os.close(theirs)
    pipes.append(ours)
for ours in pipes: os.read(ours, 1)
""",
        gaps={"process": Gap("all sessions are one user, the trainer's", shown=False)},
    ),
    Attack(
        name="descriptors-under-way",
        title="leave hundreds of descriptors in sockets nobody reads, which count per user",
        held_by="limit on open files; session inits and new interpreters may send more than that",
        play=_births_go_on,
        ends=("ok",),
        code="""
import socket
pairs, sent = [], 0
try:
    for _ in range(20):
        pairs.append(socket.socketpair())
        for _ in range(8):
            socket.send_fds(pairs[-1][0], [b"x"], [0] * 250)
            sent += 250
except OSError: pass
assert sent >= 250
through
""",
        gaps={"process": Gap("root sends as many as it likes", shown=False)},
    ),
    Attack(
        name="priority",
        title="get ahead of everybody else in the scheduler",
        held_by="no capability",
        code="""
attempt("nice", os.nice, -5)
attempt("priority of the group", os.setpriority, os.PRIO_PGRP, 0, -5)
attempt("real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
if "returned" in call(251, 30, 1, 0, 1 << 13): through.append("real-time input and output")
through
""",
        gaps={"process": Gap("what the trainer's user may do, the code may do", shown=False)},
    ),
    Attack(
        name="raise-limits",
        title="raise the own limits",
        held_by="hard limits, no capability",
        code="""
import resource
for name in ("AS", "NOFILE", "FSIZE", "CPU", "CORE"):
    which = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY: through.append(f"{name} has no hard limit")
    else: attempt(name, resource.setrlimit, which, (soft, hard + 2))
through
""",
        gaps={"process": Gap("root raises any limit; run the trainer as a user", shown=False)},
    ),
    Attack(
        name="huge-result",
        title="answer with a value of 60 million characters",
        held_by="result clipped inside, cap on a frame outside",
        ends=("ok", "oom"),
        code="""
class Huge:
    def __repr__(self): return "[" + "]" * 60_000_000
Huge()
""",
        play=lambda arena, session, attack: _huge(arena, session, attack),
    ),
    Attack(
        name="exhaust-the-pool",
        title="hang in 17 sessions at once, each until its deadline",
        held_by="a channel and a deadline for each session",
        code="import time; time.sleep(60)",
        play=_hang_everywhere,
    ),
)


async def _huge(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await session.exec(arena.program(attack.code))
    if result.status not in attack.ends:
        return [brief(result)]
    kept = len(result.value or "")
    return [] if kept < 4 * LIMITS.output_bytes else [f"{kept} characters of a value came back"]

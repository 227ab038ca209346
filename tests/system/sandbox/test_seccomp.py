"""The filter of system calls: what it decides, who is asked, and which programs live under it.

The program is run here by an interpreter of classic BPF, for both kinds of machine; then by the
kernel, under real programs.
"""

import errno
import fcntl
import itertools
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox.inside import seccomp, syscall_listener, syscalls

ALLOW, KILL, NOTIFY, PRETEND = 0x7FFF0000, 0x80000000, 0x7FC00000, 0x50000
EPERM, ENOSYS, ENOTTY = 0x50001, 0x50026, 0x50019
MACHINES = ("x86_64", "aarch64")
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
TABLES = (
    syscalls.ALLOWED,
    syscalls.RULED,
    syscalls.HARMLESS,
    syscalls.ABSENT,
    syscalls.REFUSED,
)
NEVER = """
    afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg putpmsg
    query_module security tuxcall vserver
"""
"""Numbers given out, and never a call behind them on a 64-bit kernel."""
HEADERS = {
    "x86_64": [
        Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm/unistd_64.h"),
    ],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
IOCTLS = {
    ALLOW: {"TCGETS": 0x5401, "TIOCGWINSZ": 0x5413, "TIOCGPGRP": 0x540F, "FIONREAD": 0x541B}
    | {"FIONBIO": 0x5421, "FIOCLEX": 0x5451, "SIOCGIFCONF": 0x8912, "FICLONE": 0x40049409},
    EPERM: {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C},
    ENOTTY: {"FIFREEZE": 0xC0045877, "FITRIM": 0xC0185879, "SIOCSIFADDR": 0x8916}
    | {"TIOCCONS": 0x541D, "TIOCSETD": 0x5423, "KDSETMODE": 0x4B3A, "TUNSETIFF": 0x400454CA}
    | {"FS_IOC_SETFLAGS": 0x40086602, "BLKDISCARD": 0x1277, "FIOSETOWN": 0x8901},
}
PRCTLS = {
    ALLOW: {"PDEATHSIG": 1, "GET_DUMPABLE": 3, "SET_NAME": 15, "SECCOMP": 22, "CAPBSET_DROP": 24}
    | {"CHILD_SUBREAPER": 36, "NO_NEW_PRIVS": 38, "CAP_AMBIENT": 47, "SET_VMA": 0x53564D41},
    EPERM: {"SECUREBITS": 28, "TASK_PERF_DISABLE": 31, "MCE_KILL": 33, "SET_MM": 35}
    | {"IO_FLUSHER": 57, "USER_DISPATCH": 59, "SCHED_CORE": 62, "MEMORY_MERGE": 67}
    | {"SET_PTRACER": 0x59616D61},
}


def program(machine: str, *, notify_unshare: bool = False) -> list[tuple[int, int, int, int]]:
    built = seccomp.build(machine, notify_unshare=notify_unshare)
    assert built is not None
    return list(struct.iter_unpack("=HBBI", built))


PROGRAMS = {
    (machine, asks): program(machine, notify_unshare=asks)
    for machine in MACHINES
    for asks in (False, True)
}


def run_bpf(ops: Sequence[tuple[int, int, int, int]], data: bytes) -> tuple[int, bool]:
    """Return the verdict, and whether an argument was looked at."""
    accumulator, at, looked = 0, 0, False
    while True:
        code, yes, no, value = ops[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
                looked |= value >= 16
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x06:
                return value, looked
            case _:
                raise AssertionError(f"unknown op {code:#x}")


def judge(
    machine: str, number: int, *arguments: int, of: int | None = None, asks: bool = False
) -> tuple[int, bool]:
    full = (*arguments, *[0] * (6 - len(arguments)))
    architecture = ARCHITECTURES[machine] if of is None else of
    data = struct.pack("=IIQ6Q", number, architecture, 0, *full)
    return run_bpf(PROGRAMS[machine, asks], data)


def verdict(machine: str, name: str, *arguments: int) -> int:
    (number,) = [table[machine][name] for table in TABLES if name in table[machine]]
    return judge(machine, number, *arguments)[0]


def low(value: int) -> int:
    return value & 0xFFFFFFFF


def internet(family: int, kind: int, protocol: int) -> bool:
    return family in (2, 10) and kind & 0xF in (1, 2) and protocol in (0, 6, 17)


WANTED: dict[str, Callable[[list[int]], int]] = {
    "clone": lambda a: EPERM if any(a[0] & flag for flag in NAMESPACES) else ALLOW,
    "socket": lambda a: ALLOW if a[0] == 1 or internet(*a[:3]) else EPERM,
    "socketpair": lambda a: ALLOW if a[0] == 1 else EPERM,
    "fcntl": lambda a: seccomp.refusal(errno.EINVAL) if a[1] == fcntl.F_NOTIFY else ALLOW,
    "kill": lambda a: EPERM if a[0] == 0xFFFFFFFF else ALLOW,
    "personality": lambda a: ALLOW if a[0] == 0xFFFFFFFF else EPERM,
    "prlimit64": lambda a: ALLOW if a[0] == 0 else EPERM,
    "sched_setaffinity": lambda a: ALLOW if a[0] == 0 else EPERM,
    "sched_setattr": lambda a: ALLOW if a[0] == 0 else EPERM,
    "sched_setparam": lambda a: ALLOW if a[0] == 0 else EPERM,
    "sched_setscheduler": lambda a: ALLOW if a[0] == 0 else EPERM,
    "setpriority": lambda a: ALLOW if a[:2] == [0, 0] else EPERM,
    "ioprio_set": lambda a: ALLOW if a[:2] == [1, 0] else EPERM,
    "unshare": lambda a: EPERM,
}
"""The rules once more, as Python, over the low halves of the arguments."""

TELLING = (
    *range(8),
    10,
    16,
    17,
    132,
    255,
    0x801,
    0x80002,
    0x80003,
    0xFFFFFFFE,
    0xFFFFFFFF,
    fcntl.F_NOTIFY,
    *NAMESPACES,
)
WORDS = st.sampled_from(TELLING) | st.integers(0, 2**32 - 1)
ARGUMENTS = st.lists(st.tuples(WORDS, st.sampled_from([0, 1, 0xFFFFFFFF])), min_size=6, max_size=6)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_tables_gets_its_answer(machine: str) -> None:
    """And what is always allowed is so by number alone, which the kernel can cache."""
    for table, want in (
        (syscalls.ALLOWED, ALLOW),
        (syscalls.HARMLESS, PRETEND),
        (syscalls.ABSENT, ENOSYS),
        (syscalls.REFUSED, EPERM),
    ):
        for name, number in table[machine].items():
            assert judge(machine, number, *[2**64 - 1] * 6) == (want, False), name


@pytest.mark.parametrize("machine", MACHINES)
def test_no_call_writes_out_the_disks_of_the_machine(machine: str) -> None:
    """Not by way of a file of /usr either, which a session can open."""
    for name in ("sync", "syncfs", "fsync", "fdatasync", "sync_file_range", "msync"):
        assert verdict(machine, name) == PRETEND, name


@given(st.sampled_from(MACHINES), st.integers(0, 500) | st.integers(0, 2**32 - 1), ARGUMENTS)
def test_a_number_in_no_table_is_no_call(
    machine: str, number: int, words: list[tuple[int, int]]
) -> None:
    arguments = [word | high << 32 for word, high in words]
    known = {number for table in TABLES for number in table[machine].values()}
    if number not in known:
        want = EPERM if number >= 0x40000000 else ENOSYS
        assert judge(machine, number, *arguments) == (want, False)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_rules_decide_every_telling_argument(machine: str) -> None:
    for name, wanted in WANTED.items():
        used = {"socket": 3, "setpriority": 2, "ioprio_set": 2, "fcntl": 2}.get(name, 1)
        for words in itertools.product(TELLING, repeat=used):
            assert verdict(machine, name, *words) == wanted([*words]), (name, words)


@given(st.sampled_from(MACHINES), st.sampled_from(sorted(WANTED)), ARGUMENTS)
def test_the_rules_decide_by_the_low_half_of_arguments(
    machine: str, name: str, words: list[tuple[int, int]]
) -> None:
    arguments = [word | high << 32 for word, high in words]
    assert verdict(machine, name, *arguments) == WANTED[name]([word for word, _ in words])


@given(st.sampled_from(MACHINES), st.integers(0, 2**32 - 1))
def test_an_ioctl_or_prctl_without_a_place_in_the_lists_is_refused(
    machine: str, number: int
) -> None:
    listed = {name: seccomp.RULES[name][0][0][0].values for name in ("ioctl", "prctl")}
    if number not in listed["ioctl"]:
        assert verdict(machine, "ioctl", 0, number) in (ENOTTY, EPERM)
    if number not in listed["prctl"]:
        assert verdict(machine, "prctl", number) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_single_requests(machine: str) -> None:
    for want, requests in IOCTLS.items():
        for name, request in requests.items():
            assert verdict(machine, "ioctl", 0, request) == want, name
    for want, options in PRCTLS.items():
        for name, option in options.items():
            assert verdict(machine, "prctl", option) == want, name
    assert set(syscalls.RULED[machine]) == seccomp.RULES.keys()
    assert WANTED.keys() | {"ioctl", "prctl"} == seccomp.RULES.keys()


@given(st.sampled_from(MACHINES), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_another_calling_convention_is_the_end(machine: str, number: int, other: int) -> None:
    if other != ARCHITECTURES[machine]:
        assert judge(machine, number, of=other) == (KILL, False)
    assert judge(machine, 0, of=0x40000003) == (KILL, False)  # the 32-bit door of x86


@pytest.mark.parametrize("machine", MACHINES)
def test_unshare_alone_is_asked_about(machine: str) -> None:
    unshare = syscalls.RULED[machine]["unshare"]
    for number in range(600):
        plain = judge(machine, number, 1, 2, 3)
        asked = judge(machine, number, 1, 2, 3, asks=True)
        assert asked == ((NOTIFY, False) if number == unshare else plain)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 100))
def test_halving_finds_the_run_of_a_number(gaps: list[int], number: int) -> None:
    """However far it has to jump: more than a conditional jump can."""
    starts = [0, *itertools.accumulate(gaps)]
    idle, load = struct.pack("=HBBI", 0x54, 0, 0, 0), struct.pack("=HBBI", 0x20, 0, 0, 0)
    runs = [(start, idle * 99 + struct.pack("=HBBI", 0x06, 0, 0, start)) for start in starts]
    ops = list(struct.iter_unpack("=HBBI", load + seccomp.search(runs)))
    want = max(start for start in starts if start <= number)
    assert run_bpf(ops, struct.pack("=I", number)) == (want, False)


def test_no_filter_for_a_machine_without_a_table() -> None:
    assert seccomp.build("riscv64") is None


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    """Every call in the headers stands in exactly one table, with its number."""
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("no kernel headers; apt-get install linux-libc-dev")
    found = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", text := header.read_text()))
    if machine == "aarch64":
        found |= dict(re.findall(r"#define __NR3264_(\w+)\s+(\d+)", text))
        found["newfstatat"] = found.pop("fstatat")
        for name in ("arch_specific_syscall", "syscalls", "sync_file_range2"):
            found.pop(name, None)
        # 403 to 423 are of 32-bit machines alone.
        found = {name: number for name, number in found.items() if not 403 <= int(number) <= 423}
    for name, number in found.items():
        numbers = [table[machine][name] for table in TABLES if name in table[machine]]
        assert numbers == ([] if name in NEVER.split() else [int(number)]), name


ASKED = """
import ctypes, errno, os, socket
from agentrl_sandbox.inside import kernel, syscall_listener, seccomp

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
listener = syscall_listener.SyscallListener(fd)
assert ours.recv(100) == b"EBUSY"
allowed = 0
while True:
    ready = syscall_listener.select.poll()
    ready.register(listener, syscall_listener.select.POLLIN)
    ready.register(ours, syscall_listener.select.POLLIN)
    assert ready.poll(10_000)
    asked = listener.next()
    if asked is None:
        break
    assert (asked.pid, asked.number) == (asking, UNSHARE), asked
    if asked.args[0] == NEW and not allowed:
        allowed += listener.allow(asked)
    else:
        assert listener.refuse(asked)
    assert not listener.refuse(asked)  # answered already
print(ours.recv(1000).decode(), flush=True)
listener.close()
ours.send(b"!")
assert os.waitpid(asking, 0)[1] == 0
"""

KILLED = """
import os, signal, socket, time
from agentrl_sandbox.inside import kernel, syscall_listener, seccomp

ours, theirs = socket.socketpair()
other_lives, let_it_end = os.pipe()
asking = os.fork()
if asking == 0:
    kernel.forbid_new_privileges()
    fd = kernel.install_filter_with_listener(seccomp.build(notify_unshare=True))
    socket.send_fds(theirs, [b"!"], [fd])
    os.close(fd)
    if os.fork() == 0:  # another one under the same filter
        os.close(let_it_end)
        theirs.close()
        os.read(other_lives, 1)
        os._exit(0)
    theirs.recv(1)
    kernel.unshare(0)
    os._exit(1)
theirs.close()
_, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
listener = syscall_listener.SyscallListener(fd)
assert listener.next() is None  # and does not block
ours.send(b"!")
poll = syscall_listener.select.poll()
poll.register(listener, syscall_listener.select.POLLIN)
assert poll.poll(10_000)
asked = listener.next() if RECEIVED else None
os.kill(asking, signal.SIGKILL)
assert os.waitpid(asking, 0)[1] == signal.SIGKILL
if asked is not None:
    assert not listener.allow(asked)
assert listener.next() is None
assert not listener.is_abandoned()  # the other one may still ask
os.close(let_it_end)
deadline_s = time.monotonic() + 10
while not listener.is_abandoned():
    assert time.monotonic() < deadline_s
print("gone")
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[3] / "sandbox",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.namespaces
def test_one_call_of_an_unprivileged_process_is_let_through_by_its_keeper() -> None:
    assert syscall_listener.is_available()
    told, after = run(ASKED).splitlines()
    assert told == "EPERM done EPERM EPERM [True, True]"
    assert after == "ENOSYS"


@pytest.mark.namespaces
@pytest.mark.parametrize("received", [True, False])
def test_a_caller_that_dies_while_it_waits_is_noticed(received: bool) -> None:
    assert run(KILLED.replace("RECEIVED", str(received))) == "gone\n"


UNDER = """
import os, sys
from agentrl_sandbox.inside import kernel, seccomp
kernel.forbid_new_privileges()
kernel.install_filter(seccomp.build())
directory, *command = sys.argv[1:]
os.chdir(directory)
os.execvp(command[0], command)
"""

PYTHON = {
    "threads": """
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(abs, range(100))) == 4950
    """,
    "processes": """
        import os, subprocess, sys
        assert subprocess.run(["ls", "/"], capture_output=True).returncode == 0
        assert subprocess.check_output("echo hi | cat", shell=True) == b"hi\\n"
        assert os.popen("echo x").read() == "x\\n"
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PIDFD, os.pidfd_open(pid), os.WEXITED)
    """,
    "multiprocessing": """
        import multiprocessing, concurrent.futures
        def main():
            for kind in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(kind).Pool(2) as pool:
                    assert pool.map(abs, [-1, 2]) == [1, 2]
            with concurrent.futures.ProcessPoolExecutor(1) as pool:
                assert list(pool.map(abs, [-1])) == [1]
            queue = multiprocessing.Queue(); queue.put(1); assert queue.get() == 1
            multiprocessing.Array("d", 3)
        if __name__ == "__main__":
            main()
    """,
    "asyncio": """
        import asyncio, signal
        async def echo(reader, writer):
            writer.write(await reader.readline()); await writer.drain(); writer.close()
        async def main():
            process = await asyncio.create_subprocess_exec("echo", "x", stdout=-1)
            assert (await process.communicate())[0] == b"x\\n"
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hi\\n"); assert await reader.readline() == b"hi\\n"; writer.close()
            await asyncio.start_unix_server(echo, "./socket")
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, print)
            assert await loop.run_in_executor(None, abs, -1) == 1
        asyncio.run(main())
    """,
    "sqlite": """
        import sqlite3
        database = sqlite3.connect("x.db")
        database.execute("pragma journal_mode=wal"); database.execute("create table t(a)")
        database.executemany("insert into t values(?)", [(i,) for i in range(1000)])
        database.commit(); database.execute("vacuum")
        assert database.execute("select sum(a) from t").fetchone() == (499500,)
    """,
    "ctypes": """
        import ctypes
        pointer = ctypes.POINTER(ctypes.c_int)
        numbers = (ctypes.c_int * 3)(3, 1, 2)
        compare = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(lambda a, b: a[0] - b[0])
        ctypes.CDLL(None).qsort(numbers, 3, 4, compare)
        assert list(numbers) == [1, 2, 3]
    """,
    "files": """
        import fcntl, mmap, os, resource, shutil, tempfile
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as directory:
            file.write(b"x" * 9999); file.flush()
            view = mmap.mmap(file.fileno(), 0); view[0] = 1; view.flush(); view.close()
            fcntl.flock(file, fcntl.LOCK_EX); os.posix_fallocate(file.fileno(), 0, 100)
            shutil.copy(file.name, directory); shutil.make_archive("a", "zip", directory)
        mmap.mmap(-1, 4096); os.mkfifo("fifo"); os.symlink("a", "b"); os.link("a.zip", "c.zip")
        os.replace("c.zip", "d.zip"); os.chmod("d.zip", 0o700); os.utime("d.zip"); os.sync()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(1)
        os.sched_setaffinity(0, os.sched_getaffinity(0)); os.eventfd(0); os.urandom(3)
    """,
    "network": """
        import http.server, threading, urllib.request
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert urllib.request.urlopen(url).status == 200
        server.shutdown()
    """,
    "odds": """
        import faulthandler, getpass, platform, signal, socket, time, uuid
        faulthandler.enable(); signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.05)
        platform.platform(); uuid.uuid1(); socket.gethostbyname("127.0.0.1")
        a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [0])
        assert socket.recv_fds(b, 1, 1)[0] == b"x"
    """,
    "numpy": """
        import numpy as np
        a = np.random.rand(200, 200)
        assert np.linalg.svd(a)[1].shape == np.linalg.eigvals(a).shape == (200,)
        np.save("x.npy", a); assert np.load("x.npy", mmap_mode="r").shape == (200, 200)
    """,
    "torch": """
        import torch
        from torch.utils.data import DataLoader
        x = torch.randn(64, 64, requires_grad=True); (x @ x).sum().backward()
        torch.save(x, "x.pt"); torch.load("x.pt")
        if __name__ == "__main__":
            assert len(list(DataLoader(range(4)))) == 4
    """,
}

SHELL = {
    "git": """
        git init -q .; echo a > a; git add a
        git -c user.name=a -c user.email=b commit -qm x; git checkout -qb z; echo b >> a
        git diff --quiet && exit 1; git gc -q; git clone -q . c; git log --oneline
    """,
    "gcc": r"""
        printf '#include <pthread.h>\nvoid*f(void*x){return x;}int main(){pthread_t t;
        pthread_create(&t,0,f,0);return pthread_join(t,0);}' > a.c
        gcc -O2 -pthread a.c -o a; ./a; gcc -c a.c; ar rc a.a a.o
    """,
    "bash": r"""
        test $(for i in 1 2 3; do echo $i; done | sort -r | tee f | awk '{s+=$1} END{print s}') = 6
        test "$(seq 1000 | sed -n 5p)" = 5; cat <<< hi; cat <(echo sub); coproc cat
        (sleep 5 & kill $!; wait $! || true); kill -0 $$; trap true EXIT; ulimit -n 100
        xargs -P2 -n1 echo < f; yes | head -3; timeout 5 true; nice -n 3 true; setsid true
    """,
    "tar": "seq 9 > f; tar czf a.tgz f; rm f; tar xzf a.tgz; tar cf - f | gzip | gunzip | tar t",
    "find": "seq 9 > f; find . -name f -newermt 2000-01-01 -exec grep -q 5 {} +; grep -rn 5 .",
    "coreutils": r"""
        seq 9 > f; cp f g; cp -a --reflink=auto f h; mv g i; ln -s f j; ln f k; stat f; df .
        du -s .; ls -la; date; wc f; diff f i; cmp f i; chmod 600 f; touch -d yesterday f
        install f l; dd if=/dev/zero of=z bs=1k count=3; truncate -s 10 z; sync; mktemp; nproc
        uname -a; id; split -l1 f; shuf f; sort f; head -c 5 /dev/urandom > y; env; rm -rf x*
    """,
    "perl": 'perl -e \'print 1 + 1; system("true"); open(F, ">x"); print F 1; close(F)\'',
    "curl": "curl -sS -m 3 http://127.0.0.1:1/ || test $? = 7",
    "sqlite3": "test $(sqlite3 x 'create table a(b); insert into a values(1); select 1') = 1",
    "node": 'node -e \'new (require("worker_threads").Worker)("0", {eval: true})\'',
}


def under_the_filter(directory: Path, *command: str) -> str:
    """Run a command under the filter; return what it complained of, nothing when it lived."""
    done = subprocess.run(
        [sys.executable, "-c", UNDER, str(directory), *command],
        cwd=Path(__file__).parents[3] / "sandbox",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return f"exit {done.returncode}: {done.stdout}{done.stderr}" if done.returncode else ""


@pytest.mark.parametrize("name", PYTHON)
def test_python_programs_live_under_the_filter(tmp_path: Path, name: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PYTHON[name]))
    assert under_the_filter(tmp_path, sys.executable, "program.py") == ""


@pytest.mark.parametrize("name", SHELL)
def test_other_programs_live_under_the_filter(tmp_path: Path, name: str) -> None:
    if name not in ("coreutils", "tar") and shutil.which(name) is None:
        pytest.skip(f"no {name} on PATH")
    assert under_the_filter(tmp_path, "bash", "-euc", SHELL[name]) == ""


@pytest.mark.namespaces
async def test_programs_live_in_a_session() -> None:
    """With the namespaces and limits of a session around them as well."""
    missing = {"numpy", "torch", "multiprocessing"}  # packages of the host; /dev/shm
    pool = ForkServerPool(SandboxSettings())
    try:
        for name in PYTHON.keys() - missing:
            session = await pool.open()
            await session.write("program.py", textwrap.dedent(PYTHON[name]).encode())
            code = """
import subprocess, sys
done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True)
done.stderr if done.returncode else "lives"
"""
            result = await session.exec(code, timeout_s=60)
            assert result.value == "'lives'", (name, result)
            await session.close()
    finally:
        await pool.close()


REFUSED_IN_A_SESSION = """
import ctypes, errno, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "done"
[attempt(libc.shmget, 0, 1 << 20, 0o1600), attempt(os.memfd_create, "memory"),
 attempt(os.kill, -1, 0), attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (0, 0)),
 attempt(os.setpriority, os.PRIO_PROCESS, 1, 19), attempt(os.setpriority, os.PRIO_USER, 0, 19),
 attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0)),
 attempt(os.sched_setaffinity, 1, {0}), attempt(os.nice, 1), attempt(os.kill, os.getpid(), 0)]
"""


@pytest.mark.namespaces
async def test_what_would_reach_around_the_limits_or_the_keeper_is_refused() -> None:
    """Memory nobody counts, and limits and priorities of processes of the same user."""
    pool = ForkServerPool(SandboxSettings())
    try:
        result = await (await pool.open()).exec(REFUSED_IN_A_SESSION)
        assert result.value == str(["ENOSYS"] * 2 + ["EPERM"] * 6 + ["done"] * 2), result
    finally:
        await pool.close()


NOT_DUMPABLE = """
import ctypes, errno, os, subprocess, time
def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def look(pid, *names):
    return [attempt(open, f"/proc/{pid}/{name}", "rb") for name in names]
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
seen = [
    look("self", "maps", "status", "fd/1", "exe", "smaps_rollup", "uid_map"),
    [attempt(os.readlink, "/proc/self/ns/mnt"), attempt(open, "/dev/fd/1", "a"),
     attempt(subprocess.check_call, ["/bin/sh", "-c", "echo > /dev/fd/1"])],
    look("self", "mem", "environ"),
    look(child, "maps", "mem", "environ", "fd/1"),
    attempt(os.readlink, f"/proc/{child}/ns/mnt"), look(child, "status"),
]
os.kill(child, 9)
seen
"""


@pytest.mark.namespaces
async def test_what_an_interpreter_that_is_not_dumpable_loses() -> None:
    """Its memory is out of reach of others of its user; its own view of itself stays, nearly."""
    pool = ForkServerPool(SandboxSettings())
    try:
        result = await (await pool.open()).exec(NOT_DUMPABLE)
        own, others = [["done"] * 6, ["done"] * 3, ["EACCES"] * 2], [["EACCES"] * 4, "EACCES"]
        assert result.value == str([*own, *others, ["done"]]), result
    finally:
        await pool.close()

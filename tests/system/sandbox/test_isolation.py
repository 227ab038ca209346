"""What code in namespaces can see and do, whoever made them: nothing of the host, or of others.

Each cell is an attack that decides by itself whether it succeeded, and says how.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession

HERE = str(Path(__file__).parent)
SYSCALL = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86_64, aarch64, *arguments):
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(a) for a in arguments])
    return errno.errorcode.get(ctypes.get_errno(), "") if result < 0 else f"returned {result}"
"""


@pytest.fixture(
    params=[
        pytest.param("namespaces", marks=pytest.mark.namespaces),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    ]
)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[ForkServerPool]:
    opened = ForkServerPool(SandboxSettings(backend=request.param))
    yield opened
    await opened.close()


@pytest.fixture
async def session(pool: ForkServerPool) -> SandboxSession:
    return await pool.open()


async def value(session: SandboxSession, code: str) -> str | None:
    result = await session.exec(code)
    assert result.ok, result
    return result.value


async def test_the_code_is_nobody(session: SandboxSession) -> None:
    code = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
[os.getuid() != 0, os.getgid() != 0, os.geteuid() != 0,
 *(status[key].strip("0") for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
 status["NoNewPrivs"], status["Seccomp"]]
"""
    assert await value(session, code) == str([True] * 3 + [""] * 5 + ["1", "2"])


async def test_the_host_sees_it_as_a_user_without_rights(session: SandboxSession) -> None:
    """Started by real root, the sandbox must not be root outside of its namespaces either."""
    code = "open('/proc/self/uid_map').read().split()"
    inside, parent, count = eval(await value(session, code) or "")
    assert (inside, count) == ("1000", "1")
    assert int(parent) >= 1000  # in the supervisor's own namespace, whose ids are nobody's
    assert await value(session, "import os; os.access('/proc/sys/kernel/core_pattern', 2)") == (
        "False"
    )


async def test_no_environment_of_the_host(
    pool: ForkServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "swordfish")
    session = await pool.open()
    assert "SECRET" not in (await value(session, "import os; str(dict(os.environ))") or "")
    code = """
found = []
for name in os.listdir("/proc"):
    if name.isdecimal():
        try:
            found.append(open(f"/proc/{name}/environ").read())
        except PermissionError:
            continue
"swordfish" in "".join(found)
"""
    assert await value(session, code) == "False"
    result = await session.exec("open('/proc/1/environ').read()")
    assert "PermissionError" in (result.error or "")


async def test_no_files_of_the_host(session: SandboxSession) -> None:
    code = "import os; sorted(os.listdir('/'))"
    allowed = {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "home"}
    roots = set(eval(await value(session, code) or ""))
    assert roots <= allowed | {"usr", Path(sys.base_prefix).parts[1]}
    for path in (HERE, "/etc/passwd", "/var", "/tmp", "/sys", "/proc/1/root/etc", "/proc/1/cwd"):
        result = await session.exec(f"import os; os.listdir({path!r})")
        refused = ("FileNotFoundError", "PermissionError", "NotADirectoryError")
        assert any(word in (result.error or "") for word in refused), (path, result)


async def test_nothing_but_the_session_directory_can_be_written(session: SandboxSession) -> None:
    code = """
import os
written = []
for top in [*os.listdir("/"), "home/agent", "usr/lib", "dev/shm", "proc/sys/kernel", "run"]:
    path = f"/{top}/x"
    try:
        open(path, "w").close()
    except OSError:
        continue
    written.append(path)
written
"""
    assert await value(session, code) == str(["/home/agent/x", "/dev/shm/x"])  # the same file


async def test_no_network(session: SandboxSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "192.0.2.1"):
            code = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
            assert "OSError" in ((await session.exec(code)).error or "").replace(
                "ConnectionRefusedError", "OSError"
            )
    code = "[line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]]"
    assert await value(session, code) == str(["lo"])


async def test_abstract_unix_sockets_of_the_host_are_out_of_reach(session: SandboxSession) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0agentrl-test-{os.getpid()}"
        server.bind(name)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert "ConnectionRefusedError" in ((await session.exec(code)).error or "")


async def test_sessions_see_neither_processes_nor_files_of_each_other(
    pool: ForkServerPool,
) -> None:
    one, other = await pool.open(), await pool.open()
    await one.write("secret.txt", b"swordfish")
    code = """
import os
found = [path for top in ("/home/agent", "/proc") for path, _, names in os.walk(top)
         if "secret.txt" in names]
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
found, pids
"""
    assert await value(other, code) == str(([], [1, 2]))
    await other.exec("import os, signal; os.kill(-1, signal.SIGKILL)")
    assert await one.read("secret.txt") == b"swordfish"
    assert await value(one, "1 + 1") == "2"


async def test_the_keeper_cannot_be_killed_traced_or_read(session: SandboxSession) -> None:
    await session.exec(SYSCALL)
    await session.exec("import os, signal")
    for number in (9, 15, 2, 19, 11):
        await session.exec(f"os.kill(1, {number})")
    assert await value(session, "call(101, 117, 16, 1, 0, 0)") == "'EPERM'"  # ptrace attach
    for path in ("mem", "environ", "maps", "fd"):
        code = f"os.listdir('/proc/1/{path}')" if path == "fd" else f"open('/proc/1/{path}')"
        result = await session.exec(code)
        assert "PermissionError" in (result.error or ""), (path, result)
    assert await value(session, "1 + 1") == "2"


@pytest.mark.parametrize(
    ("name", "numbers", "answer"),
    [
        ("unshare", (272, 97, 0x10000000), "EPERM"),
        ("mount", (165, 40, 0, 0, 0, 0, 0), "EPERM"),
        ("clone in namespaces", (56, 220, 0x10000000 | 17, 0, 0, 0, 0), "EPERM"),
        ("clone3", (435, 435, 0, 0), "ENOSYS"),
        ("bpf", (321, 280, 0, 0, 0), "EPERM"),
        ("io_uring_setup", (425, 425, 1, 0), "EPERM"),
        ("userfaultfd", (323, 282, 0), "EPERM"),
        ("perf_event_open", (298, 241, 0, 0, 0, 0, 0), "EPERM"),
        ("keyctl", (250, 219, 0, 0), "EPERM"),
        ("settimeofday", (164, 170, 0, 0), "EPERM"),
        ("process_vm_readv", (310, 270, 1, 0, 0, 0, 0, 0), "EPERM"),
        ("socket AF_NETLINK", (41, 198, 16, 3, 0), "EPERM"),
        ("socket AF_VSOCK", (41, 198, 40, 1, 0), "EPERM"),
        ("ioctl TIOCSTI", (16, 29, 0, 0x5412, 0), "EPERM"),
        ("setuid 0", (105, 146, 0), "EINVAL"),
    ],
)
async def test_calls_deep_into_the_kernel_are_refused(
    session: SandboxSession, name: str, numbers: tuple[int, ...], answer: str
) -> None:
    await session.exec(SYSCALL)
    assert await value(session, f"call{numbers}") == repr(answer), name


async def test_ordinary_programs_still_work(session: SandboxSession) -> None:
    """The filter denies: threads, processes, pipes, files and sockets are not on its list."""
    code = """
import socket, subprocess, tempfile, threading
seen = []
thread = threading.Thread(target=lambda: seen.append(1)); thread.start(); thread.join()
seen.append(subprocess.run(["/bin/sh", "-c", "echo $((1 + 1))"], capture_output=True).stdout)
a, b = socket.socketpair(); a.sendall(b"3"); seen.append(b.recv(1))
with tempfile.TemporaryFile() as file: file.write(b"4"); file.seek(0); seen.append(file.read())
os.mkfifo("fifo")
seen
"""
    await session.exec("import os")
    assert await value(session, code) == str([1, b"2\n", b"3", b"4"])
    assert await value(session, "import sys; sys.stdin.read()") == "''"


async def test_only_the_three_standard_descriptors_reach_a_program(session: SandboxSession) -> None:
    code = """
import subprocess
subprocess.run(["/bin/ls", "/proc/self/fd"], capture_output=True, text=True).stdout.split()
"""
    assert await value(session, code) == str(["0", "1", "2", "3"])  # 3 is what ls itself opened

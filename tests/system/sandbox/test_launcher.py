"""Attacks on what makes the sandbox itself: programs with the rights of a supervisor.

A session's code has no capability and a filter of system calls; here neither is in the way. Each
program stands where the supervisor does, as process 1 with its capabilities, and must find nothing
of the machine but what the root shows. It prints what got through.

Mutants of the launcher that were run, and what caught each. Descriptors not closed: descriptors.
The old root not detached: old-root. Mounts not made private: propagation. Binds or devices without
READ_ONLY, without NOSUID, or a root that is not sealed: mounts. The network's namespace kept:
sockets; that of IPC: segments; of cgroups: what runs, seen from outside. No setsid: signals. The
keyring kept: keyring. A domain's name kept: host-name. The environment handed down: environment.
No_new_privs left out: set-user-id. Capabilities or descriptors kept by who waits, no bound on those
of the supervisor: what runs, seen from outside. No signal when the parent dies: what is left. The
namespace of processes or that of host names kept: nothing starts, for the kernel shows no processes
of others and lets nobody rename the machine.
"""

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox.inside import kernel, processes
from agentrl_sandbox.inside.root import RootStep
from agentrl_sandbox.launch.forbidden import explain_ways_out, list_forbidding_settings
from agentrl_sandbox.launch.namespaces import NamespaceLauncher, plan_isolation
from agentrl_sandbox.launch.shown import VisiblePaths, base_python
from agentrl_sandbox.root import ARCHIVE, FILES, bubblewrap_words, session_steps
from tests.support.pools import opened

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a user has neither several ids nor mounts")

TOOLS = """
import ctypes, errno, json, os, signal, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
through = []
if os.getpid() != 1 or os.path.lexists(HOST["canary"]):
    # An attack must not become an accident.
    print(json.dumps(["nothing is isolated: this would hit the machine itself"]))
    raise SystemExit
def call(name, *arguments):
    number = NUMBERS[name]
    ctypes.set_errno(0)
    result = libc.syscall(number, *[a if isinstance(a, bytes) else ctypes.c_long(a)
                                    for a in arguments])
    return result if result >= 0 else -ctypes.get_errno()
def attempt(what, do, *arguments):
    try: do(*arguments)
    except OSError: return
    through.append(what)
def mounts():
    return [line.split() for line in open("/proc/self/mountinfo")]
def canary_at(*places):
    return [place for place in places if os.path.lexists(place + HOST["canary"])]
"""
_NUMBERS = {
    "x86_64": {"ptrace": 101, "keyctl": 250, "shmget": 29, "umount2": 166, "mount": 165},
    "aarch64": {"ptrace": 117, "keyctl": 219, "shmget": 194, "umount2": 39, "mount": 40},
}
NUMBERS = _NUMBERS.get(platform.machine(), {})
if not NUMBERS:
    pytest.skip("system calls by number: x86_64 and aarch64", allow_module_level=True)

ATTACKS = {
    "descriptors": """
        for name in os.listdir("/proc/self/fd"):
            try: target = os.readlink(f"/proc/self/fd/{name}")
            except OSError: continue  # the listing's own
            if int(name) > 2 and target != "/proc/1/fd": through.append((name, target))
    """,
    "old-root": """
        through += canary_at("", "/..", "/proc/self/root", "/proc/1/cwd", "/proc/1/root/..")
        for fd in range(256):
            through += canary_at(f"/proc/self/fd/{fd}", f"/proc/self/fd/{fd}/../../../../..")
        # The classic way out of a chroot: a directory that is held from outside of it.
        libc.mount(b"t", b"/home/agent", b"tmpfs", 0, None)
        os.mkdir("/home/agent/jail")
        held = os.open("/", os.O_RDONLY)
        os.chroot("/home/agent/jail")
        os.fchdir(held)
        for _ in range(64): os.chdir("..")
        os.chroot(".")
        through += canary_at("", "/..")
        if not os.path.exists("/run/agentrl.zip"): through.append("another root")
        while call("umount2", b"/", 2) == 0: through.append("the root was taken away")
        through += canary_at("", "/..", ".")
    """,
    "mounts": """
        for fields in mounts():
            place, flags = fields[4], fields[5].split(",")
            if "nosuid" not in flags: through.append((place, "set-user-id programs"))
            if place == "/proc": continue
            if "ro" not in flags: through.append((place, "writable"))
            if "nodev" not in flags and not place.startswith("/dev/"):
                through.append((place, "devices"))
            if os.path.isdir(place):
                attempt((place, "a file"), open, place + "/made", "w")
            else:
                attempt((place, "times"), os.utime, place)
                if not place.startswith("/dev/"): attempt((place, "opened"), open, place, "r+")
        devices = [f"/dev/{name}" for name in os.listdir("/dev")]
        found = {path for path in devices if not os.path.islink(path)}
        known = {"/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"}
        through += sorted(found - known)
        for path in ("/dev/mem", "/dev/kmsg", "/sys", "/var", "/tmp/.", "/boot"):
            if os.path.lexists(path): through.append(path)
    """,
    "propagation": """
        for fields in mounts():
            shared = [f for f in fields[6:fields.index("-")]]
            if shared: through.append((fields[4], shared))
        libc.mount(b"escaped", b"/home/agent", b"tmpfs", 0, None)
    """,
    "processes": """
        through += [n for n in os.listdir("/proc") if n.isdecimal() and n != "1"]
        if os.getppid(): through.append(f"a parent: {os.getppid()}")
        for pid in (HOST["pid"], os.getppid()):
            if pid and call("ptrace", 16, pid, 0, 0) == 0: through.append(f"traces {pid}")
    """,
    "signals": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        attempt("the trainer", os.kill, HOST["pid"], 0)
        os.kill(0, signal.SIGTERM)  # the group, which must be ours: else our parent ends
        attempt("everybody", os.kill, -1, signal.SIGTERM)
        if (os.getsid(0), os.getpgid(0)) != (1, 1): through.append("a session of others")
    """,
    "other-roots": """
        for pid in {HOST["pid"], os.getppid(), 2} - {os.getpid()}:
            for what in ("root", "cwd", "fd", "fd/0", "exe", "environ", "mem", "ns/mnt"):
                attempt((pid, what), os.stat, f"/proc/{pid}/{what}")
    """,
    "set-user-id": """
        if "NoNewPrivs:\\t1" not in open("/proc/self/status").read(): through.append("status")
        libc.mount(b"t", b"/home/agent", b"tmpfs", 0, None)
        import shutil
        shutil.copy("/usr/bin/id", "/home/agent/id")
        try: os.chown("/home/agent/id", 1001, -1)
        except OSError: pass  # one id alone: nobody else to become
        os.chmod("/home/agent/id", 0o4755)
        said = os.popen("/home/agent/id -u").read().strip()
        if said != "1000": through.append(f"became {said}")
    """,
    "nested-user-namespace": """
        before = open("/proc/self/status").read()
        if libc.unshare(0x10000000 | 0x20000) == 0:
            for number in range(64):
                if libc.prctl(23, number, 0, 0, 0) == 1: pass
            for place in ("/usr/bin", "/"):
                # What is locked in there stays read-only, and covered.
                if libc.mount(b"none", place.encode(), None, 0x1000 | 0x20, None) == 0:
                    attempt((place, "writable again"), open, place + "/made", "w")
            for fields in mounts():
                if fields[4] != "/" and libc.umount2(fields[4].encode(), 2) == 0:
                    through.append((fields[4], "uncovered"))
            attempt("the clock", __import__("time").clock_settime, 0, 0.0)
            attempt("a host name", socket.sethostname, "escaped")
    """,
    "keyring": """
        for ring in (-3, -4, -5):  # of the session, the user, the user's session
            if call("keyctl", 10, ring, b"user", b"agentrl-test", 0) >= 0: through.append(ring)
        # A user's own keys are listed to that user, wherever it is; they cannot be used.
        listed = [line for line in open("/proc/keys") if "agentrl-test" in line]
        if HOST["is_other_user"]: through += listed
    """,
    "segments": """
        if call("shmget", HOST["segment"], 0, 0) >= 0: through.append("a segment of the host's")
        if len(open("/proc/sysvipc/shm").read().splitlines()) > 1: through.append("listed")
    """,
    "sockets": """
        with socket.socket(socket.AF_UNIX) as any_socket:
            attempt("an abstract socket", any_socket.connect, HOST["abstract"])
        attempt("TCP", socket.create_connection, ("127.0.0.1", HOST["port"]), 2)
        through += [name for _, name in socket.if_nameindex() if name != "lo"]
        if HOST["abstract"] in open("/proc/net/unix").read(): through.append("listed")
    """,
    "host-name": """
        if socket.gethostname() != "sandbox": through.append(socket.gethostname())
        domain = open("/proc/sys/kernel/domainname").read().strip()
        if domain != "(none)": through.append(domain)
        socket.sethostname("escaped")
    """,
    "environment": """
        through += [name for name in os.environ if name != "LC_CTYPE"]
        for path in ("/proc/1/environ", "/proc/1/cmdline", "/proc/self/maps", "/proc/1/mountinfo"):
            text = open(path).read()
            through += [(path, word) for word in HOST["words"] if word in text]
    """,
}
"""Programs by name. What they know of the host is in HOST."""


class Bait:
    """What an attacker on the host would find."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "canary"
        self.canary.write_text("canary")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(f"\0launcher-bait-{os.getpid()}")
        self.unix.listen()
        self.key = 0x41475254 + os.getpid() % 1000
        self.segment = kernel.system_call(NUMBERS["shmget"], self.key, 4096, 0o1000 | 0o666)
        assert self.segment >= 0

    def facts(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "canary": str(self.canary),
            "port": self.listener.getsockname()[1],
            "abstract": self.unix.getsockname().decode(),
            "segment": self.key,
            "words": ["secret-0451", str(Path(__file__).parents[2])],
            "is_other_user": VisiblePaths.collect("").as_root,
        }

    def close(self) -> None:
        self.listener.close()
        self.unix.close()
        removal = {"x86_64": 31, "aarch64": 195}[platform.machine()]
        kernel.system_call(removal, self.segment, 0, 0)


@pytest.fixture
def bait(tmp_path: Path) -> Iterator[Bait]:
    made = Bait(tmp_path)
    yield made
    made.close()


HOLDER = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
keyctl, add_key, count = (int(word) for word in sys.argv[1:4])
assert libc.syscall(keyctl, 1, None) >= 0
assert libc.syscall(add_key, b"user", b"agentrl-test", b"x", ctypes.c_long(1), -3) >= 0
os.execv(sys.argv[4], sys.argv[4:])
"""
"""Becomes a command with a key in its keyring of the session."""


def play(
    code: str,
    bait: Bait,
    shown: VisiblePaths,
    *,
    before: Sequence[str] = (),
    more_fds: Sequence[int] = (),
) -> list[Any]:
    """Run a program in the place of the supervisor and return what got through."""
    text = f"NUMBERS = {NUMBERS}\nHOST = {bait.facts()!r}\n{TOOLS}\n{textwrap.dedent(code)}\n"
    text += "print(json.dumps(through), flush=True)\n"
    command = [base_python(), "-I", "-S", "-c", "exec(open(0).read())"]
    inside, fds = plan_isolation(shown, command)
    try:
        ran = subprocess.run(
            [*before, *inside],
            pass_fds=[*fds, *more_fds],
            input=text.encode(),
            capture_output=True,
            env={"AGENTRL_TEST": "secret-0451"},
            timeout=60,
            check=False,
        )
    finally:
        for fd in fds:
            os.close(fd)
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr.decode())
    return json.loads(ran.stdout)


@pytest.mark.namespaces
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_in_the_supervisor_s_place_finds_nothing(attack: str, bait: Bait) -> None:
    host_name = socket.gethostname()
    descriptors = [os.open(path, os.O_RDONLY) for path in ("/", str(bait.canary))]
    numbers = {"x86_64": ("250", "248"), "aarch64": ("219", "217")}[platform.machine()]
    before = [sys.executable, "-c", HOLDER, *numbers, "0"] if attack == "keyring" else []
    shown = VisiblePaths.collect("")
    if attack == "propagation":
        # A machine whose mounts are shared, and no stage, which is private by itself.
        before = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "shared"]
        shown = replace(shown, stage={}, as_root=False)
    try:
        assert play(ATTACKS[attack], bait, shown, before=before, more_fds=descriptors) == []
    finally:
        for fd in descriptors:
            os.close(fd)
    assert socket.gethostname() == host_name
    assert "escaped" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.namespaces
def test_a_program_that_finds_something_says_so(bait: Bait) -> None:
    """Else the tests above could not fail."""
    code = "through.append(canary_at('')); attempt('x', os.stat, '/')"
    assert play(code, bait, VisiblePaths.collect("")) == [[], "x"]


# -- a supervisor that runs, seen from the machine ------------------------------------------------


@pytest.fixture
async def pool() -> AsyncIterator[ForkServerPool]:
    async with opened(SandboxSettings(backend="namespaces"), warm=0) as pool:
        yield pool


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def family(pool: ForkServerPool) -> tuple[int, int, int]:
    """Return who waits outside, the supervisor, and a keeper."""
    before = processes.descendants(os.getpid())
    session = await pool.open()
    assert (await session.exec("1")).ok
    table = processes.parents()
    new = processes.descendants(os.getpid()) - before
    (waiting,) = (pid for pid in new if table[pid] == os.getpid())
    (supervisor,) = (pid for pid in new if table[pid] == waiting)
    keeper = next(pid for pid in new if table[pid] == supervisor)
    return waiting, supervisor, keeper


@pytest.mark.namespaces
async def test_nobody_holds_more_than_they_use(pool: ForkServerPool) -> None:
    """Who waits outside has no rights and nothing open; nobody gains a right by a program."""
    kept = sum(1 << capability for capability in kernel.CAPABILITIES_OF_KEEPERS)
    waiting, supervisor, keeper = await family(pool)
    for pid in (waiting, supervisor, keeper):
        assert status(pid)["NoNewPrivs"] == "1"
    for pid, rights in ((waiting, 0), (supervisor, kept)):
        found = status(pid)
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert int(found[name], 16) == rights, (name, found)
    if os.geteuid() == 0:
        assert {*status(waiting)["Uid"].split()} == {*status(supervisor)["Uid"].split()}
        assert status(waiting)["Uid"].split()[0] != "0"
        (target,) = (os.readlink(fd) for fd in glob(f"/proc/{waiting}/fd/*"))
        assert target.startswith("pipe:")
        for kind in ("pid", "mnt", "net", "ipc", "uts", "cgroup", "user"):
            ours, theirs = (os.readlink(f"/proc/{pid}/ns/{kind}") for pid in ("self", supervisor))
            assert ours != theirs, kind


@pytest.mark.namespaces
async def test_code_is_filtered_from_its_first_instruction(pool: ForkServerPool) -> None:
    """There is no moment between the start of a session's process and its filter."""
    session = await pool.open()
    look = "grep -E '^(Seccomp|NoNewPrivs|CapEff|CapBnd):' /proc/self/status | tr -d '\\n\\t '"
    ran = await session.run(["sh", "-c", look])
    none = "0" * 16
    assert ran.stdout == f"CapEff:{none}CapBnd:{none}NoNewPrivs:1Seccomp:2"
    # Code of the session's own, before the program that it asked for begins.
    await session.write("sitecustomize.py", b"print(open('/proc/self/status').read())")
    early = await session.run(["python3", "-c", ""], env={"PYTHONPATH": "."})
    if "Seccomp:" in early.stdout:  # else the interpreter has a sitecustomize of its own
        assert "Seccomp:\t2" in early.stdout
    for code in ("libc.unshare(0x10000000)", "libc.unshare(0x20000)", "libc.chroot(b'/home')"):
        cell = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); {code}"
        assert (await session.exec(cell)).value == "-1"
    assert (await (await session.fork()).exec(cell)).value == "-1"


@pytest.mark.namespaces
@pytest.mark.parametrize("killed", ["who waits", "the supervisor"])
async def test_nothing_is_left_when_one_of_two_is_killed(pool: ForkServerPool, killed: str) -> None:
    waiting, supervisor, keeper = await family(pool)
    os.kill(waiting if killed == "who waits" else supervisor, signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while any(runs(pid) for pid in (waiting, supervisor, keeper)):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return status(pid)["State"][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.namespaces
def test_where_root_is_that_of_a_container_its_own_id_is_enough() -> None:
    """Root of a user namespace with few ids cannot become one of the block's."""
    code = (
        "import asyncio; from agentrl.sandbox import SandboxSettings\n"
        "from agentrl_sandbox import ForkServerPool\n"
        "async def main():\n"
        "    pool = ForkServerPool(SandboxSettings(backend='namespaces'), warm=0)\n"
        "    session = await pool.open()\n"
        "    print((await session.exec('__import__(\"os\").getuid()')).value)\n"
        "    await pool.close()\n"
        "asyncio.run(main())\n"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == "1000\n", ran.stderr


# -- machines that forbid it ----------------------------------------------------------------------

WITHOUT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
assert libc.unshare(0x10000000) == 0
maps = {"setgroups": "deny", "uid_map": f"1000 {uid} 1", "gid_map": f"1000 {gid} 1"}
for name, text in maps.items():
    with open(f"/proc/self/{name}", "w") as file: file.write(text)
with open("/proc/sys/user/max_user_namespaces", "w") as file: file.write("0")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes a command in a user namespace in which nobody makes another one."""


@pytest.mark.namespaces
@pytest.mark.parametrize(
    "command", [["doctor"], ["train"], ["eval", "--player", "gold"]], ids=" ".join
)
def test_a_machine_without_user_namespaces_is_told_before_anything_begins(
    command: list[str], root: Path, tmp_path: Path
) -> None:
    words = [*command, str(root / "configs" / "quickstart.yaml"), f"run.folder={tmp_path}/runs"]
    program = f"import sys; from agentrl.cli import main; sys.argv[1:] = {words!r}; main()"
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    said = " ".join(ran.stderr.split())
    for part in (
        "user.max_user_namespaces is 0 on this machine: sysctl -w user.max_user_namespaces=10000",
        "sandbox.backend: docker",
        "sandbox.backend: process and sandbox.allow_unisolated: true",
        "code can read and change your files, use your network, and signal your processes",
    ):
        assert part in said, said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("files", "user_id", "said"),
    [
        ({"/proc/sys/user/max_pid_namespaces": "0\n"}, 0, "user.max_pid_namespaces is 0"),
        (
            {"/proc/sys/kernel/unprivileged_userns_clone": "0\n"},
            1000,
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
            1000,
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ({"/proc/sys/kernel/osrelease": "5.4.0-150-generic\n"}, 0, "at least 5.12 is required"),
        ({"/proc/self/mountinfo": "1 0 0:1 / /proc rw - proc proc rw\n"}, 0, "in a chroot"),
        ({"/proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, 0, "seccomp=unconfined"),
    ],
)
def test_what_forbids_namespaces_is_named(files: dict[str, str], user_id: int, said: str) -> None:
    (found,) = list_forbidding_settings(lambda path: files.get(path, ""), user_id)
    assert said in found


def test_what_forbids_nothing_is_not_named() -> None:
    files = {
        "/proc/sys/user/max_user_namespaces": "96364\n",
        "/proc/sys/kernel/unprivileged_userns_clone": "0\n",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
        "/proc/sys/kernel/osrelease": "5.12.0\n",
        "/proc/self/mountinfo": "21 1 8:1 / / rw - ext4 /dev/sda rw\n",
        "/proc/self/status": "Name:\tx\nSeccomp:\t0\n",
    }
    assert not [*list_forbidding_settings(lambda path: files.get(path, ""), 0)]
    files["/proc/sys/kernel/unprivileged_userns_clone"] = "1\n"
    files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "0\n"
    assert not [*list_forbidding_settings(lambda path: files.get(path, ""), 1000)]


def test_the_way_out_says_what_a_process_does_not_contain() -> None:
    said = explain_ways_out()
    assert "sandbox.backend: docker" in said
    assert "read and change your files" in said


def test_an_interpreter_in_a_hidden_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/tmp")
    with pytest.raises(ConfigError, match="Python is installed in /tmp, which a sandbox must not"):
        NamespaceLauncher().user_ids(10)


# -- the description of the root ------------------------------------------------------------------


def test_each_step_in_bubblewrap_s_words() -> None:
    steps = [
        RootStep("directory", "/a"),
        RootStep("link", "/lib", "usr/lib"),
        RootStep("bind", "/in", "/out"),
        RootStep("bind-if-there", "/etc/x", "/etc/x"),
        RootStep("device", "/dev/null", "/dev/null"),
        RootStep("proc", "/proc"),
        RootStep("memory", "/dev"),
        RootStep("empty", "/in/packages"),
        RootStep("blank", "/in/file"),
        RootStep("data", "/etc/hosts"),
        RootStep("seal", "/"),
    ]
    assert " ".join(bubblewrap_words(steps, {"/etc/hosts": 7})) == (
        "--perms 0755 --dir /a --symlink usr/lib /lib --ro-bind /out /in "
        "--ro-bind-try /etc/x /etc/x --dev-bind /dev/null /dev/null --proc /proc --tmpfs /dev "
        "--tmpfs /in/packages --remount-ro /in/packages --ro-bind /dev/null /in/file "
        "--perms 0444 --ro-bind-data 7 /etc/hosts --remount-ro /"
    )


def test_the_root_of_a_session_is_closed_last_and_holds_what_is_promised() -> None:
    steps = session_steps([("/opt/python/lib", "/opt/python/lib")], "/home/agent")
    assert steps[-2:] == [RootStep("seal", "/dev"), RootStep("seal", "/")]
    assert sum(step.kind == "seal" for step in steps) == 2
    made = set[str]()
    for step in steps[:-2]:
        # What something is put below is there before it, unless it is made on the way.
        later = {other.path for other in steps if other.kind != "seal"} - made
        assert not later & {str(path) for path in Path(step.path).parents}, step
        made.add(step.path)
    assert {step.path for step in steps if step.kind == "data"} == {*FILES, ARCHIVE}
    assert {step.path for step in steps if step.kind == "device"} == {
        f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero")
    }
    shown = {step.source for step in steps if step.kind.startswith("bind")}
    assert not shown & {"/", "/etc", "/usr", "/home", "/tmp", "/var", "/proc", "/sys", "/dev"}


@pytest.mark.namespaces
@pytest.mark.bubblewrap
async def test_both_show_the_same_files() -> None:
    look = """
import os
found = {}
for top, names, files in os.walk("/"):
    if top == "/":
        names[:] = [n for n in names if n != "proc"]
    if top.count("/") > 3: names.clear()
    for name in (*names, *files):
        path = os.path.join(top, name)
        facts = os.lstat(path)
        found[path] = oct(facts.st_mode), facts.st_rdev, facts.st_uid, facts.st_gid
import hashlib
hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest(), len(found)
"""
    seen: list[str | None] = []
    for backend in ("namespaces", "bubblewrap"):
        async with opened(SandboxSettings(backend=backend), warm=0) as pool:
            session = await pool.open()
            result = await session.exec(look)
            assert result.ok, result
            seen.append(result.value)
    assert seen[0] == seen[1]

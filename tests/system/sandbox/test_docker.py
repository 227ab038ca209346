"""The Docker back-end: what a container may do, what is left of it, what is said when it cannot."""

import asyncio
import contextlib
import http.server
import io
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import count
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli import app
from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.run_id import using_run_id
from agentrl.sandbox import Backend, Limits, Pressure, SandboxSettings
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.bundle import bundle
from agentrl_sandbox.image import bootstrap, pack
from agentrl_sandbox.inside.container import LINKS
from agentrl_sandbox.launch import container, handover
from agentrl_sandbox.launch import engine as launch_engine
from agentrl_sandbox.launch.container import EngineMachine
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.launch.handover import HandoverFolder
from agentrl_sandbox.reaping.engine import ListedContainer, containers, default_engine
from tests.support.pools import opened

DOCKER = SandboxSettings(backend="docker")
GIB = 2**30
MACHINE = EngineMachine(memory_bytes=16 * GIB, cores=4, security=("name=seccomp,profile=default",))
IMAGE_OF_TESTS = "agentrl-test-image"


def ours(run: str) -> list[ListedContainer]:
    return containers(default_engine(), f"agentrl.run={run}")


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name a run, so that the test finds its own containers; none may be left."""
    name = f"test-{os.urandom(4).hex()}"
    with using_run_id(name):
        yield name
    if request.node.get_closest_marker("docker"):
        assert ours(name) == []


@pytest.fixture
async def pool(run: str) -> AsyncIterator[ForkServerPool]:
    async with opened(DOCKER) as pool:
        yield pool


@pytest.fixture
async def session(pool: ForkServerPool) -> SandboxSession:
    return await pool.open()


async def value(session: SandboxSession, code: str) -> Any:
    result = await session.exec(code)
    assert result.ok, result
    return result.value


# -- what is decided ------------------------------------------------------------------------------


def settings(**pressure: Any) -> SandboxSettings:
    limits = Limits(memory_bytes=GIB, disk_bytes=GIB, processes=10)
    return SandboxSettings(backend="docker", limits=limits, pressure=Pressure(**pressure))


def test_memory_is_that_of_all_sessions_or_of_the_machine() -> None:
    one = 2 * GIB + container.SESSION_BYTES
    few = settings(sessions=3, free_memory_bytes=GIB)
    assert container.memory_bytes(few, MACHINE) == container.SUPERVISOR_BYTES + 3 * one
    assert container.memory_bytes(settings(sessions=99, free_memory_bytes=GIB), MACHINE) == 15 * GIB
    shared = replace(settings(sessions=99, free_memory_bytes=GIB), supervisors=3)
    assert container.memory_bytes(shared, MACHINE) == 5 * GIB
    tiny = EngineMachine(memory_bytes=GIB, cores=1)
    assert container.memory_bytes(few, tiny) == container.SUPERVISOR_BYTES + one


def test_processes_and_cores_are_those_of_all_sessions() -> None:
    assert container.processes(settings(sessions=4)) == 16 + 4 * 13
    assert container.processes(replace(settings(sessions=5), supervisors=2)) == 16 + 3 * 13
    assert container.cores(settings(cells=3), MACHINE) == 3
    assert container.cores(settings(cells=99), MACHINE) == 4
    assert container.cores(replace(settings(cells=1), supervisors=4), MACHINE) == 1


@given(
    sessions=st.integers(1, 5000),
    supervisors=st.integers(1, 64),
    memory=st.integers(2**20, 2**36),
    machine=st.integers(2**30, 2**42),
    free=st.integers(0, 2**38),
)
def test_containers_together_leave_the_machine_its_memory(
    sessions: int, supervisors: int, memory: int, machine: int, free: int
) -> None:
    asked = SandboxSettings(
        supervisors=supervisors,
        limits=Limits(memory_bytes=memory),
        pressure=Pressure(sessions=sessions, free_memory_bytes=free),
    )
    here = EngineMachine(memory_bytes=machine, cores=1)
    got = container.memory_bytes(asked, here)
    least = memory + asked.limits.disk_bytes
    assert got > least
    one = least + container.SESSION_BYTES + container.SUPERVISOR_BYTES
    assert got == one or got * supervisors <= machine - free
    more = replace(asked, pressure=Pressure(sessions=sessions + 1, free_memory_bytes=free))
    assert container.memory_bytes(more, here) >= got


def test_the_user_is_nobodys_and_the_engine_can_have_it() -> None:
    assert container.user_id(MACHINE, 5) == 2**30 + 5
    assert container.user_id(MACHINE, 2**32 - 1) < 2**30 + 2**24
    for option in ("name=rootless", "name=userns"):
        assert container.user_id(replace(MACHINE, security=(option,)), 5) == 1000


def test_the_machine_is_read_from_the_engines_answer() -> None:
    info = {"MemTotal": 5, "NCPU": 2, "SecurityOptions": None, "MemoryLimit": True}
    assert EngineMachine.from_info(info) == EngineMachine(memory_bytes=5, cores=2)
    found = EngineMachine.from_info({**info, "MemoryLimit": False, "PidsLimit": False})
    with pytest.raises(ConfigError, match="cannot limit memory and pids"):
        container.check_machine(found)
    with pytest.raises(ConfigError, match="no seccomp"):
        container.check_machine(replace(MACHINE, security=()))
    container.check_machine(MACHINE)


def test_a_container_gives_up_everything_it_does_not_need() -> None:
    body = container.container(
        DOCKER, MACHINE, user=7, home="/h", packages="/p", labels={"agentrl.run": "r"}
    )
    host = body["HostConfig"]
    assert body["User"] == "7:7"
    assert body["Labels"] == {"agentrl.run": "r"}
    assert host["CapDrop"] == ["ALL"]
    assert "CapAdd" not in host
    assert "Privileged" not in host
    assert (host["NetworkMode"], host["IpcMode"], host["ReadonlyRootfs"]) == ("none", "none", True)
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["MemorySwap"] == host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert host["NanoCpus"] > 0
    assert host["AutoRemove"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("/h", "/run/agentrl", True),
        ("/p", "/packages", True),
    ]


def test_the_filter_of_a_container_lets_the_supervisor_mount_and_nobody_load_a_module() -> None:
    profile = json.loads(container.profile())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {
        name
        for rule in profile["syscalls"]
        for name in rule["names"]
        if rule["action"] == "SCMP_ACT_ALLOW"
    }
    assert {"mount", "umount2", "setns", "unshare", "clone", "memfd_create", "read"} <= allowed
    assert not allowed & {
        *("bpf", "init_module", "io_uring_setup", "kexec_load", "keyctl", "perf_event_open"),
        *("pivot_root", "process_vm_readv", "ptrace", "reboot", "userfaultfd", "clone3"),
    }


# -- what is refused, and how ---------------------------------------------------------------------


def test_a_missing_sdk_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker.api", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-gym\[docker\]'"):
        ForkServerPool(DOCKER)


async def test_an_engine_that_does_not_answer_is_refused_with_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    before = ProcessHoldings.take()
    async with opened(DOCKER) as pool:
        with pytest.raises(ConfigError, match=r"none\.sock.*apt-get install docker\.io.*dockerd"):
            await pool.open()
    await check_no_leak(before)


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "docker", "process"])
def test_packages_that_are_no_directory_are_refused(backend: Backend, tmp_path: Path) -> None:
    wrong = SandboxSettings(
        backend=backend, allow_unisolated=True, packages=str(tmp_path / "nothing")
    )
    with pytest.raises(ConfigError, match="not a directory; create it with `pip install --target"):
        ForkServerPool(wrong)


@pytest.mark.docker
async def test_a_missing_image_is_refused_with_the_command(run: str) -> None:
    async with opened(replace(DOCKER, image="agentrl-nothing")) as pool:
        with pytest.raises(ConfigError, match="agentrl image build --tag agentrl-nothing"):
            await pool.open()


@pytest.fixture
def broken_image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Build an image on ours with the instructions of the parameter."""
    base = f"FROM {DOCKER.image}\n"
    (tmp_path / "Dockerfile").write_text(base + request.param)
    (tmp_path / "python3").write_text("#!/bin/sh\necho too old >&2\nexit 3\n")
    (tmp_path / "python3").chmod(0o755)
    with contextlib.closing(DockerEngine()) as engine:
        list(engine.build(str(tmp_path), IMAGE_OF_TESTS))
        yield IMAGE_OF_TESTS
        engine.remove_image(IMAGE_OF_TESTS)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("broken_image", "words"),
    [
        ("ENV PATH=/nowhere\n", "executable file not found"),
        ("COPY python3 /usr/local/bin/\n", "too old; the image needs Python"),
        ("VOLUME /data\n", "use an image without VOLUME"),
        (
            "RUN mkdir /usr/lib/python3/dist-packages/agentrl_envs\n",
            "read the answers of .* to an image without agentrl",
        ),
    ],
    indirect=["broken_image"],
)
async def test_an_image_that_cannot_be_used_is_refused_and_nothing_stays(
    broken_image: str, words: str, run: str
) -> None:
    before = ProcessHoldings.take()
    async with opened(replace(DOCKER, image=broken_image)) as pool:
        with pytest.raises(ConfigError, match=words):
            await pool.open()
    assert ours(run) == []
    await check_no_leak(before)


# -- removing -------------------------------------------------------------------------------------

ENDED_MEANWHILE = (
    "Could not kill running container 94fb, cannot remove - Container 94fb is not running"
)


class Answers(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An engine that answers removals with the statuses it was given, and knows no container."""

    daemon_threads = True

    def __init__(self, path: Path, statuses: list[int]) -> None:
        self.statuses = statuses
        self.removals = 0
        super().__init__(str(path), Answer)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _say(self, status: int, said: dict[str, str]) -> None:
        body = b"" if status == 204 else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._say(200, {"ApiVersion": "1.41"})

    def do_POST(self) -> None:
        self._say(404, {"message": "No such container: some"})

    def do_DELETE(self) -> None:
        engine = cast("Answers", self.server)
        engine.removals += 1
        left = engine.statuses
        self._say(left.pop(0) if len(left) > 1 else left[0], {"message": ENDED_MEANWHILE})

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def answering(path: Path, statuses: list[int]) -> Generator[Answers]:
    with Answers(path, statuses) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("statuses", [[204], [404], [409], [500, 204], [500, 500, 404], [500, 409]])
def test_a_removal_is_repeated_while_the_engine_fails(
    statuses: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")
    asked = len(statuses)
    with (
        answering(tmp_path / "e.sock", statuses) as server,
        contextlib.closing(DockerEngine()) as engine,
    ):
        engine.remove("some")
        assert server.removals == asked


@pytest.mark.parametrize(("status", "removals"), [(500, 6), (400, 1)])
def test_a_removal_that_keeps_failing_is_an_error(
    status: int, removals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")
    monkeypatch.setattr(launch_engine, "REMOVE_S", 5)
    clock = Mock(monotonic=count().__next__)  # each look is a second later
    monkeypatch.setattr(launch_engine, "time", clock)
    with (
        answering(tmp_path / "e.sock", [status]) as server,
        contextlib.closing(DockerEngine()) as engine,
    ):
        with pytest.raises(SandboxError, match="not remove the container some: Could not kill"):
            engine.remove("some")
        assert server.removals == removals


# -- handing over ---------------------------------------------------------------------------------


def connect(home: HandoverFolder) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.path.join(home.path, "socket"))
    return client


@pytest.fixture
def home() -> Iterator[HandoverFolder]:
    made = HandoverFolder()
    yield made
    made.remove()
    assert not os.path.exists(made.path)


def test_only_the_process_that_is_meant_gets_the_descriptors(home: HandoverFolder) -> None:
    with connect(home) as client:
        me = os.pidfd_open(os.getpid())
        home.hand_over(os.getpid(), me, (0, 2), threading.Event())
        os.close(me)
        _, fds, _, _ = socket.recv_fds(client, 1, 9)
        assert len(fds) == 2
        for fd in fds:
            os.close(fd)
    assert os.listdir(home.path) == ["inside.zip"]


def test_another_process_gets_nothing(
    home: HandoverFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "CONNECT_S", 0.3)
    other = os.pidfd_open(1)
    with connect(home) as client:
        with pytest.raises(SandboxError, match="did not connect within"):
            home.hand_over(1, other, (0, 2), threading.Event())
        assert client.recv(1) == b""
    os.close(other)


def test_a_process_that_ends_is_not_waited_for(home: HandoverFolder) -> None:
    with subprocess.Popen(["true"]) as ended:
        pidfd = os.pidfd_open(ended.pid)
        with pytest.raises(SandboxError, match="ended before it connected"):
            home.hand_over(ended.pid, pidfd, (0, 2), threading.Event())
        os.close(pidfd)


def test_a_stop_ends_the_waiting(home: HandoverFolder) -> None:
    stop = threading.Event()
    stop.set()
    me = os.pidfd_open(os.getpid())
    with pytest.raises(SandboxError, match="stopped waiting for it"):
        home.hand_over(os.getpid(), me, (0, 2), stop)
    os.close(me)


# -- inside ---------------------------------------------------------------------------------------


@pytest.mark.docker
async def test_the_code_is_nobody(session: SandboxSession) -> None:
    code = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
[os.getuid() != 0, os.getgid() != 0, os.geteuid() != 0,
 *(status[key].strip("0") for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
 status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"] >= "2"]
"""
    assert await value(session, code) == str([True] * 3 + [""] * 5 + ["1", "2", True])


@pytest.mark.docker
async def test_the_host_sees_a_user_without_a_name(run: str, session: SandboxSession) -> None:
    """From the host: what runs in there is not root, nor anybody who is known."""
    namespace = (await value(session, "import os; os.readlink('/proc/self/ns/pid')")).strip("'")
    owners = users_in(namespace)
    assert owners
    assert 0 not in owners
    assert min(owners) >= 1000


def users_in(process_namespace: str) -> set[int]:
    return {
        path.stat().st_uid
        for path in Path("/proc").glob("[0-9]*")
        if _link(path / "ns/pid") == process_namespace
    }


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@pytest.mark.docker
async def test_no_network_and_no_engine(session: SandboxSession) -> None:
    code = "[line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]]"
    assert await value(session, code) == str(["lo"])
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert "Network is unreachable" in ((await session.exec(connect)).error or "")
    code = """
import os
sockets = "/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/run/agentrl/socket"
[path for path in sockets if os.path.exists(path)]
"""
    assert await value(session, code) == "[]"
    assert await value(session, "open('/etc/resolv.conf').read()") == "''"


@pytest.mark.docker
async def test_nothing_but_the_session_can_be_written(session: SandboxSession) -> None:
    code = """
import os
written = []
for top, directories, _ in os.walk("/"):
    out = ("/proc", "/home/agent")
    directories[:] = [name for name in directories if os.path.join(top, name) not in out]
    try:
        open(os.path.join(top, "agentrl-x"), "w").close()
    except OSError:
        continue
    written.append(top)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/../1/oom_adj"):
    if os.access(path, os.W_OK):
        written.append(path)
written, sorted(os.listdir("/dev")), os.listdir("/sys")
"""
    devices = sorted([*LINKS, "full", "null", "random", "urandom", "zero"])
    assert await value(session, code) == str(([], devices, []))


@pytest.mark.docker
async def test_sessions_do_not_see_each_other(pool: ForkServerPool) -> None:
    one, other = await pool.open(), await pool.open()
    await one.write("secret.txt", b"swordfish")
    code = """
import os
found = [path for top in ("/home/agent", "/proc") for path, _, names in os.walk(top)
         if "secret.txt" in names]
found, sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
"""
    assert await value(other, code) == str(([], [1, 2]))


@pytest.fixture
def packages() -> Iterator[str]:
    """Make a directory of packages that every user can read."""
    with tempfile.TemporaryDirectory(prefix="agentrl-test-") as made:
        Path(made, "agentrl_probe.py").write_text("x = 1\n")
        Path(made).chmod(0o755)
        yield made


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("namespaces", marks=pytest.mark.namespaces),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
async def test_packages_can_be_read_and_not_changed(
    backend: Backend, run: str, packages: str
) -> None:
    pool = ForkServerPool(SandboxSettings(backend=backend, packages=packages))
    try:
        session = await pool.open()
        assert await value(session, "open('/packages/agentrl_probe.py').read()") == "'x = 1\\n'"
        result = await session.exec("open('/packages/agentrl_probe.py', 'w')")
        assert "Read-only file system" in (result.error or "")
    finally:
        await pool.close()


@pytest.mark.docker
async def test_everything_in_a_container_stays_within_its_memory(run: str) -> None:
    """Three processes take what one session may have in one: they lose, and the pool goes on."""
    limits = Limits(memory_bytes=256 * 2**20, disk_bytes=2**20, wall_s=30)
    pool = ForkServerPool(replace(DOCKER, limits=limits, pressure=Pressure(sessions=1)))
    try:
        session = await pool.open()
        code = """
import os, time
pids = []
for _ in range(3):
    pids.append(os.fork())
    if pids[-1] == 0:
        held = b"x" * (200 * 2**20)
        time.sleep(3)
        os._exit(0)
[os.WIFSIGNALED(os.waitpid(pid, 0)[1]) for pid in pids].count(True) > 0
"""
        result = await session.exec(code)
        assert not result.ok or result.value == "True", result
        assert (await session.exec("1 + 1")).value == "2"
    finally:
        await pool.close()


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.docker
async def test_a_container_says_whose_it_is_and_goes_with_its_pool(run: str) -> None:
    before = ProcessHoldings.take()
    async with opened(DOCKER) as twin:
        async with opened(DOCKER) as pool:
            await asyncio.gather(pool.open(), twin.open())
            found = ours(run)
            assert len({c.labels["agentrl.pool"] for c in found}) == len(found) == 2
            assert all(c.labels["agentrl.owner"].startswith(f"{os.getpid()}-") for c in found)
        assert len(ours(run)) == 1
    assert ours(run) == []
    await check_no_leak(before)


@pytest.mark.docker
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.3])
async def test_a_start_that_is_cancelled_leaves_nothing(run: str, after_s: float) -> None:
    before = ProcessHoldings.take()
    async with opened(DOCKER) as pool:
        opening = asyncio.create_task(pool.open())
        await asyncio.sleep(after_s)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
    assert ours(run) == []
    await check_no_leak(before)


@pytest.mark.docker
async def test_a_container_that_is_removed_is_a_sandbox_error_and_is_replaced(
    run: str, pool: ForkServerPool
) -> None:
    session = await pool.open()
    with contextlib.closing(DockerEngine()) as engine:
        for found in ours(run):
            engine.remove(found.id)
    with pytest.raises(SandboxError):
        await session.exec("1")
    assert (await (await pool.open()).exec("1 + 1")).value == "2"


OWNER = """
import asyncio
from agentrl.runtime.run_id import using_run_id
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool

async def main():
    session = await ForkServerPool(SandboxSettings(backend="docker")).open()
    print((await session.exec("1 + 1")).value, flush=True)
    await asyncio.sleep(100)

with using_run_id({run!r}):
    asyncio.run(main())
"""


@pytest.mark.docker
def test_a_container_ends_with_a_process_that_is_killed(run: str) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OWNER.format(run=run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "2\n"
        assert len(ours(run)) == 1
        owner.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while ours(run) and time.monotonic() < deadline_s:
        time.sleep(0.05)


def test_an_archive_for_containers_runs_where_its_compiled_modules_cannot(tmp_path: Path) -> None:
    archive = tmp_path / "inside.zip"
    with (
        zipfile.ZipFile(io.BytesIO(bundle("container", portable=True))) as ours,
        zipfile.ZipFile(archive, "w") as foreign,
    ):
        for name in ours.namelist():
            data = ours.read(name)
            foreign.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import agentrl_sandbox.inside.container as ours; print(ours.__file__)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith(str(archive)), done.stderr


# -- images ---------------------------------------------------------------------------------------


def test_a_root_file_system_is_packed_without_what_sandboxes_have_no_use_for(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    for name in ("usr/bin/python3", "usr/bin/su", "usr/share/doc/a", "dev/sda", "tmp/b", "etc/c"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "usr/bin/su").chmod(0o4755)
    pack(str(root), tmp_path / "root.tar")
    with tarfile.open(tmp_path / "root.tar") as packed:
        names = {m.name.removeprefix("./"): m for m in packed.getmembers()}
        assert {"usr/bin/python3", "usr/bin/su", "etc/c", "dev", "tmp"} <= names.keys()
        assert not names.keys() & {"usr/share/doc/a", "dev/sda", "tmp/b"}
        assert names["usr/bin/su"].mode == 0o755
        content = packed.extractfile(names["etc/c"])
        assert isinstance(content, io.BufferedIOBase)
        assert content.read() == b"etc/c"


def test_what_an_image_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="`sudo agentrl image build`"):
        bootstrap(str(tmp_path), say=print)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"apt-get install debootstrap.*--from slim"):
        bootstrap(str(tmp_path), say=print)


def test_a_root_file_system_that_could_not_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "debootstrap"
    fake.write_text('#!/bin/sh\necho "E: no mirror at $4"\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []
    with pytest.raises(
        ConfigError, match=r"E: no mirror at .*root; it needs a reachable Debian mirror"
    ):
        bootstrap(str(tmp_path / "root"), say=said.append)
    assert said == [f"E: no mirror at {tmp_path / 'root'}"]


def test_a_command_that_cannot_be_imported_is_left_out_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(group: str) -> list[EntryPoint]:
        return [EntryPoint("broken", "agentrl_nothing:x", group)]

    monkeypatch.setattr("importlib.metadata.entry_points", broken)
    app.add_commands()
    assert (
        "the command 'broken' is not available: No module named 'agentrl_nothing'"
        in capsys.readouterr().err
    )

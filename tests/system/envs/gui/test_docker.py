"""Desktops in containers: what a container may do, the programs of the image, what is said without.

What must hold with every back-end is in test_gui_failures.py, test_gui_tasks.py and
security/test_desktop_attacks.py.

Mutants seen caught, each applied to a copy of the tree, here and in those files: `/sys` shown; the
host's resolv.conf shown; the image's users shown; capabilities kept; privileges to be gained;
mounts permitted; keys permitted; another umask; homes where nothing can be run; no bound on memory;
no bound on processes; the host's network; a root file system to write to; memory counted for the
trainer; no labels; nothing removed at the end; nothing removed when nobody waits any more; a lease
kept; the image not looked for; the wrong command named.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import say
from agentrl.errors import ConfigError, EnvError, SandboxError
from agentrl.runtime.run_id import using_run_id
from agentrl.task import Task
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.checked_desktop import CheckedDesktop
from agentrl_envs.gui.desktop import DesktopPool, DesktopSession, DesktopSettings
from agentrl_envs.gui.desktop.container import build_container, build_profile
from agentrl_envs.gui.observation import DesktopObservationOptions
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.world import CommandResult
from agentrl_sandbox.launch.contained import start_in_thread
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.lease import LABEL_OWNER, LABEL_RUN
from agentrl_sandbox.reaping.engine import ListedContainer, containers, default_engine
from agentrl_sandbox.recipe import RECIPES

module = pytest.mark.asyncio(loop_scope="module")
SETTINGS = DesktopSettings(
    backend="docker", desktops=2, warm=0, call_s=120, start_s=120, settle_s=20
)
HERE = replace(SETTINGS, backend="bubblewrap")
TEMPLATES = (
    *("press", "enter_code", "write_line", "answer_sum", "enter_cell", "rename", "count_lines"),
    *("xterm_write", "web_press"),
)
"""Of every program one."""
LIMITS = {"Memory": 2**30, "MemorySwap": 2**30, "PidsLimit": 1000, "ShmSize": 2**28}


def ours(run: str) -> list[ListedContainer]:
    return containers(default_engine(), f"{LABEL_RUN}={run}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(SETTINGS)
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktop(pool: DesktopPool) -> AsyncGenerator[DesktopSession]:
    taken = await pool.take()
    yield taken
    await pool.give(taken)


async def python(desktop: DesktopSession, code: str) -> CommandResult:
    return await CheckedDesktop(desktop, DesktopObservationOptions()).run(
        ["/usr/bin/python3", "-c", code], limit_s=60
    )


def first_task(name: str) -> Task:
    (task,) = islice(template_pack(templates=[name]).tasks("heldout", 1), 1)
    return task


# -- what is decided -------------------------------------------------------------------------------


def test_a_container_gives_up_everything_it_does_not_need() -> None:
    body = build_container(SETTINGS, user=7, home="/h", labels={"agentrl.run": "r"})
    host: dict[str, Any] = body["HostConfig"]
    assert (body["User"], body["Labels"]) == ("7:7", {"agentrl.run": "r"})
    assert host["CapDrop"] == ["ALL"]
    assert not host.keys() & {"CapAdd", "Privileged", "Binds", "Devices", "PortBindings"}
    assert (host["NetworkMode"], host["ReadonlyRootfs"]) == ("none", True)
    assert {"no-new-privileges", f"seccomp={build_profile()}"} <= {*host["SecurityOpt"]}
    assert {name: host[name] for name in LIMITS} == LIMITS
    assert "/sys" in host["MaskedPaths"]
    assert {mount["ReadOnly"] for mount in host["Mounts"]} == {True}
    assert {mount["Source"] for mount in host["Mounts"]} == {
        *("/h", "/h/passwd", "/h/group", "/h/machine-id", "/h/resolv.conf")
    }
    assert all(f"size={2**28}," in options for options in host["Tmpfs"].values())
    assert [*host["Tmpfs"]] == ["/run/desktop", "/tmp", "/home/user"]


def test_the_filter_lets_programs_share_memory_and_nobody_mount() -> None:
    rules: dict[str, Any] = json.loads(build_profile())
    assert rules["defaultAction"] == "SCMP_ACT_ERRNO"
    (rule,) = rules["syscalls"]
    allowed = {*rule["names"]}
    assert {"shmget", "memfd_create", "inotify_init1", "clone3", "unshare", "chroot"} <= allowed
    assert not allowed & {
        *("mount", "umount2", "move_mount", "fsopen", "open_tree", "pivot_root", "setns"),
        *("bpf", "init_module", "io_uring_setup", "kexec_load", "keyctl", "perf_event_open"),
        *("process_vm_readv", "pidfd_getfd", "ptrace", "reboot", "userfaultfd"),
    }


def test_a_back_end_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of bubblewrap, docker, got 'podman'"):
        DesktopSettings(backend="podman")  # pyright: ignore[reportArgumentType]


# -- what runs -------------------------------------------------------------------------------------


@pytest.mark.desktop_image
@module
@pytest.mark.parametrize("name", TEMPLATES)
async def test_gold_earns_one_and_doing_nothing_earns_nothing(pool: DesktopPool, name: str) -> None:
    task = first_task(name)
    env = GuiEnv(pack=template_pack(templates=[name]), desktop=pool, max_turns=None)
    episode = await play_gold(env, task)
    assert episode.reward == 1, [message.text for message in episode.messages]
    await env.reset(options={"task": task})
    idle = await env.step(say(""))
    await env.close()
    assert (idle[1], idle[2]) == (0.0, True)


@pytest.mark.gui
@pytest.mark.desktop_image
@module
async def test_an_episode_looks_as_it_does_with_this_machines_programs(pool: DesktopPool) -> None:
    """Word for word and pixel for pixel, through a whole episode."""
    task, seen = first_task("add_row"), list[Any]()
    for desktop in (pool, HERE):
        env = GuiEnv(
            pack=template_pack(templates=["add_row"]),
            desktop=desktop,
            observation=["axtree", "screenshot"],
        )
        played = await play_gold(env, task)
        assert played.reward == 1
        seen.append(played.messages)
        await env.close()
    assert seen[0] == seen[1]


@pytest.mark.desktop_image
@module
async def test_a_desktop_that_is_used_again_looks_as_a_fresh_one() -> None:
    small = DesktopPool(replace(SETTINGS, desktops=1))
    env = GuiEnv(
        pack=template_pack(templates=["press"]),
        desktop=small,
        observation=["axtree", "screenshot"],
    )
    first, info = await env.reset(seed=0)
    assert not info["reused_desktop"]
    again, info = await env.reset(seed=0)
    assert info["reused_desktop"]
    assert again == first
    await env.close()
    await small.close()


# -- what holds it ---------------------------------------------------------------------------------


@pytest.mark.desktop_image
@module
async def test_programs_have_no_right_and_cannot_get_one(desktop: DesktopSession) -> None:
    code = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(os.getuid(), os.getgid(), os.getgroups(),
      *(status[key].strip("0") for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
      status["NoNewPrivs"], status["Seccomp"])
"""
    assert (await python(desktop, code)).out.split() == ["1000", "1000", "[1000]", "1", "2"]
    process = f"/proc/{desktop._process.pid}"  # pyright: ignore[reportPrivateUsage]
    assert os.stat(process).st_uid >= 2**30 or os.geteuid() != 0, "a user nobody has"
    set_ids = await CheckedDesktop(desktop, DesktopObservationOptions()).run(
        ["find", "/", "-xdev", "-perm", "/6000", "-type", "f"], limit_s=60
    )
    assert set_ids.out == ""


@pytest.mark.desktop_image
@module
async def test_nothing_is_mounted_even_in_a_user_namespace(desktop: DesktopSession) -> None:
    code = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000 | 0x20000))
for call in (lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
             lambda: libc.umount2(b"/sys", 2), lambda: libc.umount2(b"/etc/passwd", 2),
             lambda: libc.syscall(250, 0, 0, 0), lambda: libc.syscall(321, 0, 0, 0),
             lambda: libc.syscall(425, 1, 0)):
    print(call(), errno.errorcode[ctypes.get_errno()])
"""
    ran = await python(desktop, code)
    assert ran.out.split("\n")[:-1] == ["0", *["-1 EPERM"] * 6], ran.err


@pytest.mark.desktop_image
@module
async def test_nothing_but_the_home_can_be_written(desktop: DesktopSession) -> None:
    code = """
import os
written = []
for top, folders, _ in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(top, name) != "/proc"]
    try:
        open(os.path.join(top, "agentrl-x"), "w").close()
        os.unlink(os.path.join(top, "agentrl-x"))
    except OSError:
        continue
    written.append(top)
roots = ("/home/user", "/tmp", "/run/desktop", "/dev/shm", "/dev/mqueue")
print([top for top in written if not top.startswith(roots)], "/home/user" in written)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/opt/desktop/socket"):
    print(os.access(path, os.W_OK))
"""
    ran = await python(desktop, code)
    assert ran.out.split("\n")[:-1] == ["[] True", *["False"] * 3], ran.err


@pytest.mark.gui
@pytest.mark.desktop_image
@module
async def test_programs_of_the_home_run_and_files_are_made_as_with_bubblewrap(
    desktop: DesktopSession,
) -> None:
    code = "umask; cp /bin/echo ~/mine; ~/mine run; pwd; id -un; hostname; tty; echo $PATH $HOME"
    other = await DesktopSession.start(HERE)
    ran = [
        await CheckedDesktop(one, DesktopObservationOptions()).run(["sh", "-c", code], limit_s=60)
        for one in (desktop, other)
    ]
    await other.close()
    assert ran[0] == ran[1]
    assert ran[0].out.split()[:2] == ["0077", "run"]


# -- its end, and what is said ---------------------------------------------------------------------


@pytest.mark.desktop_image
@module
async def test_a_container_says_whose_it_is_and_goes_with_its_desktop() -> None:
    run = f"test-{os.urandom(4).hex()}"
    with using_run_id(run):
        made = await DesktopSession.start(SETTINGS)
    (found,) = ours(run)
    assert found.labels[LABEL_OWNER].startswith(f"{os.getpid()}-")
    held = made.memory_bytes()
    assert held is not None
    assert 2**20 < held < 2**30
    await made.close()
    await made.close()
    assert ours(run) == []


@pytest.mark.desktop_image
@module
async def test_an_image_that_is_not_there_is_refused_with_the_command() -> None:
    with pytest.raises(ConfigError, match="agentrl image build desktop --tag agentrl-nothing`"):
        await DesktopSession.start(replace(SETTINGS, image="agentrl-nothing"))


@pytest.mark.docker
@pytest.mark.desktop_image
@module
async def test_an_image_without_the_programs_is_no_fault_of_an_episode() -> None:
    run = f"test-{os.urandom(4).hex()}"
    with using_run_id(run), pytest.raises(EnvError, match="a desktop did not start") as raised:
        await DesktopSession.start(replace(SETTINGS, image=RECIPES["sandbox"].tag))
    assert "Xvfb" in str(raised.value)
    assert ours(run) == []


@pytest.mark.desktop_image
@module
async def test_an_engine_that_fails_is_no_fault_of_an_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(engine: DockerEngine, name: str) -> None:
        raise SandboxError(f"the Docker engine could not start {name}")

    run = f"test-{os.urandom(4).hex()}"
    monkeypatch.setattr(DockerEngine, "start", fails)
    with using_run_id(run), pytest.raises(EnvError, match="did not start: the Docker engine could"):
        await DesktopSession.start(SETTINGS)
    assert ours(run) == []


async def test_what_is_started_when_nobody_waits_any_more_is_let_go() -> None:
    begun, gone = threading.Event(), list[bool]()

    class Thing:
        def discard(self) -> None:
            gone.append(True)

    def start(made: Thing, stop: threading.Event) -> None:
        begun.set()
        assert stop.wait(60)

    starting = asyncio.ensure_future(start_in_thread(Thing, start))
    await asyncio.to_thread(begun.wait, 60)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone == [True]


async def test_what_had_started_when_its_caller_was_cancelled_is_let_go_once() -> None:
    begun, goes, gone = threading.Event(), threading.Event(), list[bool]()

    class Thing:
        def discard(self) -> None:
            gone.append(True)

    def start(made: Thing, stop: threading.Event) -> None:
        begun.set()
        assert goes.wait(60)

    def let_end() -> None:
        goes.set()
        time.sleep(0.1)  # the thread ends, and the loop, which stands still, does not hear of it

    starting = asyncio.ensure_future(start_in_thread(Thing, start))
    await asyncio.to_thread(begun.wait, 60)
    let_end()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone == [True]

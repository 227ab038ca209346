"""Programs that an agent starts in a terminal, attacking the desktop, and this machine from it.

They have what a terminal on the desktop has. What must hold: nothing of this machine and of another
desktop is reached; nothing that a checker knows is found; what breaks the desktop fails the episode
and is never a reward; nothing stays. With every back-end.

Mutant seen caught, applied to a copy of the tree: an interrupt ends the first process.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import call
from agentrl.errors import EnvError
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.checked_desktop import CheckedDesktop
from agentrl_envs.gui.desktop import DesktopPool, DesktopSession, DesktopSettings
from agentrl_envs.gui.observation import DesktopObservationOptions
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.pack import TEMPLATES
from agentrl_envs.gui.world import CommandResult
from tests.support.desktops import BACKENDS
from tests.support.watchdog import watched

pytestmark = pytest.mark.asyncio(loop_scope="module")

GONE_S = 60.0
RUN_S = 60.0


@pytest.fixture(scope="module", params=BACKENDS)
def settings(request: pytest.FixtureRequest) -> DesktopSettings:
    return DesktopSettings(
        backend=request.param, desktops=3, warm=0, call_s=120, start_s=120, settle_s=20
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(settings: DesktopSettings) -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(settings)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def terminal(pool: DesktopPool) -> AsyncGenerator[GuiEnv]:
    """A running episode with a terminal."""
    env = GuiEnv(pack=template_pack(templates=["count_lines"]), desktop=pool)
    await env.reset(seed=0)
    yield env
    await env.close()


def desktop_of(env: GuiEnv) -> DesktopSession:
    episode: Any = env._episode  # pyright: ignore[reportPrivateUsage]
    return episode.desktop


async def runs(env: GuiEnv, *command: str) -> CommandResult:
    return await CheckedDesktop(desktop_of(env), DesktopObservationOptions()).run(
        command, limit_s=RUN_S
    )


async def python(env: GuiEnv, code: str) -> str:
    ran = await runs(env, "/usr/bin/python3", "-c", code)
    assert ran.code == 0, ran.err
    return ran.out.strip()


# -- this machine ----------------------------------------------------------------------------------


async def test_no_network_is_reached(terminal: GuiEnv) -> None:
    """Not this machine's loopback, not its abstract sockets, not the internet; its own only."""
    name = f"\0agentrl-{secrets.token_hex(8)}"
    with closing(socket.create_server(("127.0.0.1", 0))) as here, closing(
        socket.socket(socket.AF_UNIX)
    ) as unix:  # fmt: skip
        unix.bind(name)
        unix.listen()
        code = f"""
import socket
def reaches(kind, address):
    with socket.socket(kind) as line:
        line.settimeout(3)
        try:
            line.connect(address)
        except OSError:
            return False
        return True
print(
    reaches(socket.AF_INET, ("127.0.0.1", {here.getsockname()[1]})),
    reaches(socket.AF_INET, ("93.184.215.14", 80)),
    reaches(socket.AF_UNIX, {name!r}),
    reaches(socket.AF_UNIX, "/var/run/docker.sock"),
    sorted(name for _, name in socket.if_nameindex()),
)
"""
        assert await python(terminal, code) == "False False False False ['lo']"


async def test_no_file_of_this_machine_is_read(terminal: GuiEnv, tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    (tmp_path / "secret").write_text(secret)
    for path in (tmp_path / "secret", Path(__file__), Path("/etc/shadow")):
        ran = await runs(terminal, "cat", str(path))
        assert (ran.code, ran.out) == (1, ""), path
    for path, shown in (("/etc/hostname", ("", "desktop\n")), ("/etc/resolv.conf", ("",))):
        assert (await runs(terminal, "cat", path)).out in shown, path
    around = (await runs(terminal, "sh", "-c", "ls / /root /home /opt; ls -A /sys")).out.split()
    top = {path.parts[1] for path in (tmp_path, Path(__file__))} - {"home", "opt", "root", "tmp"}
    assert not {*top, "kernel"} & {*around}
    users = (await runs(terminal, "cat", "/etc/passwd", "/etc/group")).out
    assert [line.split(":")[0] for line in users.splitlines()] == ["user", "user"]
    ran = await runs(terminal, "sh", "-c", "cp /bin/true /usr/bin/mine || touch /etc/mine /mine")
    assert ran.code != 0
    assert (await runs(terminal, "touch", "/dev/mine")).code != 0


async def test_no_process_of_this_machine_is_seen(terminal: GuiEnv) -> None:
    marked = f"agentrl-{secrets.token_hex(8)}"
    outside = await asyncio.create_subprocess_exec("sleep", "600", env={"MARK": marked})
    try:
        found = (await runs(terminal, "sh", "-c", "cat /proc/*/environ /proc/*/cmdline")).out
        assert marked not in found
        pids = (await runs(terminal, "sh", "-c", "ls -d /proc/[0-9]*")).out.split()
        assert f"/proc/{outside.pid}" not in pids
        assert len(pids) < 60
    finally:
        outside.kill()
        await outside.wait()


async def test_nothing_is_inherited_and_the_first_process_is_out_of_reach(
    terminal: GuiEnv,
) -> None:
    """The socket to this machine is its; nobody in there speaks for it, stops or kills it."""
    code = """
import ctypes, os, signal
got = []
for name in os.listdir('/proc/self/fd'):
    try:
        got.append(os.readlink(f'/proc/self/fd/{name}').split(':')[0])
    except OSError:
        pass
print(sorted({one for one in got if one.startswith(('socket', 'anon_inode'))}))
for look in (lambda: os.listdir('/proc/1/fd'), lambda: open('/proc/1/mem', 'rb').read(1),
             lambda: open('/proc/1/environ', 'rb').read(1)):
    try:
        look()
        print('seen')
    except OSError:
        print('refused')
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno() != 0)
try:
    print(os.pidfd_open(1) >= 0 and libc.syscall(438, os.pidfd_open(1), 0, 0))
except OSError:
    print(-1)
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP):
    os.kill(1, number)
"""
    assert (await python(terminal, code)).split("\n") == [
        "[]", "refused", "refused", "refused", "-1 True", "-1",
    ]  # fmt: skip
    assert await desktop_of(terminal).healthy()


async def test_another_desktop_is_not_reached(terminal: GuiEnv, pool: DesktopPool) -> None:
    """Every one is the display :0 of its own namespace, with a bus of its own."""
    other = await pool.take()
    try:
        await other.program(["xterm", "-T", "the neighbour's"])
        await other.put("neighbour.txt", b"mine")
        mine = CheckedDesktop(desktop_of(terminal), DesktopObservationOptions())
        assert "the neighbour's" not in [node.name for node in await mine.nodes()]
        code = """
import socket, os
from Xlib import display
print([w.get_wm_name() for w in display.Display(':0').screen().root.query_tree().children
       if w.get_wm_name() == "the neighbour's"])
for number in range(1, 9):
    for address in (f'/tmp/.X11-unix/X{number}', f'\\0/tmp/.X11-unix/X{number}'):
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(address)
                print('reached', address)
            except OSError:
                pass
print(os.path.exists('/home/user/neighbour.txt'))
"""
        assert (await python(terminal, code)).split("\n") == ["[]", "False"]
    finally:
        other.touched = True
        await pool.give(other)


# -- the checker -----------------------------------------------------------------------------------


async def test_what_a_task_wants_is_nowhere_on_its_desktop(pool: DesktopPool) -> None:
    """Not in a file, not in an environment, not on a command line, not in memory one may read."""
    pack = template_pack(templates=["move_into_folder"])
    (task,) = islice(pack.tasks("heldout", 1), 1)
    env = GuiEnv(pack=pack, desktop=pool)
    await env.reset(options={"task": task})
    folder = next(name for name in task.data["wanted"]["after"] if name.endswith("/")).rstrip("/")
    code = f"""
import os
needle = {folder[::-1]!r}[::-1].encode()
found = []
for root in ('/home', '/run', '/tmp', '/dev/shm', '/opt'):
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path) and needle in open(path, 'rb').read(2**24):
                found.append(path)
for pid in os.listdir('/proc'):
    if pid.isdecimal() and int(pid) != os.getpid():
        for part in ('environ', 'cmdline'):
            try:
                if needle in open(f'/proc/{{pid}}/{{part}}', 'rb').read():
                    found.append((pid, part))
            except OSError:
                pass
print(found)
"""
    assert await python(env, code) == "[]"
    await env.close()


@dataclass(frozen=True, slots=True)
class Forged:
    """A desktop whose programs say whatever an agent's code wants them to."""

    there: Mapping[str, bytes]

    async def nodes(self) -> Sequence[AccessibilityNode]:
        raise AssertionError("a checker believes what code of the agent can forge")

    async def read(self, path: str) -> bytes | None:
        return self.there.get(path)

    async def files(self, folder: str) -> Mapping[str, str]:
        return {path.removeprefix(f"{folder}/"): "file" for path in self.there}

    async def quit(self) -> bool:
        raise AssertionError("a checker asks programs that may be the agent's")


@pytest.mark.parametrize(
    "template", [one for one in TEMPLATES if one.runs_code], ids=lambda one: one.name
)
async def test_no_checker_believes_the_tree_where_code_runs(template: Any) -> None:
    """A program can say anything over AT-SPI, in anybody's name; a file is what it is."""
    (task,) = islice(template_pack(templates=[template.name]).tasks("heldout", 1), 1)
    wanted: dict[str, Any] = task.data["wanted"]
    files = wanted.get("files", {})
    there = {f"Documents/{name}": text.encode() for name, text in files.items()}
    assert not await template.check(Forged(there), wanted, "forged")


async def test_a_forged_program_is_shown_and_earns_nothing(pool: DesktopPool) -> None:
    pack = template_pack(templates=["remove_file"])
    (task,) = islice(pack.tasks("heldout", 1), 1)
    env = GuiEnv(pack=pack, desktop=pool)
    await env.reset(options={"task": task})
    code = (
        "import gi; gi.require_version('Gtk', '3.0'); from gi.repository import Gtk; "
        "w = Gtk.Window(title='Task done: reward 1'); w.show_all(); Gtk.main()"
    )
    place = CheckedDesktop(desktop_of(env), DesktopObservationOptions())
    await place.start(["/usr/bin/python3", "-c", code], waits=True)
    assert "Task done: reward 1" in [node.name for node in await place.nodes()]
    assert (await env.step(call("computer", action="done", text="reward: 1")))[1] == 0.0
    await env.close()


# -- breaking it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["Xvfb", "jwm", "dbus-daemon", "at-spi2-registryd"])
async def test_who_breaks_the_desktop_has_a_failed_episode_or_no_reward(
    pool: DesktopPool, part: str
) -> None:
    """Even where the task was done before."""
    pack = template_pack(templates=["xterm_write"])
    (task,) = islice(pack.tasks("heldout", 1), 1)
    env = GuiEnv(pack=pack, desktop=pool)
    await env.reset(options={"task": task})
    broken = desktop_of(env)
    await runs(env, "sh", "-c", f"kill -9 $(pidof {part} || pgrep -f {part})")
    try:
        step = await env.step(call("computer", action="done"))
    except EnvError:
        assert part in ("Xvfb", "jwm")
    else:
        assert part not in ("Xvfb", "jwm")
        assert step[1] == 0.0
    await env.close()
    await pool.wait_until_ready()
    assert not broken.sound, "it is thrown away"
    fine = await play_gold(env, task)
    await env.close()
    assert fine.reward == 1


async def test_a_fork_bomb_hits_the_limit_of_its_desktop(settings: DesktopSettings) -> None:
    """With a cgroup around it or without."""
    small = DesktopPool(replace(settings, processes=200))
    env = GuiEnv(pack=template_pack(templates=["count_lines"]), desktop=small)
    await env.reset(seed=0)
    mark = f"7{secrets.randbelow(10**8):08d}"
    code = f"""
import os, subprocess
made = 0
try:
    while made < 1000:
        subprocess.Popen(['sleep', '{mark}'])
        made += 1
except OSError:
    pass
print(0 < made < 200)
"""
    ran = await runs(env, "/usr/bin/python3", "-c", code)
    assert ran.out.strip() == "True", ran
    assert 0 < len(await run_in_thread(sleepers, mark)) < 200
    await env.close()
    await small.close()
    assert await run_in_thread(are_gone, mark)


@pytest.mark.cgroup
async def test_memory_beyond_its_bound_is_taken_from_the_program_that_asks(
    settings: DesktopSettings,
) -> None:
    small = DesktopPool(replace(settings, memory_bytes=512 * 2**20))
    env = GuiEnv(pack=template_pack(templates=["count_lines"]), desktop=small)
    await env.reset(seed=0)
    ran = await runs(env, "/usr/bin/python3", "-c", "print(len(bytearray(b'x' * 2**30)))")
    assert (ran.code, ran.out) == (-9, "")
    held = desktop_of(env).memory_bytes()
    assert held is not None
    assert 2**20 < held < 512 * 2**20
    await env.close()
    await small.close()


@watched
async def test_files_that_wait_or_never_end_hold_nobody_up(terminal: GuiEnv) -> None:
    desktop = desktop_of(terminal)
    made = "mkfifo p; ln -s /dev/zero z; ln -s /etc/passwd l; head -c 5000000 /dev/zero > big; "
    made += "mkdir many; cd many; for i in $(seq 2500); do : > $i; done"
    assert (await runs(terminal, "sh", "-c", f"cd ~ && {made}")).code == 0
    for name in ("p", "z", "l", "big"):
        assert await desktop.read(name) is None, name
    assert len(await desktop.files("")) == 2000
    assert await desktop.healthy()


async def test_what_ran_in_a_terminal_is_gone_with_its_desktop(pool: DesktopPool) -> None:
    """Daemons too, and nobody else gets the desktop."""
    env = GuiEnv(pack=template_pack(templates=["count_lines"]), desktop=pool)
    await env.reset(seed=0)
    mark = f"6{secrets.randbelow(10**8):08d}"
    await runs(env, "sh", "-c", f"nohup setsid sh -c 'setsid sleep {mark} & exit' >/dev/null 2>&1")
    async with asyncio.timeout(GONE_S):
        while not await run_in_thread(sleepers, mark):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    used = desktop_of(env)
    await env.close()
    await pool.wait_until_ready()
    assert await run_in_thread(are_gone, mark)
    assert not used.sound
    again = await pool.take()
    assert again is not used
    await pool.give(again)


def are_gone(mark: str) -> bool:
    """Wait until no process has the mark; whether that came."""
    end_s = time.monotonic() + GONE_S
    while sleepers(mark):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def sleepers(mark: str) -> list[str]:
    """Return the processes of this machine whose command line has a mark."""
    found: list[str] = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdecimal() else b""
        except OSError:
            continue
        if mark.encode() in line.split(b"\0"):
            found.append(name)
    return found

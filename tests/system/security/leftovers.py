"""Attacks that leave something behind: processes, files, traps for the host or the next session."""

import asyncio
import os

from agentrl.errors import ForkUnsupported
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import SECRET, Arena
from tests.system.security.attack import Attack, Gap, brief, unexpected


async def _daemon(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Its processes ran, and are dead once the deadline has passed."""
    for timeout_s in (1, 15):  # a slow machine has the second try
        result = await session.exec(arena.program(attack.code), timeout_s=timeout_s)
        if {"one", "two", "three"} <= {entry.name for entry in await session.entries()}:
            break
    found = unexpected(result, attack)
    sizes = await _sizes(session)
    await asyncio.sleep(0.3)
    if not all(sizes):
        found.append(f"a process that was to survive never ran: {sizes}")
    if await _sizes(session) != sizes:
        found.append("a process survived the deadline")
    return found


async def _sizes(session: SandboxSession) -> list[int]:
    return [len(await session.read(name)) for name in ("one", "two", "three")]


async def _behind(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The cell answers at once; what it left behind dies with the session, as the arena checks."""
    return unexpected(await session.exec(arena.program(attack.code)), attack)


async def _traps(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The host reads, writes and lists what was planted, and follows nothing."""
    result = await session.exec(arena.program(attack.code))
    found = unexpected(result, attack)
    for path in (*TRAPS, str(arena.bait.file)):
        for what, act in (("read", session.read(path)), ("wrote", session.write(path, b"host"))):
            try:
                async with asyncio.timeout(60):
                    got = await act
            except OSError as error:
                if isinstance(error, TimeoutError):
                    found.append(f"{what} {path}: the host hangs")
                continue
            if path not in HARMLESS:
                found.append(f"the host {what} {path}: {got!r:.60}")
    entries = await session.entries()
    kinds = {entry.name: entry.kind for entry in entries}
    for name, kind in (("link", "link"), ("fifo", "other"), ("away", "link"), ("socket", "other")):
        if kinds.get(name) != kind:
            found.append(f"{name} is listed as {kinds.get(name)}")
    for path in ("away", "away/python3", "link", "fifo", "..", "/"):
        try:
            listed = await session.entries(path)
        except OSError:
            continue
        found.append(f"the host listed {path}: {listed!r:.60}")
    return found


TRAPS = (
    "link",
    "fifo",
    "socket",
    "away/canary",
    "away/python3.11/os.py",
    "away",
    "loop",
    "zero",
    "environ",
    "passwd",
    "directory",
    "nul\0byte",
    "../x",
    "a/../../x",
    "long/" * 2000 + "x",
    "x" * 5000,
    "",
    ".",
    "hard",
)
HARMLESS = ("hard",)
"""A hard link to a file of the session itself."""


async def _race(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A directory turns into a link and back while the host reads and writes through it."""
    await session.exec(arena.program(attack.code), timeout_s=2)
    found: list[str] = []
    for _ in range(150):
        for act in (session.read("spot/canary"), session.write("spot/pwned", b"x")):
            try:
                got = await act
            except OSError:
                continue
            if got == SECRET.encode():
                return ["the host read through a link that came and went"]
    return found


async def _poison(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Nothing of it reaches a session that is opened afterwards, or was made before."""
    found = unexpected(await session.exec(arena.program(attack.code)), attack)
    look = """
import sys, builtins
found = []
for name in ("sitecustomize", "usercustomize", "conftest", "poison", "json2"):
    try:
        if "poisoned" in vars(__import__(name)): found.append(name)
    except ImportError: pass
if hasattr(builtins, "poisoned") or "poison" in sys.modules: found.append("names")
found
"""
    for _ in range(3):
        async with arena.session() as fresh:
            found += unexpected(await fresh.exec(look), attack)
    return found


async def _leak(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Ten sessions, made ahead and not, find nothing of the one before them."""
    async with arena.session() as first:
        await first.exec(arena.program(LEAVE))
    found = unexpected(await session.exec(arena.program(attack.code)), attack)
    for _ in range(10):
        async with arena.session() as fresh:
            found += unexpected(await fresh.exec(arena.program(attack.code)), attack)
    return found


LEAVE = """
import builtins, json, random, signal, sys, types, resource, time, locale, decimal, warnings
leaked = builtins.leaked = json.leaked = "leaked"
sys.modules["leaked"] = types.ModuleType("leaked")
os.environ["LEAKED"] = "leaked"
sys.path.insert(0, os.getcwd())
signal.signal(signal.SIGUSR1, lambda *_: None)
os.umask(0)
random.seed(0)
decimal.getcontext().prec = 3
for place in (".", os.environ["HOME"], "/tmp", "/dev/shm", "/var/tmp", "/run"):
    try: open(f"{place}/leaked.py", "w").write("leaked = 1")
    except OSError: pass
"""


async def _odd_names(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Listing, forking and closing cope with every name and kind of file there is."""
    result = await session.exec(arena.program(attack.code))
    found = unexpected(result, attack)
    for entry in await session.entries():
        try:
            os.fsencode(entry.name)
            if entry.kind == "file":
                await session.read(entry.name)
        except (OSError, UnicodeEncodeError) as error:
            found.append(f"{entry.name!a} cannot be read back: {error!a}")
    return [*found, *await _forks(session)]


async def _forks(session: SandboxSession) -> list[str]:
    """A fork works or is refused, within its time."""
    try:
        async with asyncio.timeout(20):
            copy = await session.fork()
    except ForkUnsupported:
        return []
    except TimeoutError:
        return ["a fork hangs"]
    result = await copy.exec("6 * 7")
    await copy.close()
    return [] if result.value == "42" else [f"a fork answers {brief(result)}"]


async def _big_copy(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A full directory is copied, or the fork refused, and the canary is answered meanwhile."""
    found = unexpected(await session.exec(arena.program(attack.code)), attack)
    forking = asyncio.create_task(_forks(session))
    answered = await arena.canary.exec("secret")
    found += await forking
    return found if answered.ok else [*found, "the canary was not answered"]


async def _not_on_the_host(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The directory of the session is not on a file system of the host that others use."""
    result = await session.exec(arena.program(attack.code))
    if not result.ok:
        return [brief(result)]
    path = (result.value or "").strip("'")
    on_host = await asyncio.to_thread(os.path.exists, path)
    return [f"{path} is on the host"] if on_host else []


ATTACKS = (
    Attack(
        name="daemon-outlives-deadline",
        title="leave daemons behind (setsid, double fork, no parent-death signal), then loop",
        held_by="the process namespace is killed at the deadline (`process`: orphans are adopted)",
        ends=("timeout",),
        play=_daemon,
        code="""
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            call(157, 167, 1, 0, 0, 0, 0)   # no signal when the parent dies
            call(157, 167, 36, 1, 0, 0, 0)  # adopt orphans
            call(157, 167, 4, 0, 0, 0, 0)   # not dumpable
            os.setpgid(0, 0) if os.getpgrp() == os.getppid() else None
            while True:
                with open(name, "ab") as file: file.write(b"x")
                time.sleep(0.01)
        os._exit(0)
for name in ("one", "two", "three"): daemon(name)
call(157, 167, 1, 0, 0, 0, 0)
call(157, 167, 36, 0, 0, 0, 0)
while True: pass
""",
    ),
    Attack(
        name="daemon-outlives-session",
        title="answer at once and leave daemons behind for after the end",
        held_by="the process namespace ends with the session (`process`: orphans are adopted)",
        play=_behind,
        code="""
import time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            call(157, 167, 1, 0, 0, 0, 0)
            while True: time.sleep(1)
        os._exit(0)
through
""",
    ),
    Attack(
        name="breed",
        title="fork faster than processes can be found and killed",
        held_by="the process namespace is killed as a whole",
        ends=("timeout", "limit", "crash"),
        timeout_s=1,
        code="""
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def breed():
    while True:
        try:
            if os.fork(): os._exit(0)
        except OSError: pass
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        breed()
while True: pass
""",
        gaps={"process": Gap("processes are killed one by one, and new ones may win", shown=False)},
    ),
    Attack(
        name="traps-for-the-host",
        title="plant links, pipes, sockets and devices where the host reads, writes and lists",
        held_by="no link is followed, only regular files are opened, never waiting",
        play=_traps,
        code="""
import socket
os.symlink(HOST["canary"], "link"); os.mkfifo("fifo")
os.symlink(os.path.dirname(HOST["canary"]) if HOST["bare"] else "/usr/lib", "away")
os.symlink("loop", "loop"); os.symlink("/dev/zero", "zero"); os.mkdir("directory")
os.symlink("/proc/self/environ", "environ"); os.symlink("/etc/passwd", "passwd")
socket.socket(socket.AF_UNIX).bind("socket")
open("plain", "w").close(); os.link("plain", "hard")
through
""",
    ),
    Attack(
        name="link-race",
        title="swap a directory for a link while the host reads and writes below it",
        held_by="every part of a path is opened on its own, links never",
        play=_race,
        code="""
import time
os.mkdir("real"); open("real/canary", "w").write("mine")
target = os.path.dirname(HOST["canary"])
if os.fork() == 0:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.rename("real", "spot"); os.rename("spot", "real")
            os.symlink(target, "spot"); os.unlink("spot")
        except OSError: pass
    os._exit(0)
through
""",
    ),
    Attack(
        name="poison-the-verifier",
        title="plant .pth files, sitecustomize, conftest and modules for the next session",
        held_by="read-only root, sessions with nothing in common, isolated mode of Python",
        play=_poison,
        code="""
import builtins, site, sys, sysconfig, types
builtins.poisoned = True
sys.modules["poison"] = types.ModuleType("poison")
places = {*sys.path, os.path.dirname(os.__file__), sysconfig.get_path("purelib"), "/usr/lib",
          site.getusersitepackages(), "/etc/python3", "/tmp", "/run", "/dev/shm"}
for place in {os.path.dirname(os.__file__)} if HOST["bare"] else places - {""}:
    if os.path.realpath(place).startswith(os.path.realpath(os.environ["HOME"])): continue
    for name in ("poison.pth", "sitecustomize.py", "conftest.py", "json2.py"):
        def plant():
            path = os.path.join(place, name)
            if os.path.exists(path): raise FileExistsError
            os.makedirs(place, exist_ok=True)
            with open(path, "w") as file: file.write("poisoned = True")
            os.unlink(path)
        attempt(f"{place}/{name}", plant)
for name in ("sitecustomize.py", "conftest.py", "poison.pth"):
    open(name, "w").write("poisoned = True")
through
""",
        gaps={"process": Gap("the trainer's own installation can be written by its user")},
    ),
    Attack(
        name="leak-into-the-next",
        title="leave names, modules, variables, files and settings for the next session",
        held_by="every session is a fresh fork with a directory of its own",
        play=_leak,
        code="""
import builtins, decimal, json, random, signal, sys
if hasattr(builtins, "leaked") or hasattr(json, "leaked") or "leaked" in globals():
    through.append("names")
if "leaked" in sys.modules: through.append("modules")
if "LEAKED" in os.environ: through.append("environment")
for place in (".", "..", os.environ["HOME"], "/tmp", "/dev/shm", "/var/tmp", "/run"):
    if os.path.exists(f"{place}/leaked.py"): through.append(place)
if signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL: through.append("signal handlers")
if decimal.getcontext().prec == 3: through.append("decimal context")
mask = os.umask(0o77); os.umask(mask)
if mask == 0: through.append("umask")
if random.random() == random.Random(0).random(): through.append("random state")
through
""",
        gaps={"process": Gap("files left in the host's /tmp stay there", shown=False)},
    ),
    Attack(
        name="odd-names",
        title="name files with newlines, invalid UTF-8, terminal codes, 255 bytes",
        held_by="names are data: never parsed, never printed raw",
        play=_odd_names,
        code=r"""
for name in (b"new\nline", b"\xff\xfe", b"\x1b[2J", b"-rf", b"x" * 255, b"\xed\xa0\x80", b" ",
             b"{\"a\":1}", b"..\\", b"%s%n", b"$(id)", b"'\"`"):
    open(name, "w").close(); os.mkdir(name[:250] + b".d"); os.symlink(name, name[:250] + b".l")
through
""",
    ),
    Attack(
        name="odd-files-at-fork",
        title="fork over pipes, sockets, locked, unreadable and half-written files",
        held_by="only directories, regular files and links are copied, none is waited for",
        play=_odd_names,
        code="""
import fcntl, socket
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
os.mkdir("closed"); open("closed/inside", "w").close(); os.chmod("closed", 0)
open("secret", "w").close(); os.chmod("secret", 0)
held = open("held", "w"); fcntl.flock(held, fcntl.LOCK_EX); held.write("half")
os.symlink("nowhere", "dangling"); os.symlink(".", "self")
gone = open("gone", "w"); os.unlink("gone")
through
""",
    ),
    Attack(
        name="deep-tree-at-fork",
        title="fork, and close, over a directory nested 300 deep with long names",
        held_by="files handled without recursion, or the fork refused",
        ends=("ok", "limit"),
        play=_odd_names,
        code="""
here = os.getcwd()
for n in range(300):
    os.mkdir("d" * 200); os.chdir("d" * 200)
os.chdir(here)
through
""",
    ),
    Attack(
        name="full-directory-at-fork",
        title="fork over a full directory",
        held_by="the copy has a limit of its own, and the canary does not wait for it",
        play=_big_copy,
        ends=("ok", "limit"),
        code="""
for n in range(14):
    with open(f"{n}", "wb") as file: file.write(os.urandom(2**20))
through
""",
    ),
    Attack(
        name="directory-on-the-host",
        title="leave a program on the host's disk, under the session's directory",
        held_by="the directory is a file system in memory that ends with the session",
        play=_not_on_the_host,
        gaps={"process": Gap("the directory is one of the host's, removed at the end")},
        code="""
name = f"agentrl-security-{os.getpid()}"
open(name, "w").close()
os.path.abspath(name)
""",
    ),
    Attack(
        name="remove-the-directory",
        title="delete, lock and replace the session's own directory",
        held_by="the session init mounts it and removes it; permissions do not matter to it",
        ends=("ok", "error"),
        code="""
import shutil
here = os.getcwd()
open("x", "w").close(); os.mkdir("d"); os.chmod("d", 0)
for do in (lambda: shutil.rmtree(here), lambda: os.rename(here, here + "-moved"),
           lambda: os.rmdir(here), lambda: os.symlink("/", here), lambda: os.chmod(here, 0)):
    try: do()
    except OSError: pass
through
""",
        gaps={"process": Gap("where the directory is the host's, it is not run", shown=False)},
    ),
)

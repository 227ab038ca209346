"""Attacks on other sessions of the pool, and between a session and its fork."""

import asyncio

from agentrl.sandbox import ExecResult
from agentrl_sandbox import Session
from tests.security.arena import Arena
from tests.security.attack import Attack, Gap, brief, unexpected

VICTIM = """
import ctypes, mmap, os, socket, threading
treasure = "treasure-of-the-" + "victim"
server = socket.socket(); server.bind(("127.0.0.1", 43219)); server.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0victim"); abstract.listen()
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagram.bind(("127.0.0.1", 43220))
for one in (server, abstract, datagram): one.setblocking(False)
libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(43219, 4096, 0o1666)
queue = libc.msgget(43219, 0o1666)
open("treasure.txt", "w").write(treasure)
os.getpid()
"""
TOUCHED = """
touched = []
for name, one in (("TCP", server), ("abstract socket", abstract)):
    try: one.accept(); touched.append(name)
    except OSError: pass
try: datagram.recv(1); touched.append("datagram")
except OSError: pass
if open("treasure.txt").read() != treasure: touched.append("file")
touched
"""
LOOT = """
import resource, signal, socket
def reach(family, address):
    with socket.socket(family) as one: one.settimeout(1); one.connect(address)
attempt("TCP", reach, socket.AF_INET, ("127.0.0.1", 43219))
attempt("abstract socket", reach, socket.AF_UNIX, "\\0victim")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 43220))
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(43219, 4096, 0o600) >= 0: through.append("segment")
if libc.msgget(43219, 0o600) >= 0: through.append("queue")
if len(open("/proc/sysvipc/shm").readlines()) > 1: through.append("list of segments")
for pid in HOST["victims"] if HOST["bare"] else others():
    if pid in (os.getppid(), 1): continue
    attempt(f"signal {pid}", os.kill, pid, signal.SIGCONT)
    attempt(f"limits of {pid}", resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0))
    attempt(f"priority of {pid}", os.setpriority, os.PRIO_PROCESS, pid, 1)
    if "returned" in call(101, 117, 0x4206, pid, 0, 0): through.append(f"trace {pid}")
    for name in ("mem", "environ", "maps", "cwd/treasure.txt", "root/home/agent/treasure.txt"):
        attempt(f"{name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    attempt(f"write {pid}", lambda: open(f"/proc/{pid}/cwd/treasure.txt", "r+").close())
    attempt(f"descriptors of {pid}", os.listdir, f"/proc/{pid}/fd")
    attempt(f"badness of {pid}", lambda: open(f"/proc/{pid}/oom_score_adj", "r+").close())
here = os.path.realpath(os.getcwd())
tops = ["/home/agent", "/tmp", "/dev/shm", "/run"]
for top in [os.path.dirname(os.path.dirname(here))] if HOST["bare"] else tops:
    for where, _, names in os.walk(top):
        if "treasure.txt" in names and os.path.realpath(where) != here:
            attempt(f"{where}/treasure.txt", lambda: open(f"{where}/treasure.txt").read(1))
"""
KILL = """
import signal
for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
    if pid not in (os.getpid(), os.getppid(), 1):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
try: os.kill(-1, signal.SIGKILL)
except OSError: pass
try: os.killpg(0, signal.SIGCONT)
except OSError: pass
through
"""


async def _plunder(arena: Arena, session: Session, attack: Attack) -> list[str]:
    async with arena.session() as victim:
        started = await victim.exec(VICTIM)
        return await _loot(arena, session, victim, attack, _pid(started))


def _pid(started: ExecResult) -> int:
    assert started.ok, brief(started)
    return int(started.value or "")


async def _loot(
    arena: Arena, thief: Session, victim: Session, attack: Attack, pid: int
) -> list[str]:
    result = await thief.exec(arena.program(attack.code, victims=[pid]))
    found = unexpected(result, attack)
    touched = await victim.exec(TOUCHED)
    if touched.value != "[]":
        found.append(f"the victim says {brief(touched)}")
    return found


async def _from_a_fork(arena: Arena, session: Session, attack: Attack) -> list[str]:
    """The copy attacks what it was made from: files, memory and processes are not the copy's."""
    started = await session.exec(VICTIM)
    victim = _pid(started)
    close = "[one.close() for one in (server, abstract, datagram)]; os.unlink('treasure.txt')"
    copy = await session.fork()
    try:
        await copy.exec(close)
        return await _loot(arena, copy, session, attack, victim)
    finally:
        await copy.close()


async def _from_the_original(arena: Arena, session: Session, attack: Attack) -> list[str]:
    """The other way round: what a copy does is not the original's to touch."""
    copy = await session.fork()
    try:
        started = await copy.exec(VICTIM)
        return await _loot(arena, session, copy, attack, _pid(started))
    finally:
        await copy.close()


async def _between_forks(arena: Arena, session: Session, attack: Attack) -> list[str]:
    """Two copies of one session, one of which attacks the other."""
    one, other = await session.fork(), await session.fork()
    try:
        started = await one.exec(VICTIM)
        return await _loot(arena, other, one, attack, _pid(started))
    finally:
        await one.close()
        await other.close()


async def _shared_descriptors(arena: Arena, session: Session, attack: Attack) -> list[str]:
    """A copy writes to every descriptor it has inherited; the original's replies stay its own."""
    await session.exec("kept = 'original'")
    copy = await session.fork()
    try:
        await copy.exec(arena.program(attack.code), timeout_s=2)
        await asyncio.sleep(0.2)
        result = await session.exec("kept")
    finally:
        await copy.close()
    return [] if result.value == "'original'" else [f"the original answers {brief(result)}"]


_ONE_USER = "all sessions are one user on one machine"

ATTACKS = (
    Attack(
        name="plunder-a-neighbour",
        title="reach another session: sockets, shared memory, signals, /proc, directories",
        held_by="namespaces of each session: processes, network, IPC, mounts, users",
        play=_plunder,
        code=f"{LOOT}\nthrough",
        gaps={"process": Gap(_ONE_USER)},
    ),
    Attack(
        name="kill-a-neighbour",
        title="kill the processes of another session",
        held_by="process namespace of each session",
        play=_plunder,
        code=KILL,
        gaps={"process": Gap("it would end every process of the trainer's user", shown=False)},
    ),
    Attack(
        name="plunder-the-original",
        title="reach, from a fork, the session it was made from",
        held_by="user and mount namespace of each fork, Landlock, filter",
        play=_from_a_fork,
        code=f"{LOOT}\nthrough",
        gaps={"process": Gap(_ONE_USER)},
    ),
    Attack(
        name="kill-the-original",
        title="kill, from a fork, the session it was made from",
        held_by="Landlock: no signals out of a fork",
        play=_from_a_fork,
        code=KILL,
        gaps={"process": Gap("it would end every process of the trainer's user", shown=False)},
    ),
    Attack(
        name="plunder-a-copy",
        title="reach a fork from the session it was made from",
        held_by="user and mount namespace of each fork, Landlock, filter",
        play=_from_the_original,
        code=f"{LOOT}\nthrough",
        gaps={"process": Gap(_ONE_USER)},
    ),
    Attack(
        name="kill-a-copy",
        title="kill a fork from the session it was made from",
        held_by="Landlock: no signals out of a session",
        play=_from_the_original,
        code=KILL,
        gaps={"process": Gap("it would end every process of the trainer's user", shown=False)},
    ),
    Attack(
        name="plunder-a-twin",
        title="reach one fork of a session from another",
        held_by="user and mount namespace of each fork, Landlock, filter",
        play=_between_forks,
        code=f"{LOOT}\nthrough",
        gaps={"process": Gap(_ONE_USER)},
    ),
    Attack(
        name="kill-a-twin",
        title="kill one fork of a session from another",
        held_by="Landlock: no signals out of a fork",
        play=_between_forks,
        code=KILL,
        gaps={"process": Gap("it would end every process of the trainer's user", shown=False)},
    ),
    Attack(
        name="speak-for-the-original",
        title="write, from a fork, to every descriptor inherited from the original",
        held_by="a fork gets a channel of its own and keeps no other",
        play=_shared_descriptors,
        code="""
for fd in range(3, 64):
    try: os.set_blocking(fd, False); os.write(fd, b"\\0\\0\\0\\2\\0\\0\\0\\0{}" * 9)
    except OSError: pass
through
""",
    ),
)

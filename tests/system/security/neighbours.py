"""Attacks on other sessions of the pool."""

from agentrl.sandbox import ExecResult
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import Arena
from tests.system.security.attack import Attack, Gap, brief, unexpected

VICTIM = """
import ctypes, mmap, os, socket, threading
treasure = "treasure-of-the-" + "victim"
server = socket.socket(); server.bind(("127.0.0.1", 23219)); server.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0victim"); abstract.listen()
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagram.bind(("127.0.0.1", 23220))
for one in (server, abstract, datagram): one.setblocking(False)
libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(23219, 4096, 0o1666)
queue = libc.msgget(23219, 0o1666)
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
# Where they are the host's, they would stay.
if segment >= 0: libc.shmctl(segment, 0, None)
if queue >= 0: libc.msgctl(queue, 0, None)
touched
"""
LOOT = """
SIGNALS = True
import resource, signal, socket
def reach(family, address):
    with socket.socket(family) as one: one.settimeout(1); one.connect(address)
attempt("TCP", reach, socket.AF_INET, ("127.0.0.1", 23219))
attempt("abstract socket", reach, socket.AF_UNIX, "\\0victim")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 23220))
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(23219, 4096, 0o600) >= 0: through.append("segment")
if libc.msgget(23219, 0o600) >= 0: through.append("queue")
if len(open("/proc/sysvipc/shm").readlines()) > 1: through.append("list of segments")
for pid in HOST["victims"] if HOST["bare"] else others():
    if pid in (os.getppid(), 1): continue
    if SIGNALS: attempt(f"signal {pid}", os.kill, pid, signal.SIGCONT)
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


async def _plunder(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    async with arena.session() as victim:
        started = await victim.exec(VICTIM)
        return await loot(arena, session, victim, attack, pid_of(started))


def pid_of(started: ExecResult) -> int:
    """Return the process of a victim that says that it is ready."""
    assert started.ok, brief(started)
    return int(started.value or "")


async def loot(
    arena: Arena, thief: SandboxSession, victim: SandboxSession, attack: Attack, pid: int
) -> list[str]:
    """Have one session attack another, and ask that one what it noticed."""
    result = await thief.exec(arena.program(attack.code, victims=[pid]))
    found = unexpected(result, attack)
    touched = await victim.exec(TOUCHED)
    if touched.value != "[]":
        found.append(f"the victim says {brief(touched)}")
    return found


ONE_USER = "all sessions are one user on one machine"
NOT_KILLED = "it would end every process of the trainer's user"

ATTACKS = (
    Attack(
        name="plunder-a-neighbour",
        title="reach another session: sockets, shared memory, signals, /proc, directories",
        held_by="namespaces of each session: processes, network, IPC, mounts, users",
        play=_plunder,
        code=f"{LOOT}\nthrough",
        gaps={"process": Gap(ONE_USER)},
    ),
    Attack(
        name="kill-a-neighbour",
        title="kill the processes of another session",
        held_by="process namespace of each session",
        play=_plunder,
        code=KILL,
        gaps={"process": Gap(NOT_KILLED, shown=False)},
    ),
)

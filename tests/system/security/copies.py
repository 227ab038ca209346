"""Attacks between a session and its forks, in every direction.

They share a process namespace and what the original had in memory, and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from agentrl.errors import ForkUnsupported
from agentrl.sandbox import Backend
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import Arena
from tests.system.security.attack import ISOLATING, Attack, Gap, Play, brief, unexpected
from tests.system.security.neighbours import KILL, LOOT, NOT_KILLED, ONE_USER, VICTIM, loot, pid_of

CROWD = 18
"""Forks of one session: more than a process has layers of Landlock."""
_LET_GO = (
    "[one.close() for one in (server, abstract, datagram)]; __import__('os').unlink('treasure.txt')"
)
_NO_SIGNALS = LOOT.replace("SIGNALS = True", "SIGNALS = False")


@asynccontextmanager
async def forked(*origins: SandboxSession, times: int = 1) -> AsyncGenerator[list[SandboxSession]]:
    """Fork each of these sessions so often, one after the other, and close what comes of it."""
    async with AsyncExitStack() as stack:
        copies: list[SandboxSession] = []
        for origin in origins:
            for _ in range(times):
                copies.append(await origin.fork())
                stack.push_async_callback(copies[-1].close)
        yield copies


async def _from_a_fork(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The copy attacks what it was made from: files, memory and processes are not the copy's."""
    victim = pid_of(await session.exec(VICTIM))
    async with forked(session) as (copy,):
        await copy.exec(_LET_GO)
        return await loot(arena, copy, session, attack, victim)


async def _from_the_original(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The other way round: what a copy does is not the original's to touch."""
    async with forked(session) as (copy,):
        return await loot(arena, session, copy, attack, pid_of(await copy.exec(VICTIM)))


async def _between_forks(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Two copies of one session, one of which attacks the other."""
    async with forked(session, times=2) as (one, other):
        return await loot(arena, other, one, attack, pid_of(await one.exec(VICTIM)))


def _in_a_line(thief: int, victim: int) -> Play:
    """A session, its copy, and a copy of the copy: one of the three attacks another."""

    async def play(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
        async with forked(session) as (copy,), forked(copy) as (last,):
            line = (session, copy, last)
            pid = pid_of(await line[victim].exec(VICTIM))
            return await loot(arena, line[thief], line[victim], attack, pid)

    return play


def _in_a_crowd(thief: int, victim: int) -> Play:
    """One of a session (-1) and its many copies attacks another."""

    async def play(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
        async with forked(session, times=CROWD) as copies:
            everybody = [*copies, session]
            pid = pid_of(await everybody[victim].exec(VICTIM))
            return await loot(arena, everybody[thief], everybody[victim], attack, pid)

    return play


DISARM = """
import sys
for module in list(sys.modules.values()):
    name = getattr(module, "__name__", "") or ""
    if name.endswith("inside.kernel"): module.drop_capabilities = lambda *a, **k: None
    if name.endswith("inside.landlock"): module.separate = lambda *a, **k: False
"""


async def _disarmed_twins(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """What the original planted keeps its copies from giving up what they should."""
    found = unexpected(await session.exec(DISARM + "[]"), attack)
    return [*found, *await _between_forks(arena, session, attack)]


async def _false_copy(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A copy that is none is refused, or it is one: its files are its own."""
    found = unexpected(await session.exec(arena.program(attack.code)), attack)
    await session.write("mine.txt", b"original")
    with suppress(ForkUnsupported):
        async with forked(session) as (copy,):
            await copy.write("mine.txt", b"copy")
            if await session.read("mine.txt") != b"original":
                found.append("the host reads a file of the copy in the original")
            result = await session.exec("open('mine.txt').read()", timeout_s=2)
            if result.value == "'copy'":
                found.append("a file of the copy appeared in the original")
    return found


async def _shared_descriptors(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A copy writes to every descriptor it has inherited; the original's replies stay its own."""
    await session.exec("kept = 'original'")
    async with forked(session) as (copy,):
        await copy.exec(arena.program(attack.code), timeout_s=2)
        await asyncio.sleep(0.2)
        result = await session.exec("kept")
    return [] if result.value == "'original'" else [f"the original answers {brief(result)}"]


async def _absent_copy(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A fork of which nothing comes is refused; those before it go on."""
    await session.exec("kept = 'original'")
    async with forked(session, times=2) as copies:
        found = unexpected(await session.exec(arena.program(attack.code)), attack)
        with suppress(ForkUnsupported):
            async with forked(session):
                pass
        for copy in copies:
            result = await copy.exec("kept")
            if result.value != "'original'":
                found.append(f"a relative answers {brief(result)}")
    return found


_HELD = "user, mount, network and IPC namespace of each fork, Landlock, filter"
_PAIRS: tuple[tuple[str, str, Play], ...] = (
    ("the-original", "a session from its fork", _from_a_fork),
    ("a-copy", "a fork from the session it was made from", _from_the_original),
    ("a-twin", "a fork from another one of the same session", _between_forks),
    ("a-grandparent", "a session from a fork of its fork", _in_a_line(2, 0)),
    ("a-grandchild", "a fork of a fork from the first session", _in_a_line(0, 2)),
    ("a-parent", "a fork from its own fork", _in_a_line(2, 1)),
    ("a-child", "a fork of a fork from the one it was made from", _in_a_line(1, 2)),
)
_LAYERS = "a process has 16 layers of Landlock, and a session that was forked as often has no more"
_ITSELF = "a fork enters Landlock itself, by code that its original could change"
_CROWDS: tuple[tuple[str, str, Play], ...] = (
    ("the-original", f"the original from the last of {CROWD} forks", _in_a_crowd(CROWD - 1, -1)),
    ("the-last", f"the last of {CROWD} forks from the original", _in_a_crowd(-1, CROWD - 1)),
    ("the-first", f"the first of {CROWD} forks from the last", _in_a_crowd(CROWD - 1, 0)),
    ("a-twin", f"the last but one of {CROWD} forks from the last", _in_a_crowd(-2, CROWD - 2)),
)


def _killed_in_a_crowd(whom: str) -> dict[Backend, Gap]:
    gaps: dict[Backend, Gap] = {"process": Gap(NOT_KILLED, shown=False)}
    if whom != "the-first":  # which has a layer of its own
        gaps |= dict.fromkeys(ISOLATING, Gap(_LAYERS))
    return gaps


ATTACKS = (
    *(
        Attack(
            name=f"plunder-{whom}",
            title=f"reach {what}: sockets, shared memory, signals, /proc, directories",
            held_by=_HELD,
            play=play,
            code=f"{LOOT}\nthrough",
            gaps={"process": Gap(ONE_USER, shown=whom == "the-original")},
        )
        for whom, what, play in _PAIRS
    ),
    *(
        Attack(
            name=f"kill-{whom}",
            title=f"kill {what}",
            held_by="Landlock: no signals out of a session or a fork",
            play=play,
            code=KILL,
            gaps={"process": Gap(NOT_KILLED, shown=False)},
        )
        for whom, what, play in _PAIRS
    ),
    *(
        Attack(
            name=f"plunder-{whom}-in-a-crowd",
            title=f"reach {what}, all but signals",
            held_by="user, mount, network and IPC namespace of each fork, filter",
            play=play,
            code=f"{_NO_SIGNALS}\nthrough",
            gaps={"process": Gap(ONE_USER, shown=False)},
        )
        for whom, what, play in _CROWDS
    ),
    *(
        Attack(
            name=f"kill-{whom}-in-a-crowd",
            title=f"kill {what}",
            held_by="Landlock: no signals out of a session or a fork",
            play=play,
            code=KILL,
            gaps=_killed_in_a_crowd(whom),
        )
        for whom, what, play in _CROWDS
    ),
    Attack(
        name="plunder-by-disarmed-copies",
        title="plant in a session what keeps its forks from giving up rights, all but signals",
        held_by="filter, namespaces; a fork has rights in its own namespaces only",
        play=_disarmed_twins,
        code=f"{_NO_SIGNALS}\nthrough",
        gaps={"process": Gap(ONE_USER, shown=False)},
    ),
    Attack(
        name="kill-by-disarmed-copies",
        title="plant in a session what keeps its forks from entering Landlock, and kill one",
        held_by="Landlock: no signals out of a session or a fork",
        play=_disarmed_twins,
        code=KILL,
        gaps={
            **dict.fromkeys(ISOLATING, Gap(_ITSELF)),
            "process": Gap(NOT_KILLED, shown=False),
        },
    ),
    Attack(
        name="false-copy",
        title="answer a fork with a process that shares the original's namespaces and files",
        held_by="the session init looks at the copy's namespaces",
        play=_false_copy,
        code="""
import sys, time
kernel = next(m for m in list(sys.modules.values())
              if (getattr(m, "__name__", "") or "").endswith("inside.kernel"))
kernel.enter_user_namespace = lambda *a, **k: time.sleep(0.2)
through
""",
        gaps={"process": Gap("the directory is one of the host's", shown=False)},
    ),
    Attack(
        name="greet-and-go",
        title="have a process greet for a fork, and be gone when the session init hears of it",
        held_by="the session init holds processes by descriptors, so a copy that is gone is none",
        play=_absent_copy,
        code="""
from agentrl_sandbox.inside import interpreter
from agentrl_sandbox.inside.frames import encode
import socket
def fork(self, request):
    ends, self._fds = interpreter.InterpreterDescriptors(*self._fds), []
    pid = os.fork()
    if pid == 0:
        with socket.socket(fileno=ends.channel) as channel:
            for word in ("hello", "unshared"):
                channel.sendall(encode({"nonce": request["nonce"], word: True}))
        os._exit(0)
    os.waitpid(pid, 0)
    globals()["held"] = ends
interpreter.CellInterpreter._fork = fork
through
""",
    ),
    Attack(
        name="speak-for-the-original",
        title="write, from a fork, to every descriptor inherited from the original",
        held_by="a fork gets a channel of its own and keeps no other",
        play=_shared_descriptors,
        code="""
for fd in [*range(4, 64), 3]:  # the own channel last: after that there is not much time
    try: os.set_blocking(fd, False); os.write(fd, b"\\0\\0\\0\\2\\0\\0\\0\\0{}" * 9)
    except OSError: pass
through
""",
    ),
)

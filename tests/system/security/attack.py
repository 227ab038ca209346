"""An attack: a program a model could write, what must become of it, and where it gets through."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.errors import SandboxError
from agentrl.sandbox import Backend, ExecResult, ExecStatus
from agentrl_sandbox import SandboxSession

if TYPE_CHECKING:
    from tests.system.security.arena import Arena

BACKENDS: tuple[Backend, ...] = ("namespaces", "bubblewrap", "docker", "process")
ISOLATING: tuple[Backend, ...] = BACKENDS[:-1]

LATE_S = 60.0
"""How much after its deadline a cell may end on a machine that is busy with other things."""

Play = Callable[["Arena", SandboxSession, "Attack"], Awaitable[list[str]]]
"""Carries an attack out and returns what got through, in words."""

PREAMBLE = """
import ctypes, errno, os, platform
through = []
def others():
    own = [os.getppid(), HOST["pid"], *HOST["victims"]]
    every = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in (own if HOST["bare"] else every) if pid != os.getpid()]
if not HOST["bare"]:
    here = f"/proc/{HOST['pid']}/cmdline"
    try: trainer = open(here, "rb").read() == bytes.fromhex(HOST["command"])
    except OSError: trainer = False
    if trainer or os.path.exists(HOST["canary"]) or os.getuid() == 0:
        raise RuntimeError("nothing is isolated: this attack would hit the machine itself")
def attempt(what, do, *arguments):
    try:
        do(*arguments)
    except (OSError, ValueError):
        return
    through.append(what)
def call(x86_64, aarch64, *arguments):
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else f"returned {result}"
"""
"""What every program starts with, after `HOST`, the facts about the host that a model may know.

An attack must not become an accident. Where nothing isolates on purpose (`bare`), `others` names
the trainer, the keeper and the victim only, never processes of somebody else; where something
should isolate and does not, the program stops before it does anything.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a back-end does not contain an attack."""

    why: str
    shown: bool = True
    """The suite runs it there and sees it get through: only what cannot do harm. Otherwise it would
    hit this machine, or depends on it, and is not run."""
    unless: str = ""
    """A part of the system, of tests/conftest.py, with which the attack is contained after all."""


async def alone(arena: "Arena", session: SandboxSession, attack: "Attack") -> list[str]:
    """Run the program as one cell, which ends as expected and reports that nothing got through."""
    result = await session.exec(arena.program(attack.code), timeout_s=attack.timeout_s)
    return unexpected(result, attack)


def unexpected(result: ExecResult, attack: "Attack") -> list[str]:
    """Return what is wrong with the result of an attack's own cell."""
    if result.status not in attack.ends:
        return [f"ended as {brief(result)} and not as {' or '.join(attack.ends)}"]
    if result.seconds > LATE_S + attack.timeout_s:
        return [f"ended after {result.seconds:.1f} s, its deadline was {attack.timeout_s} s"]
    if result.status == "ok" and result.value != "[]":
        return [f"got through: {result.value}"]
    if result.status != "ok" and not result.error:
        return [f"{result.status} without a word about why"]
    return []


def brief(result: ExecResult) -> str:
    """Return a result in one line."""
    return f"{result.status} (value {result.value}, error {(result.error or '')[-300:]!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One row of the table in docs/security.md."""

    name: str
    title: str
    """What the program tries."""
    held_by: str
    """What holds it, outermost part first."""
    code: str = ""
    ends: tuple[ExecStatus, ...] = ("ok",)
    """How its cell may end; an `ok` must come with the value `[]`: nothing got through."""
    timeout_s: float = 8.0
    play: Play = alone
    recovers: bool = True
    """Whether the session answers honestly afterwards."""
    gaps: Mapping[Backend, Gap] = field(default_factory=dict[Backend, Gap])


LIE = "ALL TESTS PASSED"


async def in_step(
    session: SandboxSession,
    tag: str,
    *,
    cells: int = 5,
    spoiled: int = 2,
    lies: bool = False,
    seen: list[ExecStatus] | None = None,
) -> list[str]:
    """Return how the replies of the next cells are not their own.

    At most `spoiled` cells may fail; one that ends as `ok` must have the value of that very cell,
    or, where the code has rewritten what makes values and `lies`, none that another cell had.
    `seen` gets how each cell ended.
    """
    bad: list[str] = []
    lost = 0
    for number in range(cells):
        want = f"{tag}-{number}"
        try:
            result = await session.exec(f"{want!r}", timeout_s=2 if spoiled else 8)
        except SandboxError as error:
            return [*bad, f"the session was lost: {error}"]
        if seen is not None:
            seen.append(result.status)
        if result.status != "ok":
            lost += 1
            if result.value is not None:
                bad.append(f"a value with {brief(result)}")
        elif lies and result.value in (None, LIE):
            continue
        elif result.value != repr(want):
            bad.append(f"cell {want} was answered with {brief(result)}")
    if lost > spoiled:
        bad.append(f"{lost} of {cells} later cells were lost")
    return bad

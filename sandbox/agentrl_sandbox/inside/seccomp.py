"""A seccomp filter: the system calls that programs live on, and no others.

It is the second layer; the namespaces are the first. A call that is always allowed is decided by
its number alone, which the kernel works out once per filter (since 5.11): those run at full speed.
"""

import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from agentrl_sandbox.inside import syscalls

ALLOW = 0x7FFF0000
KILL = 0x80000000
NOTIFY = 0x7FC00000
_ERRNO = 0x00050000


def refusal(number: int) -> int:
    """Return the verdict that has a call fail with an errno; 0 has it succeed, and not be made."""
    return _ERRNO | number


EPERM, ENOSYS, ENOTTY = refusal(errno.EPERM), refusal(errno.ENOSYS), refusal(errno.ENOTTY)


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """An argument of a call, after `mask`, is one of `values`. The kernel reads 32 bits as well."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


Case = tuple[tuple[ArgumentCheck, ...], int]
"""Conditions that all have to hold, and the verdict when they do."""

_OWN = (
    ((ArgumentCheck(0, (0,)),), ALLOW),
)  # by 0, as programs do it: not the keeper, not a sibling
_NAMESPACE_FLAGS = 0x7E020080  # every CLONE_NEW* of clone(2)
_UNIX, _INTERNET, _SOCKET_TYPE = 1, (2, 10), 0xF
_TERMINAL = (  # TCGETS first: Python asks at every open
    *(0x5401, 0x5413, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408),
    *(0x5409, 0x540A, 0x540B, 0x540E, 0x540F, 0x5410, 0x5411, 0x5414, 0x5422, 0x5429),
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D, 0x80045430, 0x40045431, 0x5441),
)
_DESCRIPTORS = (0x541B, 0x5421, 0x5450, 0x5451, 0x5452)  # FIONREAD, FIONBIO, FIO*CLEX, FIOASYNC
_INTERFACES = (0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891B, 0x8921, 0x8927, 0x8933)  # SIOCG*
_FILES = (0x80086601, 0x40049409, 0x4020940D)  # FS_IOC_GETFLAGS, FICLONE, FICLONERANGE
_TYPING = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into somebody's terminal
_PRCTL = (
    *(15, 16, 0x53564D41),  # names of threads and of mappings
    *(1, 2, 36, 37),  # the parent's death, orphans
    *(3, 4, 7, 8, 23, 24, 27, 38, 39, 47),  # what can only be given up
    *(21, 22),  # further filters
    *(5, 6, 9, 10, 11, 12, 13, 14, 19, 20, 25, 26, 29, 30, 41, 42),  # faults, timing, pages
    *(40, 50, 51, 52, 53, 54, 55, 56, 63, 64, 65, 66, 0x41555856),  # of the processor, of itself
)

RULES: dict[str, tuple[Case, ...]] = {
    "clone": (((ArgumentCheck(0, (0,), mask=_NAMESPACE_FLAGS),), ALLOW),),
    # F_NOTIFY tells who lists a directory, one of the machine's as well.
    "fcntl": (((ArgumentCheck(1, (1026,)),), refusal(errno.EINVAL)), ((), ALLOW)),
    # The families that a network namespace confines; streams and datagrams, TCP and UDP.
    "socket": (
        ((ArgumentCheck(0, (_UNIX,)),), ALLOW),
        (
            (
                ArgumentCheck(0, _INTERNET),
                ArgumentCheck(1, (1, 2), mask=_SOCKET_TYPE),
                ArgumentCheck(2, (0, 6, 17)),
            ),
            ALLOW,
        ),
    ),
    "socketpair": (((ArgumentCheck(0, (_UNIX,)),), ALLOW),),
    "ioctl": (
        ((ArgumentCheck(1, (*_TERMINAL, *_DESCRIPTORS, *_INTERFACES, *_FILES)),), ALLOW),
        ((ArgumentCheck(1, _TYPING),), EPERM),
        ((), ENOTTY),  # what a file says that knows no such request
    ),
    "prctl": (((ArgumentCheck(0, _PRCTL),), ALLOW),),
    "kill": (((ArgumentCheck(0, (0xFFFFFFFF,)),), EPERM), ((), ALLOW)),  # -1: everybody there is
    "personality": (((ArgumentCheck(0, (0xFFFFFFFF,)),), ALLOW),),  # -1: only asks
    "prlimit64": _OWN,
    "sched_setaffinity": _OWN,
    "sched_setattr": _OWN,
    "sched_setparam": _OWN,
    "sched_setscheduler": _OWN,
    "setpriority": (((ArgumentCheck(0, (0,)), ArgumentCheck(1, (0,))), ALLOW),),
    "ioprio_set": (((ArgumentCheck(0, (1,)), ArgumentCheck(1, (0,))), ALLOW),),
    "unshare": (),
}
"""The first case whose conditions hold decides; after the last, EPERM."""

CONTAINER_RULES: dict[str, tuple[Case, ...]] = RULES | {
    # A family that a kernel lacks: programs that would tell its audit log then do without.
    "socket": (*RULES["socket"], ((), refusal(errno.EAFNOSUPPORT))),
    "kill": (((), ALLOW),),  # everybody there is the container's own
}
"""Rules of a container whose processes are one agent's."""

_LOAD, _AND, _JUMP, _JEQ, _JGE, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data, of the low half on both machines
_X32_BIT = 0x40000000
_REACH = 0xFF  # of a conditional jump


@cache
def build(
    machine: str | None = None, *, notify_unshare: bool = False, in_container: bool = False
) -> bytes | None:
    """Return the filter for this kind of machine, or None where no table of calls exists.

    With `notify_unshare`, unshare asks the filter's listener instead of being refused; with
    `in_container` the filter is that of `CONTAINER_RULES`.
    """
    machine = machine or platform.machine()
    if machine not in syscalls.MACHINES:
        return None
    rules = CONTAINER_RULES if in_container else RULES
    if notify_unshare:
        rules = rules | {"unshare": (((), NOTIFY),)}
    start = [_op(_LOAD, _ARCH), _op(_JEQ, syscalls.MACHINES[machine], 1), _op(_RETURN, KILL)]
    return b"".join((*start, _op(_LOAD, _NR), search(_runs(machine, rules))))


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _count(ops: bytes) -> int:
    return len(ops) // 8


def _runs(machine: str, rules: dict[str, tuple[Case, ...]]) -> list[tuple[int, bytes]]:
    """Return the start of each run of calls with one answer, and the ops of the answer."""
    answers: dict[int, bytes] = {}
    for table, verdict in (
        (syscalls.ALLOWED, ALLOW),
        (syscalls.HARMLESS, refusal(0)),
        (syscalls.ABSENT, ENOSYS),
        (syscalls.REFUSED, EPERM),
    ):
        answers |= dict.fromkeys(table[machine].values(), _op(_RETURN, verdict))
    for name, number in syscalls.RULED[machine].items():
        answers[number] = b"".join(map(_case, (*rules[name], ((), EPERM))))
    # A hole in the numbers is a run of its own, and so are all numbers of the x32 convention.
    after = (0, *(number + 1 for number in answers))
    answers = dict.fromkeys(after, _op(_RETURN, ENOSYS)) | answers
    answers[_X32_BIT] = _op(_RETURN, EPERM)
    runs = sorted(answers.items())
    return [runs[0], *(run for before, run in pairwise(runs) if run[1] != before[1])]


def _case(case: Case) -> bytes:
    conditions, verdict = case
    ops = _op(_RETURN, verdict)
    for condition in reversed(conditions):
        ops = _condition(condition, past=_count(ops)) + ops
    return ops


def _condition(condition: ArgumentCheck, past: int) -> bytes:
    """Return ops that go on where the condition holds, and jump over `past` ops elsewhere."""
    ops = [_op(_LOAD, _ARGS + 8 * condition.argument)]
    if condition.mask != 0xFFFFFFFF:
        ops.append(_op(_AND, condition.mask))
    last = len(condition.values) - 1
    for at, value in enumerate(condition.values):
        ops.append(_op(_JEQ, value, last - at, past if at == last else 0))
    return b"".join(ops)


def search(runs: Sequence[tuple[int, bytes]]) -> bytes:
    """Return ops that find by halving in which run a loaded number is, and answer for the run.

    A run is where it starts, up to the next, and the ops of its answer, which end by returning.
    """
    if len(runs) == 1:
        return runs[0][1]
    half = len(runs) // 2
    below, above = search(runs[:half]), search(runs[half:])
    pivot, distance = runs[half][0], _count(below)
    if distance <= _REACH:
        return _op(_JGE, pivot, distance, 0) + below + above
    return _op(_JGE, pivot, 0, 1) + _op(_JUMP, distance) + below + above

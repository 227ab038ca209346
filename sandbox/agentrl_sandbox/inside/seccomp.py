"""A seccomp filter written by hand: calls that reach deep into the kernel answer EPERM.

A deny-list: everything a Python program normally does goes through. It is the second layer; the
namespaces are the first.
"""

import errno
import platform
import struct
from functools import cache

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "memfd_secret": (447, 447),
    "personality": (135, 92),
}
_UNSHARE = (272, 97)
_CLONE, _CLONE3, _SOCKET, _IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
_NAMESPACE_FLAGS = 0x7E020080  # every CLONE_NEW* of clone(2)
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: the ones a network namespace confines
_TERMINAL_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into somebody's terminal
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_NOTIFY = 0x7FC00000


def denied_calls() -> tuple[str, ...]:
    """Return the names of the calls that are denied whatever their arguments, without unshare."""
    return tuple(_DENIED)


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _refuse(number: int = errno.EPERM) -> bytes:
    return _op(_RETURN, 0x00050000 | number)


@cache
def build(machine: str | None = None, *, notify_unshare: bool = False) -> bytes | None:
    """Return the filter for this kind of machine, or None where no table of calls exists.

    With `notify_unshare`, unshare asks the filter's listener instead of being refused.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        return None
    which = 0 if machine == "x86_64" else 1
    parts = [
        _op(_LOAD, _ARCH),
        _op(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NR),
        _op(_JGE, _X32_BIT, 0, 1),
        _refuse(),
    ]
    for numbers in _DENIED.values():
        if (number := numbers[which]) is not None:
            parts += [_op(_JEQ, number, 0, 1), _refuse()]
    unshare = _op(_RETURN, _NOTIFY) if notify_unshare else _refuse()
    parts += [_op(_JEQ, _UNSHARE[which], 0, 1), unshare]
    # glibc falls back to clone, whose flags a filter can see.
    parts += [_op(_JEQ, _CLONE3[which], 0, 1), _refuse(errno.ENOSYS)]
    parts += _on_call(_CLONE[which], 0, [_op(_JSET, _NAMESPACE_FLAGS, 0, 1), _refuse()])
    known = [_op(_JEQ, family, len(_FAMILIES) - at, 0) for at, family in enumerate(_FAMILIES)]
    parts += _on_call(_SOCKET[which], 0, [*known, _refuse()])
    typing = [part for code in _TERMINAL_IOCTLS for part in (_op(_JEQ, code, 0, 1), _refuse())]
    parts += _on_call(_IOCTL[which], 1, typing)
    parts.append(_op(_RETURN, _ALLOW))
    return b"".join(parts)


def _on_call(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Return ops that load an argument of one call, run `checks`, and load the call again."""
    body = [_op(_LOAD, _ARGS + 8 * argument), *checks, _op(_LOAD, _NR)]
    return [_op(_JEQ, number, 0, len(body)), *body]

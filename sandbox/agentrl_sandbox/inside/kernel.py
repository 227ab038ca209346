"""System calls that Python 3.11 does not wrap, by way of ctypes. Linux only."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int, what: str) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), what)


def unshare(flags: int) -> None:
    """Move this process (for pids: its future children) into new namespaces."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def join(namespace_fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _check(_libc.setns(namespace_fd, kind), f"setns {kind:#x}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount; the arguments are those of mount(2)."""
    kind_bytes = None if kind is None else kind.encode()
    result = _libc.mount(source.encode(), target.encode(), kind_bytes, flags, data.encode() or None)
    _check(result, f"mount {kind or 'bind'} on {target}")


def detach(target: str) -> None:
    """Unmount now for everybody who looks, and for good when the last user lets go."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send us this signal when our parent thread ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "prctl PDEATHSIG")


def set_dumpable(dumpable: bool) -> None:
    """Say whether others of our user id may trace us and read our memory."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "prctl DUMPABLE")


def adopt_orphans(adopt: bool) -> None:
    """Say whether orphaned descendants become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), "prctl CHILD_SUBREAPER")


def forbid_new_privileges() -> None:
    """Make sure no program we start can gain a privilege."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl NO_NEW_PRIVS")


def install_filter(program: bytes) -> None:
    """Install a seccomp filter, for this process and all it starts, for ever."""

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    value = Program(len(program) // 8, program)
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    result = _libc.prctl(_PR_SET_SECCOMP, mode, ctypes.byref(value), zero, zero)
    _check(result, "prctl SECCOMP")


def drop_capabilities() -> None:
    """Give up every capability, and the right to get one back."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def enter_user_namespace() -> None:
    """Enter a user namespace of our own, keeping our user and group ids.

    What counts per user (processes, above all) is counted apart from here on.
    """
    uid, gid = os.getuid(), os.getgid()
    set_dumpable(True)  # else /proc/self belongs to root and the maps cannot be written
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1")):
        _write_self(name, text)
    _write_self("gid_map", f"{gid} {gid} 1")


def _write_self(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

"""System calls that Python 3.11 does not wrap, by way of ctypes. Linux only."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_with_gil = ctypes.PyDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

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


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))


# Made once: what a fresh fork does not have to make, it does not have to copy pages for.
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), what)


def fork() -> int:
    """Fork a process that has one thread; 0 in the child.

    Unlike `os.fork` it runs no hooks of Python modules, which take longer than the fork itself.
    A child that is to run other people's code reseeds `random` on its own.
    """
    pid = _with_gil.fork()
    _check(pid, "fork")
    return pid


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
    value = _Filter(len(program) // 8, program)
    result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(value), 0, 0)
    _check(result, "prctl SECCOMP")


def drop_capabilities() -> None:
    """Give up every capability, and the right to get one back."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


def enter_user_namespace(others: int = 0) -> None:
    """Enter a user namespace of our own, and `others` with it, keeping our user and group ids.

    What counts per user (processes, above all) is counted apart from here on.
    """
    uid, gid = os.getuid(), os.getgid()
    set_dumpable(True)  # else /proc/self belongs to root and the maps cannot be written
    unshare(CLONE_NEWUSER | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1")):
        _write_self(name, text)
    _write_self("gid_map", f"{gid} {gid} 1")


def _write_self(name: str, text: str) -> None:
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

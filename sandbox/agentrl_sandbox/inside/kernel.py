"""System calls that Python 3.11 does not wrap, by way of ctypes. Linux only."""

import ctypes
import errno
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from functools import cache

_MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_with_gil = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_setfsgid, _setfsuid = _libc.setfsgid, _libc.setfsuid
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 5, 6, 7
CAP_NET_ADMIN, CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 12, 18, 19, 21, 24
CAPABILITIES_OF_KEEPERS = (
    *(CAP_NET_ADMIN, CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN),
    *(CAP_SETGID, CAP_SETUID, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_RESOURCE),
)
"""In the user namespace of their pool: to give sessions namespaces, and to see who is in them; to
give each a user of its own, and to reach what another user has: its files, processes, limits."""

INSIDE_ID = 1000
"""The user and the group that everybody inside is to itself."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_FILTER = 1
_SECCOMP_GET_SIZES = 3
_SECCOMP_NEW_LISTENER = 1 << 3
_SECCOMP_WAIT_KILLABLE = 1 << 5
_CAPABILITY_VERSION_3 = 0x20080522

# The C library wraps none of these. Unknown machines get a number no kernel has: ENOSYS.
_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(_MACHINE, -1)
_KEYCTL = {"x86_64": 250, "aarch64": 219}.get(_MACHINE, -1)
_KEYCTL_JOIN_SESSION_KEYRING = 1


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))


# Made once: what a fresh fork does not have to make, it does not have to copy pages for.
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()


def check(result: int, what: str) -> int:
    """Raise `OSError` of ctypes' errno for a negative result of a call; return any other."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, what: str) -> None:
    check(_libc.prctl(option, value, 0, 0, 0), what)


def fork() -> int:
    """Fork a process that has one thread; 0 in the child.

    Unlike `os.fork` it runs no hooks of Python modules, which take longer than the fork itself.
    A child that is to run other people's code reseeds `random` on its own.
    """
    return check(_with_gil.fork(), "fork")


_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT, _CHILD_SETTID, _CHILD_CLEARTID = 0x8000, 0x01000000, 0x00200000
_SIGCHLD = 17
_PR_GET_TID_ADDRESS = 40
_raw_clone = _with_gil["syscall"]
_raw_clone.argtypes = (ctypes.c_long,) * 6
_raw_clone.restype = ctypes.c_long


@cache
def tid_address() -> int | None:
    """Return the address of the C library's thread number; None where it cannot be known.

    The same in everything that is forked from here.
    """
    address = ctypes.c_void_p()
    if _MACHINE not in _CLONE:
        return None
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(address), 0, 0, 0) < 0:
        return None
    return address.value


def fork_beside(address: int) -> int:
    """Fork a process that has one thread, with all hooks of Python; 0 in the child.

    The child is a child of our parent and not of ours. `address` is what `tid_address` found: the
    C library would write the child's thread number there, and here the kernel does.
    """
    flags = _CLONE_PARENT | _CHILD_SETTID | _CHILD_CLEARTID | _SIGCHLD
    last = (address, 0) if _MACHINE == "x86_64" else (0, address)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _raw_clone(_CLONE[_MACHINE], flags, 0, 0, *last)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid, "clone")


def unshare(flags: int) -> None:
    """Move this process (for pids: its future children) into new namespaces."""
    check(_libc.unshare(flags), f"unshare {flags:#x}")


def join(namespace_fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    check(_libc.setns(namespace_fd, kind), f"setns {kind:#x}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount; the arguments are those of mount(2)."""
    kind_bytes = None if kind is None else kind.encode()
    result = _libc.mount(source.encode(), target.encode(), kind_bytes, flags, data.encode() or None)
    check(result, f"mount {kind or 'bind'} on {target}")


def detach(target: str) -> None:
    """Unmount now for everybody who looks, and for good when the last user lets go."""
    check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


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
    check(result, "prctl SECCOMP")


def install_filter_with_listener(program: bytes) -> int:
    """Install a filter as `install_filter` does, and return the descriptor that it asks.

    The descriptor is close-on-exec. Whoever holds it decides: it must be gone from this process
    before that runs anything it should be protected from. `OSError` EINVAL on a kernel before 5.0,
    EBUSY when a filter of this process asks somebody already.
    """
    value = _Filter(len(program) // 8, program)
    address = ctypes.addressof(value)
    # Once its call is read, a caller is interrupted by nothing but its death: an answer that was
    # counted as given then is the one that took effect. Kernels before 5.19 do not know the flag.
    for flags in (_SECCOMP_NEW_LISTENER | _SECCOMP_WAIT_KILLABLE, _SECCOMP_NEW_LISTENER):
        fd = system_call(_SECCOMP, _SECCOMP_SET_FILTER, flags, address)
        if fd >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    return check(fd, "seccomp NEW_LISTENER")


def notification_sizes() -> tuple[int, int] | None:
    """Return the bytes of a listener's notification and response; None where there is none."""
    sizes = (ctypes.c_uint16 * 3)()
    if system_call(_SECCOMP, _SECCOMP_GET_SIZES, 0, ctypes.addressof(sizes)) < 0:
        return None
    return sizes[0], sizes[1]


def system_call(number: int, *arguments: int) -> int:
    """Call what the C library does not wrap; -1 with ctypes' errno set when it fails."""
    result: int = _syscall(number, *map(ctypes.c_long, arguments))
    return result


def drop_capabilities(keep: Collection[int] = ()) -> None:
    """Give up every capability but those to keep, and the right to get one back.

    What is kept is lost with the next program that is started.
    """
    for capability in range(64):
        if capability not in keep and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    mask = sum(1 << capability for capability in keep)
    # Effective, permitted and inheritable, first the lower 32 of each.
    sets = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0) if mask else _NO_CAPABILITIES
    check(_libc.capset(_CAPABILITY_HEADER, sets), "capset")


def hand_down_capabilities(kept: Collection[int]) -> None:
    """Let the next program that is started have what `drop_capabilities` kept."""
    mask = sum(1 << capability for capability in kept)
    sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    check(_libc.capset(_CAPABILITY_HEADER, sets), "capset")
    for capability in kept:
        result = _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
        check(result, f"prctl CAP_AMBIENT_RAISE {capability}")


def leave_keyring() -> None:
    """Hold an empty keyring of our own, and not that of whoever started us."""
    result = system_call(_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, 0)
    # A kernel without keys, or a filter around us that lets nobody in here use them either.
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        check(result, "keyctl")


def name_machine(name: str) -> None:
    """Name the machine, in a namespace of our own, and its domain nothing."""
    for call, text in ((_libc.sethostname, name), (_libc.setdomainname, "(none)")):
        check(call(text.encode(), ctypes.c_size_t(len(text))), f"name the machine {text}")


def become(user_id: int) -> None:
    """Become another user of this user namespace, and its group, for good.

    Capabilities stay, which the next user namespace or program then takes.
    """
    os.setgroups(())
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def use_files_as(user_id: int) -> None:
    """Make and open files as another user and its group, and stay who we are."""
    for call, what in ((_setfsgid, "setfsgid"), (_setfsuid, "setfsuid")):
        call(user_id)
        if call(-1) != user_id:  # changes nothing, and returns what is
            raise OSError(errno.EPERM, f"{what} {user_id}: {os.strerror(errno.EPERM)}")


def enter_user_namespace(*, others: int = 0, mapped: Callable[[], bool] | None = None) -> None:
    """Enter a user namespace of our own, where we are `INSIDE_ID`.

    Namespaces of the kinds `others` are entered with it, which then belong to it.
    What counts per user (processes, above all) is counted apart from here on. `mapped` may have
    somebody with more rights map more than our own id, and says whether it was done.
    """
    uid, gid = os.getuid(), os.getgid()
    set_dumpable(True)  # else /proc/self belongs to root and the maps cannot be written
    unshare(CLONE_NEWUSER | others)
    if mapped is not None and mapped():
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INSIDE_ID} {uid} 1")):
        write_self(name, text)
    write_self("gid_map", f"{INSIDE_ID} {gid} 1")


@contextmanager
def hold_namespaces(enter: Callable[[], object], why_not: str) -> Generator[int]:
    """Yield a child process that is in namespaces of its own, by `enter`, until the block ends.

    `OSError` of this text when it cannot get there.
    """
    ready, hold = os.pipe(), os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(hold[1])
            enter()
            os.write(ready[1], b"y")
            os.read(hold[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    os.close(hold[0])
    try:
        if os.read(ready[0], 1) != b"y":
            raise OSError(why_not)
        yield pid
    finally:
        os.close(ready[0])
        os.close(hold[1])
        os.waitpid(pid, 0)


def write_self(name: str, text: str) -> None:
    """Write one of our own files in /proc, which belong to root while we are not dumpable."""
    fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

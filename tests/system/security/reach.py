"""Attacks that reach for the host: network, files, secrets, processes, the kernel."""

import platform

from agentrl_sandbox import SandboxSession
from tests.system.security.arena import SECRET, Arena
from tests.system.security.attack import Attack, Gap, brief, unexpected

_SAME_USER = "the code is the trainer's user on the trainer's machine"


async def _survived(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The interpreter and its keeper live on: the name is still there."""
    result = await session.exec(arena.program(f"alive = 'yes'\n{attack.code}"))
    found = unexpected(result, attack)
    after = await session.exec("alive")
    if after.value != "'yes'":
        found.append(f"the session did not live on: {brief(after)}")
    return found


async def _nothing_secret(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await session.exec(arena.program(attack.code), timeout_s=attack.timeout_s)
    found = unexpected(result, attack)
    return [*found, "the secret came back"] if SECRET in str(result) else found


async def _others_unchanged(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """What one session did to memory that it shares with the others, they do not see."""
    found = unexpected(await session.exec(arena.program(attack.code)), attack)
    parent = "__import__('os').getppid()"
    if (await session.exec(parent)).value != "12345" and platform.machine() == "x86_64":
        found.append("the attack has changed nothing")
    async with arena.session() as fresh:
        for other in (arena.canary, fresh):
            if (await other.exec(parent)).value == "12345":
                found.append("another session calls the changed function")
    return found


SEARCH = """
first, second = (half.encode() for half in HOST["needle"])
def holds(data):
    at = data.find(first)
    while at >= 0:
        if data[at + len(first):at + len(first) + len(second)] == second: return True
        at = data.find(first, at + 1)
    return False
"""

ATTACKS = (
    Attack(
        name="tcp",
        title="connect to a server on the host's loopback and on the internet",
        held_by="network namespace without interfaces",
        code="""
import socket
far = ["::1", "localhost", "0.0.0.0", "10.0.2.2", "172.17.0.1", "192.0.2.1", "169.254.169.254",
       "1.1.1.1"]
for host in ["127.0.0.1", *([] if HOST["bare"] else far)]:
    for port in (HOST["port"],) if HOST["bare"] else (HOST["port"], 53, 80, 2375):
        attempt(f"{host}:{port}", lambda: socket.create_connection((host, port), 0.1).close())
if not HOST["bare"]:
    attempt("datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            .sendto(b"x", ("1.1.1.1", 53)))
    attempt("name service", socket.getaddrinfo, "example.com", 80)
through
""",
        gaps={"process": Gap("the host's network is the session's")},
    ),
    Attack(
        name="exotic-sockets",
        title="open raw, packet, netlink, vsock, alg and Bluetooth sockets",
        held_by="filter, no capability",
        code="""
import socket
kinds = {"raw": (2, 3, 1), "raw 6": (10, 3, 58), "packet": (17, 3, 0), "netlink": (16, 3, 0),
         "vsock": (40, 1, 0), "alg": (38, 5, 0), "bluetooth": (31, 3, 1), "key": (15, 3, 2),
         "can": (29, 3, 1), "xdp": (44, 3, 0), "tipc": (30, 5, 0), "rds": (21, 5, 0)}
for name, (family, kind, protocol) in kinds.items():
    attempt(name, lambda: socket.socket(family, kind, protocol).close())
through
""",
        gaps={"process": Gap("no filter")},
    ),
    Attack(
        name="unix-sockets",
        title="connect to abstract sockets of the host, to the engine of Docker, to any socket",
        held_by="network namespace, read-only root of its own",
        code="""
import socket
def reach(path):
    with socket.socket(socket.AF_UNIX) as one: one.connect(path)
attempt("abstract", reach, HOST["abstract"])
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
             "/run/systemd/private", "/run/dbus/system_bus_socket", "/tmp/.X11-unix/X0",
             "/run/user/0/bus", "/run/podman/podman.sock"):
    if not HOST["bare"]: attempt(path, reach, path)
through
""",
        gaps={"process": Gap(_SAME_USER)},
    ),
    Attack(
        name="host-files",
        title="read the host's files by path, through /proc and by leaving the directory",
        held_by="mount namespace with a root of its own",
        play=_nothing_secret,
        code="""
canary = HOST["canary"]
def read(path): return open(path, "rb").read(1)
for root in ("", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../..",
             f"/proc/{HOST['pid']}/root", "/proc/1/cwd/../../..", "/.." * 9, "/run/..",
             "/proc/self/task/1/root", "/proc/thread-self/root"):
    attempt(root + canary, read, root + canary)
import hashlib
def same(path, digest):
    if hashlib.sha256(open(path, "rb").read()).hexdigest() != digest: raise OSError
if not HOST["bare"]:
    for path, digest in HOST["files"].items(): attempt(path, same, path, digest)
    for path in ("/sys/kernel", "/proc/1/root/etc", "/proc/1/fd", "/proc/1/task/1/fd"):
        attempt(path, os.listdir, path)
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/1/maps", "/proc/1/mem"):
        attempt(path, read, path)
through
""",
        gaps={"process": Gap(_SAME_USER)},
    ),
    Attack(
        name="host-descriptors",
        title="open what other processes have open, through /proc/*/fd and map_files",
        held_by="process namespace, session init that nobody may look into",
        code="""
for pid in others():
    for place in ("fd", "map_files", "cwd", "exe", "root"):
        path = f"/proc/{pid}/{place}"
        attempt(path, os.listdir if place in ("fd", "map_files") else os.readlink, path)
through
""",
        gaps={"process": Gap(_SAME_USER)},
    ),
    Attack(
        name="environment",
        title="read secrets from the environment, the own and that of every other process",
        held_by="empty environment, process namespace",
        play=_nothing_secret,
        code=SEARCH
        + """
if HOST["variable"] in os.environ: through.append("os.environ")
for name in os.environ:
    if any(word in name for word in ("TOKEN", "SECRET", "KEY", "PASSWORD")): through.append(name)
for pid in {*others(), HOST["pid"]}:
    def look():
        data = open(f"/proc/{pid}/environ", "rb").read()
        if not holds(data) and not (pid == HOST["pid"] and data): raise OSError
    attempt(f"environment of {pid}", look)
through
""",
        gaps={"process": Gap("the trainer's /proc/PID/environ can be read by its user")},
    ),
    Attack(
        name="own-memory",
        title="search all of the own memory for what fork server or trainer knew",
        held_by="fork server with an empty environment, sessions that descend from no other",
        play=_nothing_secret,
        timeout_s=8,
        code=SEARCH
        + """
found = searched = 0
for line in open("/proc/self/maps").read().splitlines():
    where, rights = line.split()[:2]
    if "r" not in rights or "[v" in line: continue
    start, end = (int(part, 16) for part in where.split("-"))
    while start < end:
        piece = ctypes.string_at(start, min(2**20, end - start))
        searched += len(piece)
        found += holds(piece)
        start += 2**20
assert searched > 2**20, searched
[found] if found else through
""",
    ),
    Attack(
        name="command-lines",
        title="read code, configuration or answers off command lines",
        held_by="everything goes over descriptors, nothing on a command line",
        play=_nothing_secret,
        code=SEARCH
        + """
for pid in others():
    for name in ("cmdline", "comm", "stat", "status", "wchan"):
        def look():
            data = open(f"/proc/{pid}/{name}", "rb").read()
            if not holds(data) and data != bytes.fromhex(HOST["command"]): raise OSError
        attempt(f"{name} of {pid}", look)
through
""",
        gaps={"process": Gap("the host's processes can be listed, with their command lines")},
    ),
    Attack(
        name="see-processes",
        title="see processes that are neither the session's own nor its session init",
        held_by="process namespace",
        code="""
known = {1, os.getpid(), os.getppid()}
[int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) not in known][:20]
""",
        gaps={"process": Gap("no process namespace")},
    ),
    Attack(
        name="kill-everything",
        title="kill(-1, SIGKILL), then every process id up to 5000",
        held_by="process namespace; the session init is its first process; Landlock bars signals",
        play=_survived,
        code="""
import signal
for number in (0, signal.SIGTERM, signal.SIGKILL):
    try: os.kill(-1, number)
    except OSError: pass
for pid in range(1, 5000):
    if pid != os.getpid():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
through
""",
        gaps={"process": Gap("it would end every process of the trainer's user", shown=False)},
    ),
    Attack(
        name="kill-the-fork-server",
        title="send every signal to the parent process and to process 1",
        held_by="process namespace; the session init is its first process; Landlock bars signals",
        play=_survived,
        code="""
import signal
for pid in {os.getppid()} if HOST["bare"] else {os.getppid(), 1}:
    for number in range(1, 65):
        try: os.kill(pid, number)
        except OSError: pass
through
""",
        gaps={"process": Gap("the session init is a process of the same user")},
    ),
    Attack(
        name="kill-the-trainer",
        title="signal the trainer by its process id",
        held_by="process namespace",
        code="""
attempt("kill", os.kill, HOST["pid"], 0)
attempt("pidfd", os.pidfd_open, HOST["pid"])
through
""",
        gaps={"process": Gap("the trainer is a process of the same user")},
    ),
    Attack(
        name="tamper-with-the-session-init",
        title="starve the session init: its limits, priority, processors, scheduling class",
        held_by="filter, user namespace",
        play=_survived,
        code="""
import resource
keeper = os.getppid()
attempt("limit on CPU time", resource.prlimit, keeper, resource.RLIMIT_CPU, (3600, 3600))
attempt("limit on files", resource.prlimit, keeper, resource.RLIMIT_NOFILE, (512, 512))
attempt("priority", os.setpriority, os.PRIO_PROCESS, keeper, 5)
attempt("processors", os.sched_setaffinity, keeper, [min(os.sched_getaffinity(0))])
attempt("class", os.sched_setscheduler, keeper, os.SCHED_BATCH, os.sched_param(0))
if "returned" in call(251, 30, 1, keeper, 2 << 13 | 7): through.append("input and output")
attempt("badness", lambda: open(f"/proc/{keeper}/oom_score_adj", "w").write("1000"))
through
""",
        gaps={"process": Gap("the session init is a process of the same user")},
    ),
    Attack(
        name="watch-the-machine",
        title="be told who lists directories of the machine (dnotify), and hold a lease on a file",
        held_by="filter, other users",
        code="""
import fcntl
directory, program = os.open("/usr/lib", os.O_RDONLY), os.open("/usr/bin/python3", os.O_RDONLY)
attempt("a directory is watched", fcntl.fcntl, directory, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
attempt("a file is leased", fcntl.fcntl, program, fcntl.F_SETLEASE, fcntl.F_RDLCK)
through
""",
        gaps={"process": Gap(_SAME_USER, shown=False)},
    ),
    Attack(
        name="look-up-the-answers",
        title="import agentrl and its environments, from wherever the machine has Python packages",
        held_by="an allow-list of files, on which no Python package is",
        code="""
import glob, importlib, sys
for module in [name for name in sys.modules if name.startswith("agentrl")]: del sys.modules[module]
for top in ("/usr/lib*", "/usr/local/lib*", "/opt/*/lib", f"{sys.prefix}/lib*", "/packages"):
    sys.path += glob.glob(f"{top}/python*/*-packages") + glob.glob(top)
for name in ("agentrl", "agentrl_envs.programs.families", "agentrl_tools", "agentrl_sandbox.pool"):
    try: through.append(str(importlib.import_module(name)))
    except ImportError: pass
through
""",
        gaps={"process": Gap(_SAME_USER, shown=False)},
    ),
    Attack(
        name="kernel-settings",
        title="write anything under /proc/sys and /sys: core_pattern, sysrq, cgroups",
        held_by="user without rights outside, read-only /proc/sys, no /sys",
        code="""
def change(path):
    if os.stat(path).st_mode & 0o444:  # what can be read is written back as it is
        with open(path, "r+b", buffering=0) as file:
            data = file.read(4096)
            file.seek(0); file.write(data)
    else: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
for path in ("/proc/sysrq-trigger", "/proc/timer_list", "/proc/irq/default_smp_affinity",
             "/proc/1/oom_score_adj", "/proc/1/timerslack_ns", "/proc/1/clear_refs",
             "/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/release_agent",
             "/sys/fs/cgroup/cgroup.procs", "/proc/sys/kernel/core_pattern", "/proc/mtrr",
             "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/mm/ksm/run"):
    attempt(path, change, path)
for top in ("/proc/sys", "/sys"):
    for where, _, names in os.walk(top):
        for name in names:
            path = os.path.join(where, name)
            if os.access(path, os.W_OK): attempt(path, change, path)
through[:20]
""",
        gaps={"process": Gap("root writes them; a user cannot", shown=False)},
    ),
    Attack(
        name="trace",
        title="trace and read the memory of parent, process 1 and trainer",
        held_by="filter, session init that nobody may look into, process namespace",
        play=_survived,
        code="""
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_size_t * 2)(id(through), 8)
for pid in {1, os.getppid(), HOST["pid"]}:
    seize = call(101, 117, 0x4206, pid, 0, 0)
    if "returned" in seize: through.append(f"seize {pid}"); continue
    read = call(310, 270, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
    if read not in ("EPERM", "ESRCH"): through.append(f"process_vm_readv {pid}: {read}")
    for name in ("mem", "maps", "pagemap", "syscall", "stack", "auxv", "personality"):
        attempt(f"{name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    if "returned" in (got := call(434, 434, pid, 0)):
        fd = int(got.split()[1])
        if "returned" in call(438, 438, fd, 0, 0): through.append(f"descriptor of {pid}")
        os.close(fd)
through
""",
        gaps={"process": Gap("it would trace processes of this machine", shown=False)},
    ),
    Attack(
        name="terminal",
        title="read stdin, open a terminal, type into it with TIOCSTI",
        held_by="stdin is empty, session without a terminal, filter",
        code="""
import fcntl, sys
if sys.stdin.read() or os.read(0, 1): through.append("stdin")
attempt("terminal", os.open, "/dev/tty", os.O_RDWR)
for fd in (0, 1, 2):
    attempt(f"TIOCSTI {fd}", fcntl.ioctl, fd, 0x5412, b"x")
    attempt(f"TIOCLINUX {fd}", fcntl.ioctl, fd, 0x541C, b"\\x02")
    if os.isatty(fd): through.append(f"{fd} is a terminal")
through
""",
    ),
    Attack(
        name="namespaces",
        title="make namespaces, mount, change root: by every call there is",
        held_by="filter, no capability",
        code="""
calls = {"chroot": (161, 51, b"/"), "mount": (165, 40, b"none", b"/home/agent", b"tmpfs", 0, 0),
         "umount": (166, 39, b"/proc", 2), "pivot_root": (155, 41, b"/", b"/"),
         "fsopen": (430, 430, b"tmpfs", 0), "open_tree": (428, 428, -100, b"/", 1),
         "mount_setattr": (442, 442, -100, b"/", 0, 0, 0), "clone3": (435, 435, 0, 0),
         "setns": (308, 268, 0, 0), "fspick": (433, 433, -100, b"/", 0)}
kept = []
def value(argument):
    if isinstance(argument, int): return argument
    kept.append(ctypes.create_string_buffer(argument))
    return ctypes.addressof(kept[-1])
for name, (x86_64, aarch64, *arguments) in calls.items():
    answer = call(x86_64, aarch64, *map(value, arguments))
    if answer not in ("EPERM", "ENOSYS"): through.append(f"{name}: {answer}")
for bit in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    pid = os.fork()
    if pid == 0:
        os._exit("returned" in call(272, 97, bit) or "returned" in call(272, 97, bit | 0x10000000))
    if os.waitpid(pid, 0)[1]: through.append(f"unshare {bit:#x}")
    answer = call(56, 220, bit | 17, 0, 0, 0, 0)
    if answer == "returned 0": os._exit(0)
    if "returned" in answer: os.waitpid(-1, 0); through.append(f"clone {bit:#x}")
for name in ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"):
    def enter():
        fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        if "returned" not in call(308, 268, fd, 0): raise OSError
    attempt(f"enter {name}", enter)
through
""",
        gaps={"process": Gap("it would mount on this machine when run by root", shown=False)},
    ),
    Attack(
        name="leave-the-root",
        title="leave the root with descriptors: fchdir, openat, O_PATH, file handles, links",
        held_by="mount namespace with a root of its own, filter",
        play=_nothing_secret,
        code="""
import fcntl
canary = HOST["canary"]
root = os.open("/", os.O_PATH | os.O_DIRECTORY)
os.fchdir(root)
for _ in range(20): os.chdir("..")
attempt("fchdir", lambda: open("." + canary).read(1))
attempt("openat", lambda: os.open("../../../.." + canary, os.O_RDONLY, dir_fd=root))
for fd in range(3, 64):
    attempt(f"beside descriptor {fd}", lambda: os.open("../../.." + canary, 0, dir_fd=fd))
os.chdir(os.environ["HOME"])
attempt("hard link", lambda: os.link(canary, "linked"))
attempt("hard link through a descriptor", lambda: os.link(
    f"/proc/self/fd/{os.open(canary, os.O_PATH)}", "linked2", follow_symlinks=True))
through
""",
        gaps={"process": Gap(_SAME_USER)},
    ),
    Attack(
        name="files-without-a-name",
        title="make files outside of the directory, with O_TMPFILE and by a descriptor",
        held_by="read-only root of its own",
        code="""
for place in ("/", "/tmp", "/dev", "/dev/shm", "/usr/lib", "/run", "/etc", "/var/tmp", "/proc"):
    if os.path.realpath(place) == os.path.realpath(os.environ["HOME"]): continue
    attempt(place, lambda: os.close(os.open(place, os.O_TMPFILE | os.O_RDWR)))
through
""",
        gaps={"process": Gap(_SAME_USER)},
    ),
    Attack(
        name="devices",
        title="make devices, and open those of the machine",
        held_by="no capability, own /dev, file system without devices",
        code="""
import stat
for name, major, minor in (("mem", 1, 1), ("kmsg", 1, 11), ("disk", 8, 0), ("loop", 7, 0)):
    kind = stat.S_IFCHR if major == 1 else stat.S_IFBLK
    def make(path):
        os.mknod(path, 0o666 | kind, os.makedev(major, minor))
        os.unlink(path)
    for place in (".", "/dev", "/tmp"): attempt(f"make {name}", make, f"{place}/{name}-made")
for where, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(where, name)
        try: state = os.lstat(path)
        except OSError: continue
        if stat.S_ISBLK(state.st_mode): attempt(path, os.open, path, os.O_RDONLY | os.O_NONBLOCK)
for name in ("mem", "kmem", "kmsg", "port", "kvm", "fuse", "net/tun", "vhost-net", "uinput",
             "mapper/control", "loop-control", "vsock", "cpu/0/msr", "userfaultfd"):
    attempt(name, os.open, f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK)
through
""",
        gaps={"process": Gap("root may; a user may open what it may open", shown=False)},
    ),
    Attack(
        name="deep-kernel-calls",
        title="bpf, userfaultfd, io_uring, perf, keyctl, modules, kexec, clocks and 20 more",
        held_by="filter",
        code="""
calls = {
    "bpf": (321, 280, 0, 0, 0), "userfaultfd": (323, 282, 1),
    "io_uring_setup": (425, 425, 1, 0), "io_uring_enter": (426, 426, -1, 0, 0, 0, 0, 0),
    "io_uring_register": (427, 427, -1, 0, 0, 0), "perf_event_open": (298, 241, 0, 0, 0, 0, 0),
    "keyctl": (250, 219, 0, -3, 0), "add_key": (248, 217, 0, 0, 0, 0, 0),
    "request_key": (249, 218, 0, 0, 0, 0), "init_module": (175, 105, 0, 0, 0),
    "finit_module": (313, 273, -1, 0, 0), "delete_module": (176, 106, 0, 0),
    "kexec_load": (246, 104, 0, 0, 0, -1), "swapon": (167, 224, 0, 0), "acct": (163, 89, 1),
    "quotactl": (179, 60, -1, 0, 0, 0), "syslog": (103, 116, 10, 0, 0),
    "name_to_handle_at": (303, 264, -100, 0, 0, 0, 0), "open_by_handle_at": (304, 265, -1, 0, 0),
    "fanotify_init": (300, 262, 0, 0), "reboot": (169, 142, 0, 0, 0, 0),
    "settimeofday": (164, 170, 1, 0), "clock_settime": (227, 112, 0, 0),
    "clock_adjtime": (305, 266, 0, 0), "adjtimex": (159, 171, 0),
    "sethostname": (170, 161, 0, -1), "setdomainname": (171, 162, 0, -1),
    "personality": (135, 92, 0x40000), "mbind": (237, 235, 0, 0, 0, 0, 0, 0),
    "move_pages": (279, 239, 0, 0, 0, 0, 0, 0), "migrate_pages": (256, 238, 0, 0, 0, 0),
    "kcmp": (312, 272, 1, 1, 0, 0, 0), "process_madvise": (440, 440, -1, 0, 0, 0, 0),
    "memfd_secret": (447, 447, 0),
}
for name, numbers in calls.items():
    answer = call(*numbers)
    if answer not in ("EPERM", "ENOSYS", "EACCES"): through.append(f"{name}: {answer}")
through
""",
        gaps={"process": Gap("no filter; root would change this machine", shown=False)},
    ),
    Attack(
        name="other-call-tables",
        title="go around the filter by the 32-bit and x32 tables of calls",
        held_by="filter that knows its architecture",
        ends=("ok", "crash"),
        code="""
import mmap
if platform.machine() == "x86_64":
    if "returned" in call(0x40000000 + 39, -1): through.append("x32")
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("b814000000" "cd80" "c3"))  # mov eax, getpid; int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0: through.append("32 bits")
through
""",
        gaps={"process": Gap("no filter; some kernels lack these tables", shown=False)},
    ),
    Attack(
        name="privileges",
        title="be root, have a capability, gain one back through a set-user-id program",
        held_by="user namespace, no capability, no new privileges, filter",
        code="""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if status[key].strip("0"): through.append(f"{key} {status[key]}")
if (status["NoNewPrivs"], status["Seccomp"]) != ("1", "2"): through.append("not confined")
if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()): through.append("root")
attempt("setuid", os.setuid, 0)
attempt("setgid", os.setgid, 0)
attempt("setgroups", os.setgroups, [0])
if "returned" in call(157, 167, 47, 2, 21, 0, 0): through.append("ambient capability")
if "returned" in call(157, 167, 8, 1, 0, 0, 0) and os.getuid() == 0: through.append("keepcaps")
through
""",
        gaps={"process": Gap("the code keeps the user and the rights of the trainer")},
    ),
    Attack(
        name="overwrite-the-program",
        title="overwrite the running interpreter, its libraries and the fork server's code",
        held_by="read-only mounts",
        code="""
import sys
paths = {"/proc/self/exe", "/proc/1/exe", f"/proc/{os.getppid()}/exe", sys.executable, os.__file__}
paths |= {line.split()[-1] for line in open("/proc/self/maps") if "/" in line.split()[-1]}
paths |= {path for path in sys.path if os.path.isfile(path)}
for path in sorted(paths):
    attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
    attempt(path, lambda: os.close(
        os.open(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", os.O_RDWR)))
through
""",
        gaps={"process": Gap("root writes them; a user cannot", shown=False)},
    ),
    Attack(
        name="run-from-memory",
        title="run a program of one's own, from memory or from a file",
        held_by="filter and limits are inherited by whatever is run",
        code="""
try: fd = os.memfd_create("cat")
except OSError:  # then from a file, where it may be run as well
    fd = os.open("cat", os.O_CREAT | os.O_WRONLY, 0o700)
os.write(fd, open("/bin/cat", "rb").read())
if os.path.exists("cat"): os.close(fd); fd = os.open("cat", os.O_RDONLY)
ours, theirs = os.pipe()
if (pid := os.fork()) == 0:
    os.dup2(theirs, 1)
    os.execve(fd, ["cat", "/proc/self/status"], {})
os.close(theirs)
text = open(ours).read()
os.waitpid(pid, 0)
status = dict(line.split(":\\t", 1) for line in text.splitlines())
confined = (status["NoNewPrivs"], status["Seccomp"], status["CapEff"].strip("0"))
[] if confined == ("1", "2", "") else [confined]
""",
        gaps={"process": Gap("nothing to inherit")},
    ),
    Attack(
        name="write-own-code-pages",
        title="change a function of the C library in memory that all sessions share",
        held_by="private pages: no other process sees the change",
        play=_others_unchanged,
        code="""
libc = ctypes.CDLL(None)
address = ctypes.cast(libc.getppid, ctypes.c_void_p).value
if platform.machine() == "x86_64":
    assert libc.mprotect(ctypes.c_void_p(address & ~4095), 8192, 7) == 0
    code = bytes.fromhex("b839300000c3")  # mov eax, 12345; ret
    ctypes.memmove(address, code, len(code))
    assert os.getppid() == 12345
through
""",
    ),
)

"""Landlock: which rights a rule set has, and what processes in domains can really do."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_sandbox.inside import landlock

HAS_FILES = pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
HAS_SCOPES = pytest.mark.skipif(landlock.abi() < 6, reason="Landlock scopes nothing before 6.12")


@pytest.mark.parametrize(
    ("abi", "files", "scopes"),
    [
        (0, 0, 0),
        (1, 0x1FFF, 0),
        (2, 0x3FFF, 0),
        (3, 0x7FFF, 0),
        (4, 0x7FFF, 0),  # the rights on TCP, which are left alone
        (5, 0xFFFF, 0),
        (6, 0xFFFF, 3),
        (7, 0xFFFF, 3),
    ],
)
def test_what_each_interface_can_withhold(abi: int, files: int, scopes: int) -> None:
    assert (landlock.rights(abi), landlock.scopes(abi)) == (files, scopes)


@given(st.integers(0, landlock.ABI_MAX))
def test_nothing_is_granted_that_is_not_withheld(abi: int) -> None:
    """The kernel refuses a rule that grants what its rule set does not handle."""
    read, write, every = landlock.read_rights(abi), landlock.write_rights(abi), landlock.rights(abi)
    assert read | write | every == every
    assert read & write == read  # what can be written can be read
    assert read in (0, 0b1101)  # execute, read a file, list a directory
    assert every ^ write == every & 0b1000_1000_0100_0000  # making and driving devices
    assert landlock.rights(max(0, abi - 1)) & ~every == 0


FILES = """
import errno, os, sys
from agentrl_sandbox.inside import kernel, landlock
own, foreign = sys.argv[1:]

def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def write(path):
    with open(path, "w") as file:
        file.write("x")

os.mkdir(f"{own}/a"), os.mkdir(f"{own}/b")
kernel.forbid_new_privileges()
assert landlock.enter(
    ["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, "/proc", "/does/not/exist"],
    [own, "/dev/null", "/dev/zero"],
) == landlock.abi()
print("inside",
    attempt(write, f"{own}/a/x"), attempt(os.rename, f"{own}/a/x", f"{own}/b/y"),
    attempt(os.link, f"{own}/b/y", f"{own}/a/z"), attempt(os.truncate, f"{own}/a/z", 0),
    attempt(os.symlink, "x", f"{own}/s"), attempt(os.mkfifo, f"{own}/f"),
    attempt(os.unlink, f"{own}/b/y"), attempt(os.listdir, own), attempt(write, "/dev/null"))
print("system",
    attempt(os.listdir, "/usr/bin"), attempt(open, "/bin/sh"), attempt(open, "/proc/self/status"),
    os.spawnv(os.P_WAIT, "/bin/true", ["true"]))
print("outside",
    attempt(write, f"{foreign}/x"), attempt(open, f"{foreign}/secret"),
    attempt(os.listdir, foreign), attempt(os.mkdir, f"{foreign}/d"),
    attempt(os.unlink, f"{foreign}/secret"), attempt(os.rename, f"{own}/a/z", f"{foreign}/z"),
    attempt(os.listdir, "/"), attempt(os.mknod, f"{own}/null", 0o20600, os.makedev(1, 3)),
    attempt(write, "/usr/agentrl-test"), attempt(os.truncate, f"{foreign}/secret", 0))
"""

SCOPED = """
import errno, os, socket
from agentrl_sandbox.inside import kernel, landlock

def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def connect(name):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(name)

def sleeper(separated):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        if separated:
            assert landlock.separate()
        theirs.send(b"!")
        theirs.recv(1)  # until the parent has gone
        os._exit(0)
    theirs.close()
    assert ours.recv(1)
    kept.append(ours)
    return pid

def reach(pid):
    return [attempt(os.kill, pid, 0), attempt(open, f"/proc/{pid}/mem", "rb"),
            attempt(os.readlink, f"/proc/{pid}/fd/0")]

kept = []
kernel.drop_capabilities()  # root's would weigh more than what is tested
kernel.forbid_new_privileges()
outer = socket.socket(socket.AF_UNIX)
outer.bind("\\0agentrl-landlock-%d" % os.getpid())
outer.listen()
parent, plain, sibling = os.getpid(), sleeper(False), sleeper(True)
if os.fork() == 0:
    before = reach(plain), reach(sibling)
    assert landlock.separate()
    child = sleeper(False)
    print("before", *before)
    print("after", *map(reach, (parent, plain, sibling)))
    print("nested", reach(child), reach(os.getpid()))
    print("abstract", attempt(connect, outer.getsockname()), flush=True)
    os._exit(0)
os.wait()
print("parent", reach(sibling), attempt(connect, outer.getsockname()))
assert landlock.separate()
print("parent after", reach(sibling), reach(plain))
"""

MOUNTED = """
import errno, os, sys
from agentrl_sandbox.inside import kernel, landlock
directory, = sys.argv[1:]

def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

kernel.enter_user_namespace()
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("first", directory, "tmpfs", 0)
os.mkdir(f"{directory}/beneath")
kernel.forbid_new_privileges()
ours, theirs = os.pipe(), os.pipe()
if os.fork() == 0:
    landlock.enter(["/usr", "/proc"], [directory])
    print(attempt(kernel.mount, "never", directory, "tmpfs", 0))
    for _ in range(2):
        os.write(ours[1], b"!")
        os.read(theirs[0], 1)
        print(attempt(os.mkdir, f"{directory}/beneath/x"), flush=True)
    os._exit(0)
os.read(ours[0], 1)
kernel.mount("second", f"{directory}/beneath", "tmpfs", 0)
os.write(theirs[1], b"!")
os.read(ours[0], 1)
kernel.mount("third", directory, "tmpfs", 0)
os.mkdir(f"{directory}/beneath")
os.write(theirs[1], b"!")
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

LAYERS = """
from agentrl_sandbox.inside import kernel, landlock
kernel.forbid_new_privileges()
landlock.enter(["/usr"], [])
print([landlock.separate() for _ in range(landlock.LAYERS_MAX)].count(True))
try:
    landlock.enter(["/usr"], [])
except OSError as error:
    print(error.errno)
"""


def run(script: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=Path(__file__).parents[3] / "sandbox",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@HAS_FILES
def test_files_inside_are_allowed_and_outside_withheld(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    own.mkdir()
    foreign.mkdir()
    (foreign / "secret").write_text("swordfish")
    inside, system, outside = run(FILES, str(own), str(foreign))
    refer = "done" if landlock.abi() >= 2 else "EXDEV"
    assert inside.split()[1:] == ["done", refer, refer, *["done"] * 6]
    assert system.split()[1:] == ["done", "done", "done", "0"]
    truncate = "EACCES" if landlock.abi() >= 3 else "done"
    moved = outside.split()[6]
    assert moved in ("EACCES", "EXDEV")
    assert outside.split()[1:] == [*["EACCES"] * 5, moved, *["EACCES"] * 3, truncate]
    assert (foreign / "secret").read_text() == "swordfish"


@HAS_SCOPES
def test_a_domain_ends_signals_memory_and_abstract_sockets() -> None:
    """A process reaches what is nested in its domain, and nothing else."""
    reached, out = ["done"] * 3, ["EPERM", "EACCES", "EACCES"]
    assert run(SCOPED) == [
        f"before {reached} {reached}",
        f"after {out} {out} {out}",
        f"nested {reached} {reached}",
        "abstract EPERM",
        f"parent {reached} done",
        f"parent after {out} {out}",
    ]


@pytest.mark.namespaces
@HAS_FILES
def test_what_is_mounted_beneath_a_directory_belongs_to_it_and_over_it_does_not(
    tmp_path: Path,
) -> None:
    assert run(MOUNTED, str(tmp_path)) == ["EPERM", "done", "EACCES"]


@HAS_SCOPES
def test_a_process_can_be_in_so_many_domains_and_no_more() -> None:
    assert run(LAYERS) == [str(landlock.LAYERS_MAX - 1), "7"]

"""Every opened session is a user of its own: whose ids, whose files, whose quotas.

Mutants seen caught: an interpreter, a command or the namespace of commands that stays the keeper's;
groups that are kept; a keeper that makes files as itself, or lacks the capability to read what is
locked, to kill others, to set their limits; ids given away twice, or never given back; a gap in the
map that is overlooked; a map that is not rotated; /etc/subuid not heeded; no score for the kernel's
choice when memory runs out; nothing done where newuidmap refuses.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession
from agentrl_sandbox.inside.users import NOBODY, SessionUsers, end_of
from agentrl_sandbox.launch.users import (
    BLOCK,
    BLOCKS,
    find_lent,
    free_block,
    gives_ids,
    map_block,
    rotate,
)
from tests.support.pools import opened
from tests.support.processes import parent_of

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives away ids of others")

# -- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("      1000 1073741824      65536\n", 66536),
        ("1000 501 1\n1001 100000 5\n1006 200000 3", 1009),
        ("1001 100000 5\n1000 501 1\n", 1006),
        ("1000 501 1\n1002 100000 5", 1001),
        ("1000 501 1", 1001),
        ("0 0 4294967295", 4294967295),
        ("0 0 1", 1000),
    ],
)
def test_the_ids_after_ones_own_are_read_from_the_map(text: str, end: int) -> None:
    assert end_of(text, 1000) == end


def test_without_ids_of_its_own_a_session_has_the_keepers() -> None:
    users = SessionUsers(range(0))
    assert [users.take(), users.take()] == [NOBODY, NOBODY]
    users.give_back(NOBODY)


@given(st.integers(1, 6), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=40))
def test_no_two_live_sessions_have_one_id_as_long_as_there_are_enough(
    size: int, steps: list[int | None]
) -> None:
    users, live = SessionUsers(range(1001, 1001 + size)), list[int]()
    for step in steps:
        if step is None:
            taken = users.take()
            assert 1001 <= taken < 1001 + size
            assert taken not in live or len(set(live)) == size
            live.append(taken)
        elif live and live.count(gone := live[step % len(live)]) == 1:
            live.remove(gone)
            users.give_back(gone)


def test_an_id_comes_again_as_late_as_it_can() -> None:
    users = SessionUsers(range(5, 8))
    assert users.take() == 5
    users.give_back(5)
    assert [users.take() for _ in range(3)] == [6, 7, 5]
    users.give_back(7)
    assert users.take() == 7


@given(
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**27)), max_size=7),
    st.integers(0, 2**32 - 1),
)
def test_a_block_holds_nobodys_ids(lent_ids: list[tuple[int, int]], drawn: int) -> None:
    taken = [range(start, start + count) for start, count in lent_ids]
    ids = free_block(taken, drawn)
    assert len(ids) == BLOCK
    assert ids.start in BLOCKS
    assert ids.start >= 2**30
    assert ids.stop < 2**31
    assert all(ids.stop <= other.start or other.stop <= ids.start for other in taken if other)


def test_where_all_ids_are_lent_none_is_taken() -> None:
    with pytest.raises(ConfigError, match="/etc/subuid"):
        free_block([range(2**32)], 1)
    all_but_one = [range(BLOCKS[7]), range(BLOCKS[8], 2**32)]
    assert {free_block(all_but_one, drawn).start for drawn in range(3)} == {BLOCKS[7]}


@pytest.mark.parametrize(
    ("uid_map", "user_id", "gives"),
    [
        ("         0          0 4294967295\n", 0, True),
        ("         0          0 4294967295\n", 1000, False),
        ("         0       1000          1\n", 0, False),
        ("0 1000 1\n1 100000 65536\n", 0, False),
        (f"0 1000 1\n{2**30} {2**30} {2**30}\n", 0, True),
        (f"0 0 {2**30 + 1}\n", 0, False),
    ],
)
def test_only_root_with_the_ids_of_all_blocks_gives_some_away(
    uid_map: str, user_id: int, gives: bool
) -> None:
    assert gives_ids(uid_map, user_id) == gives


def test_the_supervisor_has_the_first_id_of_a_block() -> None:
    users = map_block(range(2**30, 2**30 + BLOCK))
    assert users.uid == users.gid == ((1000, 2**30, BLOCK),)
    assert users.programs == {}


def test_what_a_user_may_have_is_read_from_subuid() -> None:
    text = "# none\nroot:10:0\nalice:100000:65536\n1001:300000:9\nalice:500000:1\nbad:x:y\n"
    assert find_lent(text, {"alice", "1000"}) == range(100000, 165536)
    assert find_lent(text, {"bob", "1001"}) == range(300000, 300009)
    assert find_lent(text, {"carol", "alic", "root", "bad"}) == range(0)


@given(st.integers(1, 2**31), st.integers(1, BLOCK), st.integers(0, BLOCK))
def test_a_rotated_map_has_every_id_once_without_a_gap(start: int, size: int, by: int) -> None:
    inside, outside = list[int](), list[int]()
    for first, there, length in rotate(range(start, start + size), by):
        assert length > 0
        inside += range(first, first + length)
        outside += range(there, there + length)
    assert inside == list(range(1001, 1001 + size))
    assert sorted(outside) == list(range(start, start + size))
    assert outside[0] == start + by % size


# -- real sessions --------------------------------------------------------------------------------

PIPE_PAGES = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text())
_numbers = count(700_000 + os.getpid() % 1000)


BACKENDS = [
    pytest.param("namespaces", marks=pytest.mark.namespaces),
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
]


@pytest.fixture(params=[*BACKENDS, pytest.param("docker", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[ForkServerPool]:
    async with opened(SandboxSettings(backend=request.param, limits=Limits(wall_s=60.0))) as pool:
        yield pool


def users_of(pid: int | str) -> set[int]:
    """Return the user and group ids of a process here: real, effective, saved."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {int(word) for key in ("Uid", "Gid") for word in found[key].split()[:3]}


def running(argument: int) -> int:
    """Return the process here that has this argument, which may not have begun yet."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if str(argument).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return int(pid)
        time.sleep(0.01)
    raise AssertionError(f"nobody runs with the argument {argument}")


async def sleeper(session: SandboxSession) -> int:
    """Return the process here of a program that the session's interpreter runs."""
    number = next(_numbers)
    code = f"import subprocess; child = subprocess.Popen(['/bin/sleep', '{number}'])"
    assert (await session.exec(code)).ok
    return running(number)


async def value(session: SandboxSession, code: str) -> str | None:
    result = await session.exec(code)
    assert result.ok, result
    return result.value


@as_root
async def test_sessions_are_different_users_and_none_is_the_keepers(pool: ForkServerPool) -> None:
    one, other = await pool.open(), await pool.open()
    copy = await one.fork()
    programs = [await sleeper(session) for session in (one, other, copy)]
    interpreters = [parent_of(pid) for pid in programs]
    keepers = [parent_of(pid) for pid in interpreters]
    for program, interpreter in zip(programs, interpreters, strict=True):
        assert users_of(program) == users_of(interpreter)
    (first,), (second,), (third,) = map(users_of, interpreters)
    (host,), (host_too,), (_,) = map(users_of, keepers)
    assert first == third
    assert len({first, second, host}) == 3
    assert host == host_too
    assert all(user in range(BLOCKS.start, BLOCKS.stop + BLOCK) for user in (first, second, host))
    for session in (one, other, copy):
        assert await value(
            session, "import os; os.getresuid(), os.getresgid(), os.getgroups()"
        ) in (
            "((1000, 1000, 1000), (1000, 1000, 1000), [])",
            "((1000, 1000, 1000), (1000, 1000, 1000), [1000])",
        )


@as_root
async def test_a_command_is_the_same_user_as_the_interpreter(pool: ForkServerPool) -> None:
    session = await pool.open()
    (own,) = users_of(await sleeper(session))
    number = next(_numbers)
    ran = await session.run(["sh", "-c", f"sleep {number} & id -u; id -g"])
    assert ran.stdout == "1000\n1000\n"
    assert users_of(running(number)) == {own}


@as_root
async def test_when_a_session_is_closed_nobody_has_its_id(pool: ForkServerPool) -> None:
    session, other = await pool.open(), await pool.open()
    copy = await session.fork()
    (user,) = users_of(await sleeper(session))
    await sleeper(copy)
    await session.run(["sh", "-c", f"sleep {next(_numbers)} &"])
    await session.close()
    await copy.close()
    deadline_s = time.monotonic() + 60
    while left := processes_of(user):
        assert time.monotonic() < deadline_s, left
        await asyncio.sleep(0.02)
    assert await value(other, "1 + 1") == "2"


def processes_of(user: int) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [path.name] if user in users_of(path.name) else []
    return found


async def test_files_of_both_sides_are_the_sessions_own(pool: ForkServerPool) -> None:
    session = await pool.open()
    await session.write("made/here/by-host", b"one")
    code = """
import os
with open("made/here/by-host", "a") as file: file.write(" two")
with open("made/by-code", "w") as file: file.write("three")
os.rename("made/here/by-host", "made/moved"); os.rmdir("made/here")
sorted({(os.stat(path).st_uid, os.stat(path).st_gid) for path in (".", "made", "made/moved")})
"""
    assert await value(session, code) == "[(1000, 1000)]"
    assert await session.read("made/moved") == b"one two"
    await session.write("made/by-code", b"four")
    assert await value(session, "open('made/by-code').read()") == "'four'"
    assert (
        await session.run(["sh", "-c", "stat -c %u:%g made made/*"])
    ).stdout == "1000:1000\n" * 3


async def test_the_host_reads_and_copies_what_the_code_locked(pool: ForkServerPool) -> None:
    session = await pool.open()
    code = """
import os
os.mkdir("closed"); open("closed/file", "w").write("x"); os.chmod("closed/file", 0)
os.chmod("closed", 0)
"""
    assert (await session.exec(code)).ok
    assert await session.read("closed/file") == b"x"
    assert [entry.name for entry in await session.entries("closed")] == ["file"]
    copy = await session.fork()
    for one in (session, copy):
        assert (await one.exec("open('closed/file')")).status == "error"
        seen = (
            "os.chmod('closed', 0o700); os.chmod('closed/file', 0o600); open('closed/file').read()"
        )
        assert await value(one, seen) == "'x'"
    await copy.write("closed/file", b"y")
    assert await value(copy, "open('closed/file').read(), os.stat('closed/file').st_uid") == (
        "('y', 1000)"
    )
    assert await session.read("closed/file") == b"x"


@as_root
async def test_descriptors_under_way_count_for_one_session(pool: ForkServerPool) -> None:
    one, other = await pool.open(), await pool.open()
    code = """
import socket
kept, error = [], None
for _ in range(100):
    ours, theirs = socket.socketpair()
    kept.append((ours, theirs))
    try: socket.send_fds(ours, [b"x"], [ours.fileno()] * 100)
    except OSError as failure: error = failure; break
type(error).__name__, error and error.errno
"""
    assert await value(one, code) == "('OSError', 109)"  # ETOOMANYREFS
    few = code.replace("range(100)", "range(1)")
    assert await value(other, few) == "('NoneType', None)"
    assert (await (await pool.open()).exec("1")).ok


@as_root
async def test_pages_of_pipes_count_for_one_session(pool: ForkServerPool) -> None:
    if not 0 < PIPE_PAGES <= 16 * 2400:
        pytest.skip("pages of pipes are not limited, or to more than a session can open")
    one, other = await pool.open(), await pool.open()
    look = "import fcntl, os; pipe = os.pipe(); fcntl.fcntl(pipe[0], 1032)"
    code = f"""
import os, time
done = os.pipe()
for _ in range(24):
    if os.fork() == 0:
        kept = []
        try:
            for _ in range(100): kept.append(os.pipe())
        finally:
            os.write(done[1], b"x"); time.sleep(60); os._exit(0)
for _ in range(24): os.read(done[0], 1)
{look}
"""
    full = int(await value(other, look) or "")
    first, _, rest = code.rpartition("import fcntl")
    assert (await one.exec(first)).ok
    assert int(await value(one, "import fcntl" + rest) or "") < full
    assert int(await value(other, look) or "") == full


async def test_sessions_go_before_keepers_and_these_before_the_trainer(
    pool: ForkServerPool,
) -> None:
    session = await pool.open()
    program = await sleeper(session)
    copy = await sleeper(await session.fork())
    number = next(_numbers)
    await session.run(["sh", "-c", f"sleep {number} &"])

    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    keeper = parent_of(parent_of(program))
    assert score(os.getpid()) < score(keeper) < score(parent_of(program))
    assert score(program) == score(copy) == score(running(number)) == score(parent_of(program))


# -- an ordinary user -----------------------------------------------------------------------------

_USER = 54321
_LENT = 2_000_000_000
_PROGRAM = """
import asyncio, os, sys
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox import layers

async def main():
    (row,) = [layer for layer in layers() if layer.name == "user id per session"]
    pool = ForkServerPool(SandboxSettings(backend=sys.argv[1]))
    one, other = await pool.open(), await pool.open()
    seen = [row.live]
    for number, session in enumerate((one, await one.fork(), other)):
        await session.write("d/x", b"1")
        code = f"import os, subprocess; subprocess.Popen(['/bin/sleep', '9090{number}'])\\n"
        code += "open('d/x', 'a').write('2'); os.chmod('d', 0); os.getuid(), os.getgroups()"
        seen += [(await session.exec(code)).value, await session.read("d/x")]
        seen.append((await session.run(["id", "-u"])).stdout)
    for path in os.listdir("/proc"):
        try: line, status = (open(f"/proc/{path}/{name}").read() for name in ("cmdline", "status"))
        except OSError: continue
        if "sleep" in line and "\\0" + "9090" in line:
            seen.append((line.split("\\0")[1], status.partition("Uid:")[2].split()[0]))
    await pool.close()
    print(seen[:10], sorted(seen[10:]))

asyncio.run(main())
"""


@pytest.fixture
def python() -> str:
    """Return an interpreter that every user can run."""
    for path in (sys.executable, "/usr/bin/python3"):
        look = "import asyncio, sys; sys.exit(sys.version_info < (3, 11))"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [path, "-c", look], user=_USER, group=_USER, capture_output=True, check=True
            )
            return path
    pytest.skip("no interpreter that every user can run")


@pytest.fixture
def user_machine(tmp_path: Path, root: Path, python: str) -> list[str]:
    """Return a command that runs `python -c $2 $3` as a user with a name and the ids of `$1`."""
    tmp_path.chmod(0o755)
    accounts = Path("/etc/passwd").read_text() + f"tester:x:{_USER}:{_USER}::/:/bin/sh\n"
    (tmp_path / "passwd").write_text(accounts)
    (tmp_path / "lent").write_text(f"tester:{_LENT}:65536\n")
    (tmp_path / "none").write_text("")
    script = f"""
        set -e
        cd {tmp_path}
        mount --bind passwd /etc/passwd
        for kind in subuid subgid; do mount --bind $1 /etc/$kind; done
        cd /
        export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={root}:{root}/sandbox
        exec setpriv --reuid {_USER} --regid {_USER} --groups 4242 {python} -c "$2" "$3"
    """
    return ["unshare", "--mount", "sh", "-c", textwrap.dedent(script), "sh"]


@as_root
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ids", ["lent", "none"])
def test_a_user_gets_what_subuid_lends_and_else_one_id(
    user_machine: list[str], ids: str, backend: str
) -> None:
    if shutil.which("newuidmap") is None or not os.path.exists("/etc/subuid"):
        pytest.skip("apt-get install uidmap")
    ran = subprocess.run(
        [*user_machine, ids, _PROGRAM, backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    line, _, users = ran.stdout.partition("] [")
    live, *seen = eval(f"{line}]")
    assert live == (ids == "lent")
    groups = [] if ids == "lent" else [65534]  # what an unknown one looks like from inside
    assert seen == [f"(1000, {groups})", b"12", "1000\n"] * 3
    found = dict[str, str](eval(f"[{users}"))
    assert sorted(found) == ["90900", "90901", "90902"]
    assert found["90900"] == found["90901"]
    if ids == "lent":
        assert found["90900"] != found["90902"]
        assert all(_LENT <= int(user) < _LENT + 65536 for user in found.values())
    else:
        assert set(found.values()) == {str(_USER)}

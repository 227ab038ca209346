"""Reaping: what a killed process held is removed, and nothing of a live one is.

Mutants seen caught: an owner judged by its lock alone, by its process alone, without its start
time, a zombie taken for alive, one of another boot and namespace taken for unknown; a live claim
that does not protect; a running container of another boot removed; a forked child that keeps the
lock; a lock that is dropped at once or never taken; a reaper in its owner's session, one that a
SIGTERM ends, one started per lease, one that clears only its own owner; descendants with a clean
environment spared; a directory of another name deleted.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.run_id import new_run_id, run_id, using_run_id
from agentrl.sandbox import Backend, Sandbox, SandboxSettings
from agentrl.testing.leaks import ProcessHoldings
from agentrl_sandbox.gc import collect as collect_leftovers
from agentrl_sandbox.inside.processes import descendants
from agentrl_sandbox.lease import LABEL_POOL, ResourceLease, labels, new_mark
from agentrl_sandbox.reaping import record, remove
from agentrl_sandbox.reaping.engine import containers
from agentrl_sandbox.reaping.owner import LeaseOwner, PidNamespace, start_ticks
from agentrl_sandbox.reaping.plan import (
    ORDER,
    FoundResource,
    LeasedResource,
    State,
    derive_state,
    removable,
)
from tests.support.processes import children, family

SOON_S = 30.0
"""How long anything may take on a machine that is busy with something else."""
HERE = PidNamespace("00000001", "a")
REBOOTED = PidNamespace("00000000", "a")
CONTAINER = PidNamespace("00000001", "b")


def until(done: Callable[[], bool], what: str, *, within_s: float = SOON_S) -> None:
    """Wait for a condition; fail when it does not come."""
    deadline_s = time.monotonic() + within_s
    while not done():
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what}: not within {within_s:g} s")
        time.sleep(0.02)


def until_gone(owner: "Running") -> None:
    """Wait until nothing is left of an owner; fail and say what is."""
    with suppress(pytest.fail.Exception):
        until(lambda: not owner.left(), "all is gone")
        return
    pytest.fail(f"left: {owner.left()}; leases: {[*owner.folder.glob('*')]}")


# -- the decision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "locked", "runs", "state"),
    [
        (HERE, True, True, "alive"),
        (HERE, True, False, "alive"),
        (HERE, False, True, "alive"),
        (HERE, False, False, "dead"),
        (REBOOTED, False, False, "dead"),
        (PidNamespace("00000000", "b"), False, False, "dead"),
        (CONTAINER, True, False, "alive"),
        (CONTAINER, False, False, "unknown"),
    ],
)
def test_an_owner_is_dead_when_neither_lock_nor_process_shows_it(
    world: PidNamespace, locked: bool, runs: bool, state: State
) -> None:
    owner = LeaseOwner(7, 100, world)
    assert derive_state(owner, here=HERE, locked=locked, running=runs) == state


def test_a_reused_process_id_is_another_owner() -> None:
    before, now = LeaseOwner(7, 100, HERE), LeaseOwner(7, 101, HERE)
    assert before != now


def test_what_is_removed_by_hand() -> None:
    dead, alive, far = LeaseOwner(1, 1, HERE), LeaseOwner(2, 1, HERE), LeaseOwner(3, 1, CONTAINER)
    old = LeaseOwner(4, 1, REBOOTED)
    states: dict[LeaseOwner, State] = {dead: "dead", alive: "alive", far: "unknown", old: "dead"}
    held = [
        FoundResource(LeasedResource("directory", "/a"), dead),
        FoundResource(LeasedResource("directory", "/b"), dead),
        FoundResource(LeasedResource("directory", "/b"), alive),
        FoundResource(LeasedResource("directory", "/c"), None),
        FoundResource(LeasedResource("container", "x", "/e"), far, running=True),
        FoundResource(LeasedResource("container", "y", "/e"), old, running=True),
        FoundResource(LeasedResource("container", "z", "/e"), old),
        FoundResource(LeasedResource("process", "p"), dead, running=True),
        FoundResource(LeasedResource("process", "p"), dead, running=True),
        FoundResource(LeasedResource("process", "q"), alive, running=True),
    ]
    removed = [h.resource.name for h in removable(held, states, here=HERE)]
    assert removed == ["p", "z", "/a"]
    everything = removable(held, states, here=HERE, unknown_too=True)
    assert [h.resource.name for h in everything] == ["p", "x", "y", "z", "/a", "/c"]


OWNERS = [LeaseOwner(pid, 1, world) for pid in (1, 2) for world in (HERE, REBOOTED, CONTAINER)]
held_things = st.builds(
    FoundResource,
    st.builds(LeasedResource, st.sampled_from(ORDER), st.sampled_from("abc")),
    st.sampled_from([None, *OWNERS]),
    st.booleans(),
)


@given(
    held=st.lists(held_things, max_size=12),
    running=st.sets(st.sampled_from(OWNERS)),
    locked=st.sets(st.sampled_from(OWNERS)),
    unknown_too=st.booleans(),
)
def test_never_anything_of_a_live_owner_and_everything_of_dead_ones(
    held: list[FoundResource], running: set[LeaseOwner], locked: set[LeaseOwner], unknown_too: bool
) -> None:
    states: dict[LeaseOwner, State] = {
        o: derive_state(o, here=HERE, locked=o in locked, running=o in running) for o in OWNERS
    }
    assert all(states[owner] == "alive" for owner in running | locked)
    chosen = removable(held, states, here=HERE, unknown_too=unknown_too)
    gone = {h.resource for h in chosen}
    kept = [h for h in held if h.resource not in gone]
    live = {h.resource for h in held if h.owner is not None and states[h.owner] == "alive"}
    assert len(gone) == len(chosen)
    assert not gone & live
    for thing in held:
        is_dead = thing.owner is not None and states[thing.owner] == "dead"
        ours = thing.owner is not None and thing.owner.world.boot == HERE.boot
        if is_dead and (ours or not thing.running) and thing.resource not in live:
            assert thing.resource in gone
    if not unknown_too:
        assert all(h.owner is not None and states[h.owner] == "dead" for h in chosen)
    else:
        assert {h.resource for h in kept} <= live
    assert removable(kept, states, here=HERE, unknown_too=unknown_too) == []
    places = [ORDER.index(h.resource.kind) for h in chosen]
    assert places == sorted(places)


@given(
    st.builds(
        LeaseOwner,
        st.integers(1, 2**22),
        st.integers(0, 2**40),
        st.builds(
            PidNamespace,
            st.text("0123456789abcdef", min_size=8, max_size=8),
            st.integers(1, 2**32).map("{:x}".format),
        ),
    )
)
def test_an_owner_is_found_in_whatever_it_named(owner: LeaseOwner) -> None:
    for text in (owner.text, f"/tmp/agentrl-sandbox-{owner.text}-0123abcd", f"{owner.text}-9f"):
        assert LeaseOwner.find(text) == owner
    assert LeaseOwner.find("agentrl-sandbox-k3j4h5") is None


def test_a_process_knows_itself_and_no_later_one_is_it() -> None:
    me = LeaseOwner.current()
    assert me.runs
    assert not LeaseOwner(me.pid, me.start_ticks + 1, me.world).runs
    assert not LeaseOwner(me.pid, me.start_ticks, PidNamespace("0" * 8, me.world.namespace)).runs
    ended = subprocess.Popen(["true"])
    until(lambda: start_ticks(ended.pid) is None, "a zombie has ended")
    ended.wait()


def test_a_run_has_one_id_and_a_process_has_one_without() -> None:
    assert run_id() == run_id()
    with using_run_id(new_run_id("night")):
        inside = run_id()
        assert inside.startswith("night-")
        assert asyncio.run(_run_id()) == inside
    assert run_id() != inside
    with pytest.raises(ValueError, match="is not a run id"), using_run_id("a b"):
        pass


async def _run_id() -> str:
    return run_id()


# -- owners that are killed -----------------------------------------------------------------------

OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from agentrl_sandbox.lease import ResourceLease, new_mark
place = sys.argv[1]
path = f"{place}/agentrl-sandbox-{new_mark()}"
directory = ResourceLease.take("directory", path)
os.makedirs(f"{path}/closed/" + "deep/" * 300)
os.symlink(f"{place}/outside", f"{path}/closed/link")
Path(path, "closed/file").write_text("x")
os.chmod(f"{path}/closed", 0)
processes = ResourceLease.take("process", new_mark())
# It leaves its parent and its session, and starts another with a clean environment.
command = "setsid env -i sleep 1000 & echo $! > $0/child; exec sleep 1000"
subprocess.Popen(["sh", "-c", command, path], env={**processes.environ, "PATH": os.environ["PATH"]},
                 start_new_session=True)
while not (Path(path, "child").exists() and Path(path, "child").read_text().strip()):
    time.sleep(0.01)
"""
WAIT = """
print(path, flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory whose path is short enough for sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="reap-", dir="/tmp"))
    (path / "outside").mkdir()
    (path / "outside" / "precious").touch()
    yield path
    for reaper in reapers(path):  # it may wait minutes for an engine that never was
        with suppress(ProcessLookupError):
            os.kill(reaper, signal.SIGKILL)
    until(lambda: not reapers(path), "no reaper is left to race with")
    subprocess.run(["chmod", "-R", "u+rwx", str(path)], check=True)
    shutil.rmtree(path)


def environment(place: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "AGENTRL_STATE": str(place / "state"),
        "TMPDIR": str(place),
        "DOCKER_HOST": f"unix://{place}/no-engine",
    }


class Running:
    """An owner in a process of its own, and the pids of what it started."""

    def __init__(self, place: Path, script: str, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(place)],
            env=environ or environment(place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._place = place
        self.below: set[tuple[int, int | None]] = set()
        self.said = self._line()
        me = start_ticks(self.process.pid)
        assert me is not None
        self.owner = LeaseOwner(self.process.pid, me, PidNamespace.current())
        self.below = {(pid, start_ticks(pid)) for pid in descendants(self.process.pid)}

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            self.close()
            pytest.fail("the owner ended early; its error is above")
        return line

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self._line() == "done"

    @property
    def folder(self) -> Path:
        return self._place / "state" / self.owner.text

    def kill(self) -> None:
        """Kill it with its whole group, as a terminal or a shell would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SOON_S)

    def alive(self) -> list[int]:
        """Return what it started and still runs."""
        return [pid for pid, started in self.below if started and start_ticks(pid) == started]

    def left(self) -> list[str]:
        """Return what is there and bears its name, or was started by it."""
        names = [str(path) for path in self._place.glob(f"agentrl-*{self.owner.text}*")]
        for directory, below, _ in os.walk("/sys/fs/cgroup"):
            names += [f"{directory}/{name}" for name in below if self.owner.text in name]
        return names + [f"process {pid}" for pid in self.alive()]

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.kill()
        self.process.wait(SOON_S)
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(
    place: Path, script: str = OWNER + WAIT, environ: dict[str, str] | None = None
) -> Generator[Running]:
    owner = Running(place, script, environ)
    try:
        yield owner
    finally:
        owner.close()


def reapers(place: Path) -> list[int]:
    """Return the reapers whose leases are in a place."""
    found: list[int] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if "reaping.reaper" in line and f"{place}/state" in line:
                found.append(int(pid))
    return [pid for pid in found if start_ticks(pid) is not None]


def the_reaper(place: Path) -> int:
    """Return the one reaper; its helper, which looks for earlier dead, ends by itself."""
    until(lambda: len(reapers(place)) == 1, "one reaper waits")
    return reapers(place)[0]


def collect(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.cli", "gc", *options]
    environ = {**environment(place), "COLUMNS": "400"}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def failures(done: subprocess.CompletedProcess[str], place: Path) -> list[str]:
    """Return what could not be removed of a place; the machine may hold other people's."""
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if "LEFT" in line and str(place) in line]


def test_everything_of_a_killed_owner_is_removed(place: Path) -> None:
    with running(place) as owner:
        assert len(owner.below) == 2
        assert the_reaper(place)
        assert (Path(owner.said) / "closed").exists()
        owner.kill()
        until_gone(owner)
        until(lambda: not reapers(place), "the reaper ends")
    assert [*(place / "state").iterdir()] == []
    assert (place / "outside" / "precious").exists()


def test_an_owner_that_ends_cleanly_leaves_no_reaper(place: Path) -> None:
    with running(place, OWNER + "directory.clear(); processes.clear()" + WAIT) as owner:
        assert reapers(place)
        assert not owner.left()
        assert owner.process.stdin is not None
        owner.process.stdin.close()
        assert owner.process.wait(SOON_S) == 0
        until(lambda: not reapers(place), "the reaper ends")
        assert [*(place / "state").iterdir()] == []


def test_a_killed_reaper_is_replaced_at_the_next_lease(place: Path) -> None:
    with running(place) as owner:
        first = the_reaper(place)
        os.kill(first, signal.SIGTERM)
        owner.do("ResourceLease.take('process', new_mark()).release()")
        assert the_reaper(place) == first
        os.kill(first, signal.SIGKILL)
        until(lambda: not record.is_locked(owner.folder / "reaper"), "the reaper is dead")
        owner.do("ResourceLease.take('process', new_mark()).release()")
        assert the_reaper(place) != first
        owner.kill()
        until(lambda: not owner.left(), "all is gone")


def test_gc_removes_what_no_reaper_did(place: Path) -> None:
    with running(place) as owner:
        reaper = the_reaper(place)
        os.kill(reaper, signal.SIGKILL)
        owner.kill()
        left = owner.left()
        assert len(left) == 3
        shown = collect(place, "--dry-run")
        assert (failures(shown, place), owner.left()) == ([], left)
        assert owner.said in shown.stdout
        assert "would be removed" in shown.stdout
        done = collect(place)
        assert (failures(done, place), owner.left()) == ([], [])
        assert owner.said in done.stdout
        assert f"process {owner.owner.pid}" in done.stdout
        assert [*(place / "state").iterdir()] == []
        assert owner.said not in collect(place).stdout


def test_the_next_owner_has_it_removed_too(place: Path) -> None:
    with running(place) as first:
        reaper = the_reaper(place)
        os.kill(reaper, signal.SIGKILL)
        first.kill()
        assert first.left()
        with running(place) as second:
            until(lambda: not first.left(), "what the first left is gone")
            assert len(second.left()) == 3


def test_nobody_touches_what_a_live_owner_holds(place: Path) -> None:
    with running(place) as one, running(place) as other:
        held = other.left()
        one.kill()
        until(lambda: not one.left(), "all of the one is gone")
        for options in ((), ("--all",)):
            assert not failures(collect(place, *options), place)
            assert other.left() == held
        # Without its leases, a live owner still shows by its process.
        shutil.rmtree(other.folder)
        assert not failures(collect(place), place)
        assert other.left() == held


def test_a_forked_process_does_not_keep_its_parent_alive(place: Path) -> None:
    fork = "pid = os.fork() or (os.setsid(), time.sleep(1000))\n"
    with running(place, OWNER + fork + WAIT) as owner:
        reaper = the_reaper(place)
        os.kill(reaper, signal.SIGKILL)
        forked = [pid for pid in owner.alive() if os.getsid(pid) == pid][-1]
        owner.kill()
        assert start_ticks(forked) is not None
        until(lambda: not record.is_locked(owner.folder), "the forked one let go of the lock")
        assert not failures(collect(place), place)
        assert not Path(owner.said).exists()


def planted(place: Path, owner: LeaseOwner, *, name: str | None = None, engine: str = "") -> Path:
    """Write a lease of some owner, and make its directory."""
    record.check_directory(place / "state", make=True)
    folder = place / "state" / owner.text
    folder.mkdir()
    if engine:
        record.write(folder, "a", LeasedResource("container", "agentrl.pool=x", engine), "run")
        return folder
    directory = place / (name or f"agentrl-sandbox-{os.urandom(4).hex()}")
    directory.mkdir(exist_ok=True)
    record.write(folder, "a", LeasedResource("directory", str(directory)), "run")
    return directory


def test_leases_of_another_boot_and_of_a_reused_process_id_are_stale(place: Path) -> None:
    me = LeaseOwner.current()
    rebooted = planted(
        place, LeaseOwner(me.pid, me.start_ticks, PidNamespace("0" * 8, me.world.namespace))
    )
    reused = planted(place, LeaseOwner(me.pid, me.start_ticks - 1, me.world))
    far = planted(place, LeaseOwner(me.pid, me.start_ticks, PidNamespace(me.world.boot, "1")))
    mine = planted(place, me)
    unnamed = place / "agentrl-sandbox-abc"
    unnamed.mkdir()
    done = collect(place)
    assert not failures(done, place)
    assert [path.exists() for path in (rebooted, reused, far, mine)] == [False, False, True, True]
    assert unnamed.exists()
    assert "kept" in done.stdout
    assert "--all" in done.stderr
    collect(place, "--all")
    assert [path.exists() for path in (far, mine, unnamed)] == [False, True, False]


def test_a_lock_shows_an_owner_whose_process_cannot_be_seen(place: Path) -> None:
    far = LeaseOwner(1, 1, PidNamespace(PidNamespace.current().boot, "1"))
    directory = planted(place, far)
    holder = subprocess.Popen(
        ["flock", "--exclusive", str(place / "state" / far.text), "cat"],
        stdin=subprocess.PIPE,
    )
    try:
        until(lambda: record.is_locked(place / "state" / far.text), "the lock is held")
        collect(place, "--all")
        assert directory.exists()
    finally:
        holder.communicate(timeout=SOON_S)
    collect(place, "--all")
    assert not directory.exists()


def test_a_damaged_lease_and_one_of_somebody_elses_directory_do_no_harm(place: Path) -> None:
    dead = LeaseOwner(2**22, 1, PidNamespace.current())
    precious = planted(place, dead, name="outside")
    folder = place / "state" / dead.text
    (folder / "b.lease").write_text('{"kind": "direc')
    (folder / "c.lease").write_text(json.dumps({"kind": "network", "name": "x", "engine": ""}))
    done = collect(place)
    assert done.returncode == 1
    assert "not an absolute path whose name starts with agentrl-" in done.stdout
    assert (precious / "precious").exists()
    (folder / "a.lease").unlink()
    assert not failures(collect(place), place)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["/etc", "agentrl-x", "/tmp/agentrl-x/..", "/tmp/x/../agentrl-x"])
def test_only_what_carries_our_name_is_deleted(name: str) -> None:
    for kind in ("directory", "cgroup"):
        with pytest.raises(remove.RemovalError, match="not an absolute path"):
            remove.remove(LeasedResource(kind, name))


def test_a_link_in_place_of_a_directory_is_not_followed(place: Path) -> None:
    link = place / "agentrl-sandbox-link"
    link.symlink_to(place / "outside")
    with pytest.raises(remove.RemovalError, match="is not a directory"):
        remove.remove(LeasedResource("directory", str(link)))
    assert (place / "outside" / "precious").exists()


def test_an_engine_that_does_not_answer_is_an_error_that_says_what_remains(place: Path) -> None:
    folder = planted(place, LeaseOwner(2**22, 1, PidNamespace.current()), engine=f"{place}/engine")
    done = collect(place)
    assert done.returncode == 1
    assert "agentrl.pool=x" in done.stdout
    assert f"the engine at {place}/engine does not answer" in done.stdout
    assert "agentrl gc again" in done.stderr
    assert folder.exists()


def test_an_engine_that_is_gone_for_good_is_forgotten_when_asked(place: Path) -> None:
    # Mutants: a dry run deletes; the silent engine still fails; any socket is taken.
    engine = f"{place}/engine"
    folder = planted(place, LeaseOwner(2**22, 1, PidNamespace.current()), engine=engine)
    elsewhere = collect(place, "--forget", f"{place}/other")
    assert f"no lease names an engine at {place}/other; those that are silent: {engine}" in (
        elsewhere.stderr.replace("\n", " ")
    )
    assert collect(place, "--forget", engine, "--dry-run").returncode == 0
    assert folder.exists()
    result = collect(place, "--forget", engine)
    assert (result.returncode, "forgotten" in result.stdout) == (0, True)
    assert not folder.exists()


def test_leases_are_refused_where_others_could_write_them(place: Path) -> None:
    (place / "state").mkdir(mode=0o755)
    done = collect(place)
    assert done.returncode == 2
    assert "mode 0700" in done.stderr
    script = "from agentrl_sandbox.lease import ResourceLease\nResourceLease.take('process', 'x')"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ConfigError" in ran.stderr
    assert "set AGENTRL_STATE" in ran.stderr


# -- leases of this process -----------------------------------------------------------------------


async def test_a_lease_is_on_disk_before_and_until(place: Path) -> None:
    before = ProcessHoldings.take()
    path = f"{place}/agentrl-sandbox-{new_mark()}"
    with using_run_id("night-1"), ResourceLease.take("directory", path) as lease:
        folder = record.state_directory() / LeaseOwner.current().text
        assert record.is_locked(folder)
        (found,) = [
            r for r in record.read(folder, LeaseOwner.current()) if r.held.resource.name == path
        ]
        assert json.loads(found.path.read_text())["run"] == "night-1"
        assert not before.find_leaks(ProcessHoldings.take())[1:], (
            "only the lock of the folder is held"
        )
    assert not found.path.exists()
    assert not before.find_leaks(ProcessHoldings.take())
    lease.release()
    assert labels("p").keys() == {"agentrl.run", "agentrl.pool", "agentrl.owner"}


def test_clear_removes_and_releases(place: Path) -> None:
    lease = ResourceLease.take("process", new_mark())
    process = subprocess.Popen(["sleep", "1000"], env=dict(lease.environ))
    lease.clear()
    assert process.wait(SOON_S) == -signal.SIGKILL
    lease.clear()
    bad = ResourceLease.take("directory", str(place / "outside"))
    with pytest.raises(SandboxError, match="outside remains"):
        bad.clear()
    bad.release()


def test_a_place_for_leases_that_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(record.StateError, match="does not exist; set AGENTRL_STATE"):
        record.check_directory(Path("/nonexistent/state"), make=True)
    assert not record.check_directory(Path("/nonexistent/state"), make=False)
    monkeypatch.setenv("AGENTRL_STATE", "/proc/self/environ")
    with pytest.raises(ConfigError, match="mode 0700"):
        list(collect_leftovers(dry_run=True, unknown_too=False, lost_engines=()))


# -- agent programs -------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from agentrl.task import Task
from agentrl_envs.blackbox import ProgramEndpoint
from agentrl_envs.blackbox.program import CommandProgram
say = "import os, sys, time; open(sys.argv[1], 'w').write(os.getcwd()); time.sleep(1000)"
async def main():
    program = CommandProgram(words=(sys.executable, "-c", say, f"{sys.argv[1]}/where"))
    endpoint = ProgramEndpoint(openai_url="", anthropic_url="", key="")
    running = asyncio.create_task(program.run(Task(prompt="x"), endpoint))
    while not (os.path.exists(f"{sys.argv[1]}/where") and open(f"{sys.argv[1]}/where").read()):
        await asyncio.sleep(0.01)
    print(open(f"{sys.argv[1]}/where").read(), flush=True)
    if sys.stdin.readline():
        running.cancel()
        await asyncio.wait([running])
        print("done", flush=True)
    await asyncio.sleep(1000)
import os
asyncio.run(main())
"""


def test_the_folder_of_an_agent_program_goes_with_its_trainer(place: Path) -> None:
    with running(place, PROGRAM) as owner:
        assert Path(owner.said, "task.json").exists()
        owner.kill()
        until(lambda: not Path(owner.said).exists(), "the reaper has removed it")
        until_gone(owner)


def test_the_folder_of_an_agent_program_goes_with_its_episode(place: Path) -> None:
    with running(place, PROGRAM) as owner:
        owner.do("end")
        assert not Path(owner.said).exists()
        assert not list((place / "state").glob("*/*.lease"))


@pytest.mark.parametrize("has_lease", [True, False], ids=["leased", "by its name"])
def test_gc_removes_the_folder_of_an_agent_program(place: Path, has_lease: bool) -> None:
    with running(place, PROGRAM) as owner:
        assert str(place) not in collect(place, "--dry-run").stdout, "its owner lives"
        os.kill(the_reaper(place), signal.SIGKILL)
        owner.kill()
        if not has_lease:
            shutil.rmtree(place / "state")
        assert owner.said in collect(place, "--dry-run").stdout
        assert Path(owner.said, "task.json").exists()
        assert not failures(collect(place), place)
        assert not owner.left()
        assert not Path(owner.said).exists()


# -- pools ----------------------------------------------------------------------------------------

POOLS = """
import asyncio, os, sys
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool
BACKGROUND = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True).pid"
async def main():
    settings = SandboxSettings(backend=sys.argv[2], allow_unisolated=sys.argv[2] == "process")
    pool = ForkServerPool(settings)
    sessions = [await pool.open() for _ in range(2)]
    for session in sessions:
        assert (await session.exec(BACKGROUND)).ok
    print("open", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
SLEEP = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True).pid"
LOCAL = [
    pytest.param("namespaces", marks=pytest.mark.namespaces),
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    "process",
]


@pytest.mark.parametrize("backend", LOCAL)
@pytest.mark.parametrize("group", [True, False], ids=["with its group", "alone"])
def test_nothing_is_left_of_the_pools_of_a_killed_trainer(
    place: Path, backend: Backend, group: bool
) -> None:
    script = POOLS.replace("sys.argv[2]", repr(backend))
    with running(place, script) as owner:
        assert len(owner.below) >= 5
        if group:
            owner.kill()
        else:
            owner.process.kill()
            owner.process.wait(SOON_S)
        until_gone(owner)


async def _until_it_raises(session: Sandbox) -> None:
    """Use a session until the end has reached whoever was behind it."""
    async with asyncio.timeout(SOON_S):
        while True:
            await session.exec("import time; time.sleep(0.05)")


@pytest.mark.parametrize("backend", LOCAL)
async def test_nothing_is_left_of_a_killed_supervisor(backend: Backend) -> None:
    from agentrl_sandbox import ForkServerPool

    before = children(os.getpid())
    pool = ForkServerPool(SandboxSettings(backend=backend, allow_unisolated=backend == "process"))
    try:
        session = await pool.open()
        assert (await session.exec(SLEEP)).ok
        (supervisor,) = {*children(os.getpid())} - {*before}
        made = {pid: start_ticks(pid) for pid in family(supervisor)}
        # The whole group, so that a bare process has nobody left who cleans up after it.
        assert os.getpgid(supervisor) == supervisor
        os.killpg(supervisor, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await _until_it_raises(session)
        again = await pool.open()
        assert (await again.exec("1 + 1")).value == "2"
        assert not [pid for pid, began in made.items() if began and start_ticks(pid) == began]
    finally:
        await pool.close()
    assert not [
        n for n in os.listdir(tempfile.gettempdir()) if LeaseOwner.find(n) == LeaseOwner.current()
    ]


@pytest.mark.docker
def test_nothing_is_left_of_the_containers_of_a_killed_trainer(place: Path) -> None:
    script = POOLS.replace("sys.argv[2]", repr("docker"))
    engine = "/var/run/docker.sock"
    environ = {**environment(place), "DOCKER_HOST": f"unix://{engine}"}
    with running(place, script, environ) as owner:
        label = f"agentrl.owner={owner.owner.text}"
        assert containers(engine, label)
        owner.kill()
        until(lambda: not containers(engine, label), "its containers are gone")
        until_gone(owner)


# -- an engine that dies --------------------------------------------------------------------------


class PrivateEngine:
    """A Docker engine of our own, which may be killed without harm to anybody's containers."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.socket = f"{place}/docker.sock"
        self._log = (place / "log").open("wb")
        (place / "containerd.toml").write_text("version = 2\n")
        # Apart, as on a real machine: what runs containers outlives the engine.
        self._below = self._run(
            *["containerd", "--config", f"{place}/containerd.toml", "--root", f"{place}/below"],
            *["--state", f"{place}/state-below", "--address", f"{place}/below.sock"],
        )
        until((place / "below.sock").exists, "containerd listens")
        self._process = self._start()

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def _start(self) -> subprocess.Popen[bytes]:
        place = self._place
        # In a network of its own: without a bridge it deletes the one of the engine that is there.
        command = ["unshare", "--net", "dockerd"]
        command += ["--data-root", f"{place}/data", "--exec-root", f"{place}/exec"]
        command += ["-H", f"unix://{self.socket}", "--pidfile", f"{place}/pid"]
        command += ["--bridge", "none", "--iptables=false", "--storage-driver", "vfs"]
        process = self._run(*command, "--containerd", f"{place}/below.sock")
        until(self._answers, f"{place}/log ends well", within_s=60)
        return process

    def _answers(self) -> bool:
        try:
            containers(self.socket, "x")
        except OSError:
            return False
        return True

    def _empty(self) -> bool:
        names = self.docker("ps", "--all", "--quiet").split()
        for name in names:
            # Just restarted, it refuses what it is about to do by itself.
            with suppress(subprocess.CalledProcessError):
                self.docker("rm", "--force", name)
        return not names

    def kill(self) -> None:
        """Kill the engine; what it runs goes on."""
        self._process.kill()
        self._process.wait(SOON_S)

    def restart(self) -> None:
        """Start the engine again."""
        # As an init system does: a dead engine's file would be taken for a live one's.
        (self._place / "pid").unlink(missing_ok=True)
        self._process = self._start()

    def docker(self, *command: str, stdin: bytes = b"") -> str:
        """Run the client."""
        ran = subprocess.run(
            ["docker", "-H", f"unix://{self.socket}", *command],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=True,
        )
        return ran.stdout.decode().strip()

    def import_image(self) -> None:
        """Make an image that can do nothing but sleep."""
        sleep = os.path.realpath(shutil.which("sleep") or "/bin/sleep")
        linked = subprocess.run(["ldd", sleep], capture_output=True, text=True, check=True).stdout
        files = [word for word in linked.split() if word.startswith("/")]
        command = ["tar", "--create", "--dereference", "--file=-", "--absolute-names"]
        packed = subprocess.run([*command, sleep, *files], capture_output=True, check=True).stdout
        self.docker("import", "-", "sleep", stdin=packed)

    def close(self) -> None:
        """End the containers, the engine, and what ran them."""
        try:
            if self._process.poll() is None:
                until(self._empty, "its containers are removed")
        finally:
            for process in (self._process, self._below):
                process.terminate()
                process.wait(60)
            self._log.close()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start an engine of its own")
def test_containers_go_also_when_the_engine_was_killed_with_the_trainer(place: Path) -> None:
    engine = PrivateEngine(place)
    try:
        engine.import_image()
        script = (
            "import sys\nfrom agentrl_sandbox.lease import ResourceLease, new_mark\n"
            f"path = new_mark()\nResourceLease.take('container', f'{LABEL_POOL}={{path}}', "
            f"engine={engine.socket!r})\n"
        )
        with running(place, script + WAIT) as owner, running(place, script + WAIT) as other:
            for who in (owner, other):
                label = f"--label={LABEL_POOL}={who.said}"
                engine.docker("run", "-d", "--net=none", label, "sleep", "sleep", "1000")
            engine.kill()
            owner.kill()
            time.sleep(1)  # the reaper finds no engine, and waits
            assert reapers(place)
            assert collect(place).returncode == 1
            engine.restart()
            until(lambda: not containers(engine.socket, f"{LABEL_POOL}={owner.said}"), "it is gone")
            assert len(containers(engine.socket, f"{LABEL_POOL}={other.said}")) == 1
            assert not failures(collect(place), place)
    finally:
        engine.close()
        for mount in reversed(Path("/proc/self/mounts").read_text().split("\n")):
            if (target := (mount.split() or ["", ""])[1:2]) and target[0].startswith(f"{place}/"):
                subprocess.run(["umount", target[0]], check=False)

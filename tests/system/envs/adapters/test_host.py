"""Hosts of other interpreters: one process that forks a child per episode.

Mutants seen caught: an episode that hangs, or whose caller is cancelled, not killed; a copy that
cannot be; a copy on its origin's channel; a dead episode's answers never given; a host that ends
with its first episode; our environment handed to a host; a library's release not compared, compared
as text, or compared after the library was imported; NumPy's random numbers the same in all
episodes; Python's others in a copy than in its origin.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, EnvError
from agentrl.runtime.json_limits import JsonLimits
from agentrl.runtime.scope import run_scope
from agentrl_envs.adapters.foreign_env import ForeignEpisode
from agentrl_envs.adapters.host import (
    HOSTED,
    Kind,
    LibraryHost,
    LibraryHostPool,
    LibraryLocation,
    ask_library,
)
from agentrl_envs.adapters.verifiers import VerifiersEnv
from tests.support.processes import parent_of, runs
from tests.support.watchdog import watched

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(LibraryLocation):
    """A host of `counting_kind.py`, under our own interpreter."""

    @property
    def command(self) -> tuple[str, ...]:
        """Return what starts it."""
        kind = Path(__file__).parents[3] / "support" / "counting_kind.py"
        return (self.python, "-I", "-S", str(HOSTED / "host.py"), str(kind), self.setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingWithPackages(Counting):
    """The same, which finds the packages of the interpreter."""

    @property
    def command(self) -> tuple[str, ...]:
        python, flag, _, *rest = Counting.command.__get__(self)
        return (python, flag, *rest)


def place(**settings: Any) -> LibraryLocation:
    return Counting(kind="gem", python=sys.executable, start_timeout_s=DEADLINE_S, **settings)


class Asker:
    """Asks one host."""

    def __init__(self, host: LibraryHost) -> None:
        self.host = host

    async def open(self, **params: Any) -> int:
        session = self.host.new_session()
        await self(session, "open", **params)
        return session

    async def __call__(
        self, session: int, method: str, *, within_s: float = DEADLINE_S, **params: Any
    ) -> Any:
        return await self.host.ask(method, params, session=session, timeout_s=within_s)


@pytest.fixture
async def ask() -> AsyncIterator[Asker]:
    host = await LibraryHost.start(place())
    yield Asker(host)
    await host.close()


async def ended(pid: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while runs(pid):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)


async def test_episodes_have_worlds_of_their_own(ask: Asker) -> None:
    one, other = await ask.open(), await ask.open(total=10)
    assert [await ask(one, "add", amount=n) for n in (1, 2)] == [1, 3]
    assert await ask(other, "add", amount=1) == 11
    pids = [await ask(session, "pid") for session in (one, other)]
    assert len({*pids, os.getpid()}) == 3
    assert len(await ask(one, "long", size=3_000_000)) == 3_000_000


@pytest.mark.parametrize("error", ["SystemExit", "ValueError"])
async def test_what_breaks_before_the_first_episode_ends_neither_it_nor_the_host(
    ask: Asker, error: str
) -> None:
    one = await ask.open(warm_up_raises=error)
    assert await ask(one, "add", amount=1) == 1


async def test_a_fork_goes_on_alone_and_outlives_its_origin(ask: Asker) -> None:
    origin = await ask.open()
    await ask(origin, "add", amount=5)
    copy = ask.host.new_session()
    await ask(copy, "fork", of=origin)
    again = ask.host.new_session()
    await ask(again, "fork", of=copy)
    assert await ask(origin, "add", amount=1) == 6
    pid = await ask(origin, "pid")
    await ask.host.kill(origin)
    await ended(pid)
    assert await ask(copy, "add", amount=2) == 7
    assert await ask(again, "add", amount=3) == 8
    for session in (copy, again):
        pid = await ask(session, "pid")
        await ask.host.kill(session)
        await ended(pid)


async def test_random_numbers_are_an_episodes_own_and_go_on_in_its_copies() -> None:
    """Those for the whole process, of Python and of NumPy, which each episode finds imported."""
    where = CountingWithPackages(
        kind="gem", python=sys.executable, start_timeout_s=DEADLINE_S, imports=("numpy.random",)
    )
    host = await LibraryHost.start(where)
    try:
        ask = Asker(host)
        one, other = await ask.open(), await ask.open()
        for drawn, others in zip(await ask(one, "draw"), await ask(other, "draw"), strict=True):
            assert drawn != others
        await ask(one, "seed", number=3)
        await ask(one, "draw")
        copy = host.new_session()
        await ask(copy, "fork", of=one)
        draws = await ask(copy, "draw")
        assert (len(draws), draws) == (2, await ask(one, "draw"))
    finally:
        await host.close()


async def test_a_copy_that_hangs_is_killed_too(ask: Asker) -> None:
    origin, copy = await ask.open(), ask.host.new_session()
    await ask(copy, "fork", of=origin)
    pid = await ask(copy, "pid")
    with pytest.raises(EnvError, match="hang took more than"):
        await ask(copy, "hang", within_s=0.3)
    await ended(pid)
    assert await ask(origin, "add", amount=1) == 1


async def test_an_episode_that_hangs_is_killed_and_nobody_else_notices(ask: Asker) -> None:
    stuck, other = await ask.open(), await ask.open()
    pid = await ask(stuck, "pid")
    with pytest.raises(EnvError, match=r"hang took more than 0\.3 s"):
        await ask(stuck, "hang", within_s=0.3)
    await ended(pid)
    assert await ask(other, "add", amount=1) == 1
    with pytest.raises(EnvError, match="there is no session"):
        await ask(stuck, "add", amount=1)


async def test_a_cancelled_caller_ends_its_episode(ask: Asker) -> None:
    session = await ask.open()
    pid = await ask(session, "pid")
    asking = asyncio.create_task(ask(session, "hang"))
    await asyncio.sleep(0)
    await ask(await ask.open(), "add", amount=1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ended(pid)


async def test_what_an_episode_raises_is_told_and_it_goes_on(ask: Asker) -> None:
    session = await ask.open()
    for method, told in (
        ("fail", "ValueError: wrong"),
        ("leave", "SystemExit: left"),
        ("fail_badly", r"UntoldError: \\ud800"),
        ("fail_untold", "UntoldError: its text raises IndexError"),
    ):
        with pytest.raises(EnvError, match=f"gem: {method}: {told}"):
            await ask(session, method)
    assert await ask(session, "add", amount=1) == 1


@watched
async def test_an_answer_beyond_the_limits_is_a_failure_of_that_episode(ask: Asker) -> None:
    session, other = await ask.open(), await ask.open()
    with pytest.raises(EnvError, match="nested more than 64 deep"):
        await ask(session, "nest", depth=400)
    with pytest.raises(EnvError, match=r"the answer has 17000\d* bytes, but the limit is"):
        await ask(session, "long", size=17_000_000)
    assert await ask(session, "add", amount=1) == 1
    assert await ask(other, "add", amount=2) == 2


async def test_an_episode_that_dies_is_a_failure_at_once(ask: Asker) -> None:
    session = await ask.open()
    with pytest.raises(EnvError, match="its process ended with code 7"):
        await ask(session, "crash")


async def test_a_host_that_dies_is_a_failure_and_the_next_one_is_started() -> None:
    async with run_scope():
        hosts = await LibraryHostPool.find_shared(place())
        assert hosts is not None
        assert await LibraryHostPool.find_shared(place()) is hosts
        host = await hosts.host()
        assert await hosts.host() is host
        ask = Asker(host)
        session = await ask.open()
        pid = await ask(session, "pid")
        os.kill(parent_of(pid), signal.SIGKILL)
        with pytest.raises(EnvError, match="host"):
            await ask(session, "hang")
        ask = Asker(await hosts.host())
        assert await ask(await ask.open(), "add", amount=1) == 1
    await ended(pid)


async def test_a_host_sees_no_variable_but_those_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("WANTED", "y")
    host = await LibraryHost.start(place(pass_env=("WANTED",)))
    try:
        ask = Asker(host)
        seen = {*await ask(await ask.open(), "variables")} - {"LC_CTYPE"}
    finally:
        await host.close()
    assert seen == {"AGENTRL_LEASE", "PATH", "WANTED"}
    with pytest.raises(ConfigError, match="NOT_THERE"):
        await LibraryHost.start(place(pass_env=("NOT_THERE",)))


async def test_a_library_that_cannot_be_imported_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_LIBRARY", "1")
    with pytest.raises(ConfigError, match="cannot host gem: ImportError: no such library"):
        await LibraryHost.start(place(pass_env=("NO_LIBRARY",)))
    with pytest.raises(ConfigError, match="no program"):
        await LibraryHost.start(LibraryLocation(kind="gem", python="/no/such/python"))


async def test_an_import_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW_S", "3600")
    slow = Counting(kind="gem", python=sys.executable, pass_env=("SLOW_S",), start_timeout_s=0.5)
    with pytest.raises(EnvError, match=r"did not import gem in 0\.5 s"):
        await LibraryHost.start(slow)


async def test_outside_of_a_run_a_host_ends_with_its_last_user() -> None:
    episode = ForeignEpisode(place(), timeout_s=DEADLINE_S)
    await episode.open({"total": 5})
    first = await episode.ask("pid", {})
    host = parent_of(first)
    await episode.open({"total": 1})
    assert (second := await episode.ask("pid", {})) != first
    assert parent_of(second) == host
    copy = await episode.fork()
    pid = await copy.ask("pid", {})
    await episode.close()
    await episode.close()
    assert await copy.ask("add", {"amount": 1}) == 2
    await copy.close()
    assert not any(map(runs, (first, pid, host)))
    with pytest.raises(RuntimeError, match="no episode is running"):
        await copy.ask("pid", {})


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ('"[" * 5_000', "nested more than 64 deep"),
        ("'{\"id\": 1, \"result\": ' + '9' * 5_000 + '}'", "more than 308 digits"),
        ("'no tasks today'", "broken JSON"),
        ('\'{"id": 1, "error": "no such taskset"}\'', "no such taskset"),
        (
            '\'{"id": 1, "error": "ModuleNotFoundError: No module named 1"}\'',
            "named 1; set python in env.kwargs to the interpreter of a venv that has the package$",
        ),
        (
            '\'{"id": 1, "error": "NamespaceNotFound: Namespace b not found."}\'',
            "not found. Set imports in env.kwargs to the modules that register it.$",
        ),
        ("[1]", r"cannot be read with .*: \[1\]$"),
        ("'', end=''", "cannot be read with .*: $"),
    ],
)
def test_tasks_beyond_the_limits_are_refused(tmp_path: Path, said: str, wrong: str) -> None:
    """Whatever the interpreter of a taskset says instead of its tasks."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable} -IS\nprint({said})\n")
    python.chmod(0o755)
    env = VerifiersEnv("words", python=str(python))
    with pytest.raises(ConfigError, match=wrong):
        next(iter(env.tasks("train")))


@pytest.mark.parametrize(
    ("kind", "package", "old", "oldest"),
    [
        ("gem", "gem_llm", "0.0.3", "gem-llm>=0.0.4"),
        ("inspect", "inspect_ai", "0.3.99", "inspect-ai>=0.3.275"),
        ("math", "math_verify", "0.8.5", "math-verify>=0.9"),
        ("openenv", "websockets", "14.2", "websockets>=15.0"),
        ("verifiers", "verifiers", "0.1.14", "verifiers>=0.4.0"),
    ],
)
async def test_a_release_that_is_too_old_is_named_before_it_is_imported(
    kind: Kind, package: str, old: str, oldest: str, tmp_path: Path
) -> None:
    metadata = tmp_path / f"{package}-{old}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {old}\n")
    place = LibraryLocation(kind=kind, python=sys.executable, path=(str(tmp_path),))
    words = f"{oldest.split('>=')[0]} {old} is too old, .* -m pip install '{oldest}'"
    with pytest.raises(ConfigError, match=words):
        await LibraryHost.start(place)
    with pytest.raises(ConfigError, match=words):
        ask_library(place, {}, JsonLimits(), what="its tasks")


def test_a_process_that_a_taskset_leaves_behind_ends_with_its_listing(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable} -IS\nimport subprocess\n"
        "process = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(left)!r}, 'w').write(str(process.pid))\n"
        'print(\'{"id": 1, "result": []}\')\n'
    )
    python.chmod(0o755)
    env = VerifiersEnv("words", python=str(python), start_timeout_s=DEADLINE_S)
    assert not [*env.tasks("train")]
    assert not runs(int(left.read_text()))


@pytest.mark.parametrize(
    ("line", "stage"),
    [("", "was still importing verifiers"), ("ready", "had not answered, having imported")],
)
def test_a_taskset_that_hangs_is_refused_with_what_can_be_done(
    tmp_path: Path, line: str, stage: str
) -> None:
    # Mutant: the two are exchanged.
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{line}'\nexec sleep 1000\n")
    python.chmod(0o755)
    env = VerifiersEnv("words", python=str(python), start_timeout_s=0.6)
    match = rf"after 0\.6 s .* {stage}.*; find out where it hangs"
    with pytest.raises(ConfigError, match=match):
        next(iter(env.tasks("train")))

"""Every attack of the table against every back-end, one pool for each; most of them are nightly
but on the default back-end.

Contained means: a canary session beside the attacker, the pool and this process go on as before,
the attacker's own session says what happened and goes on, and nothing is left behind. Where the
table says that a back-end does not contain an attack, that is asserted too, so that the table, and
docs/security.md with it, can neither boast nor complain.

Mutants of the sandbox that were run, and the attack that caught each. No filter: deep-kernel-calls.
Capabilities kept: privileges. Sessions without a network namespace: plunder-a-neighbour. Without an
IPC namespace, System V calls allowed: the same. Without a process namespace: see-processes. The
machine's network: tcp. Root writable, no Landlock, one user: files-without-a-name. Files of /etc
bound: host-files. The trainer's environment kept: environment. Nonce not checked: forge-from-the-
cell. Late messages dropped instead of noticed: forge-from-a-thread-afterwards. Messages of any
size: forge-from-the-cell. No deadline: endless-loop. Dumpable interpreters: plunder-a-copy. No
Landlock, or none for copies: kill-a-copy. Copies with the original's network: plunder-the-original.
A copy that keeps the original's channel: speak-for-the-original. Namespaces of a copy not looked
at: false-copy. RLIMIT_AS, _CPU or _FSIZE missing: raise-limits. RLIMIT_NOFILE missing: open-files;
set before the greeting: descriptors-under-way. RLIMIT_SIGPENDING missing, or inotify allowed, with
one user: per-user-quotas. RLIMIT_NPROC missing, no cgroups: command-fork-bomb. No cgroups: memory-
of-a-tree. Memory files allowed, no cgroups: memory-in-memfds. File systems without a size: disk-
many-files; without a number of files: disk-inodes. Links followed: traps-for-the-host. Directories
left by a command's cwd: command-arguments. Events of closed descriptors handled: command-arguments.
Orphans not adopted, or strays not killed, in `process`: daemon-outlives-deadline. Output kept
whole: flood-stderr.

Not caught alone, for another layer holds it: no IPC namespace (filter), no RLIMIT_NPROC and memory
files (cgroups), one of two checks for links, `kill -1` allowed (users, Landlock, and the keeper is
process 1), a writable root (Landlock), no signal when a parent dies (strays are killed).
"""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from agentrl.sandbox import Backend
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from tests.conftest import PARTS
from tests.support.examples import spread_cases
from tests.system.security.arena import Arena, process_namespaces
from tests.system.security.attack import BACKENDS, Attack
from tests.system.security.table import ATTACKS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


def _marks(backend: Backend) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, backend)] if backend in PARTS else []


HERE: tuple[Backend, ...] = tuple(b for b in BACKENDS if b in PARTS or b == "process")
PAIRS = {
    backend: [
        pytest.param(backend, attack, id=f"{backend}-{attack.name}", marks=_marks(backend))
        for attack in ATTACKS
        if backend not in attack.gaps or attack.gaps[backend].shown
    ]
    for backend in HERE
}
CI_STRIDE = 3
"""Of the attacks on a back-end that is not the default, one in so many is not nightly."""
CHOSEN = [
    pair
    for backend, pairs in PAIRS.items()
    for pair in (pairs if backend == "namespaces" else spread_cases(pairs, len(pairs) // CI_STRIDE))
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena(request: pytest.FixtureRequest) -> AsyncIterator[Arena]:
    started = await Arena.start(cast(Backend, request.param))
    yield started
    await started.close()


# Without a scope here, that of a function would hold for the fixture too: a pool for each attack.
@pytest.mark.parametrize(("arena", "attack"), CHOSEN, indirect=["arena"], scope="module")
async def test_attack(arena: Arena, attack: Attack) -> None:
    found = await arena.attack(attack)
    if found:
        await arena.renew()
    gap = attack.gaps.get(arena.backend)
    if gap is None or (gap.unless and not PARTS[gap.unless]()):
        assert not found, found
    else:
        assert found, f"{arena.backend} contains {attack.name} after all: correct the table"


@pytest.mark.namespaces
@pytest.mark.cgroup
async def test_sockets_are_counted_where_there_is_a_cgroup() -> None:
    """Not in the table's runs: elsewhere the kernel's own bounds for the machine decide.

    Kills: no limit on sockets with cgroup v1, where they are counted only for that.
    """
    (attack,) = (attack for attack in ATTACKS if attack.name == "memory-in-sockets")
    arena = await Arena.start("namespaces")
    try:
        assert not await arena.attack(attack)
    finally:
        await arena.close()


@pytest.mark.parametrize("backend", [pytest.param(b, marks=_marks(b)) for b in HERE])
async def test_nothing_is_left_when_the_pool_ends_in_the_middle_of_attacks(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops, daemons and forks are all running when the pool is closed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = ProcessHoldings.take()
    arena = await Arena.start(backend)
    daemon = "import os\nif os.fork() == 0:\n  os.setsid()\n  while True: pass\nwhile True: pass"
    sessions = [await arena.pool.open() for _ in range(3)]
    sessions.append(await sessions[0].fork())
    link = "__import__('os').readlink('/proc/self/ns/pid')"
    namespaces = {((await s.exec(link)).value or "").strip("'") for s in sessions}
    running = [asyncio.create_task(s.exec(daemon)) for s in sessions]
    await asyncio.sleep(0.3)
    async with asyncio.timeout(120):
        await arena.close()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, BaseException) or not result.ok for result in results)
    await check_no_leak(before, grace_s=60)
    assert not list(await asyncio.to_thread(os.listdir, tmp_path))
    if backend != "process":
        await asyncio.to_thread(_wait_until_empty, namespaces)


def _wait_until_empty(namespaces: set[str]) -> None:
    deadline_s = time.monotonic() + 60
    while inside := namespaces & set(process_namespaces().values()):
        assert time.monotonic() < deadline_s, inside
        time.sleep(0.05)

"""Verifiers that are not ours run in processes that can be killed."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import say
from agentrl.errors import VerifierError
from agentrl.rollout.scheduler.topology import check_failures
from agentrl.runtime.scope import run_scope
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished
from agentrl_envs.reasoning import ReasoningEnv
from agentrl_envs.reasoning.family import ReasoningFamily
from agentrl_envs.reasoning.mixture import mixture
from agentrl_envs.reasoning.tasks import entry_of
from agentrl_envs.reasoning.verifiers import VerifierPool
from tests.support.processes import children, family, runs
from tests.support.watchdog import watched_loop

ENDLESS = "tan(exp(exp(exp(3))))"
"""No answer that `guard` lets through; the pool asks whatever it is given."""


def problem(name: str) -> tuple[ReasoningFamily, Task]:
    made = mixture(name)[name]
    (task,) = islice(ReasoningEnv(families=name).tasks("train"), 1)
    return made, task


@pytest.fixture
async def pools() -> AsyncIterator[Any]:
    opened: list[VerifierPool] = []

    def pool(**settings: Any) -> VerifierPool:
        opened.append(VerifierPool(**settings))
        return opened[-1]

    yield pool
    for one in opened:
        await one.close()


async def test_verdicts_are_those_of_this_process(pools: Any) -> None:
    pool = pools()
    for name, answer in (("spell_backward", "ab"), ("chain_sum", "5"), ("countdown", "1 + 1")):
        verifier, task = problem(name)
        expected = verifier.judge(answer, entry_of(task))
        assert await pool.judge(verifier, task, answer) == expected


async def test_a_late_verifier_is_killed_and_others_go_on(pools: Any) -> None:
    pool = pools(workers=2, verdict_cpu_s=0.3)
    verifier, task = problem("countdown")
    async with watched_loop():
        late = asyncio.create_task(pool.judge(verifier, task, ENDLESS))
        assert await pool.judge(verifier, task, "1 + 1") == 0.05
        with pytest.raises(VerifierError, match=r"'countdown'.*took more processor time"):
            await late
        scores = await asyncio.gather(*(pool.judge(verifier, task, "1 + 1") for _ in range(4)))
    assert scores == [0.05] * 4


async def test_a_verifier_that_takes_memory_is_killed(pools: Any) -> None:
    pool = pools(memory_bytes=2**23, verdict_cpu_s=60.0)
    verifier, task = problem("countdown")
    with pytest.raises(VerifierError, match="took more memory"):
        await pool.judge(verifier, task, "+".join(f"a{n}" for n in range(20_000)))


async def test_a_worker_that_is_killed_is_replaced(pools: Any) -> None:
    pool = pools(workers=1)
    verifier, task = problem("countdown")
    before = set(children(os.getpid()))
    assert await pool.judge(verifier, task, "1 + 1") == 0.05
    (host,) = set(children(os.getpid())) - before
    (idle,) = children(host)
    os.kill(idle, signal.SIGKILL)
    await gone(idle)
    assert await pool.judge(verifier, task, "1 + 1") == 0.05
    late = asyncio.create_task(pool.judge(verifier, task, ENDLESS))
    busy = await busy_worker(host)
    os.kill(busy, signal.SIGKILL)
    with pytest.raises(VerifierError, match="killed by signal 9"):
        await late
    late = asyncio.create_task(pool.judge(verifier, task, ENDLESS))
    worker = await busy_worker(host)
    os.kill(host, signal.SIGKILL)
    with pytest.raises(VerifierError):
        await late
    await gone(worker)
    assert await pool.judge(verifier, task, "1 + 1") == 0.05


async def test_a_cancelled_caller_leaves_no_work(pools: Any) -> None:
    pool = pools(workers=1)
    verifier, task = problem("countdown")
    before = set(children(os.getpid()))
    assert await pool.judge(verifier, task, "1 + 1") == 0.05
    (host,) = set(children(os.getpid())) - before
    late = asyncio.create_task(pool.judge(verifier, task, ENDLESS))
    worker = await busy_worker(host)
    late.cancel()
    await asyncio.wait([late])
    assert late.cancelled()
    await gone(worker)
    assert await pool.judge(verifier, task, "1 + 1") == 0.05


async def test_a_run_shares_its_workers_and_ends_them() -> None:
    before = set(children(os.getpid()))
    async with run_scope():
        (task,) = islice(ReasoningEnv(families="spell_backward").tasks("train"), 1)
        for _ in range(3):
            env = ReasoningEnv(families="spell_backward")
            await env.reset(seed=0, options={"task": task})
            await env.step(say("wrong"))
            await env.close()
        (host,) = set(children(os.getpid())) - before
        processes = family(host)
        assert len(processes) == 2
    for process in processes:
        await gone(process)


async def test_an_environment_without_a_run_has_its_own() -> None:
    before = set(children(os.getpid()))
    env = ReasoningEnv(families="spell_backward")
    for _ in range(2):
        await env.reset(seed=0)
        await env.step(say("wrong"))
    (host,) = set(children(os.getpid())) - before
    await env.close()
    await gone(host)


SCRIPT = f"""
import asyncio
from itertools import islice
from agentrl_envs.reasoning import ReasoningEnv
from agentrl_envs.reasoning.mixture import mixture
from agentrl_envs.reasoning.verifiers import VerifierPool

async def main():
    pool = VerifierPool(workers=1, verdict_cpu_s=600.0)
    (task,) = islice(ReasoningEnv(families="countdown").tasks("train"), 1)
    verifier = mixture("countdown")["countdown"]
    await pool.judge(verifier, task, "1 + 1")
    print("ready", flush=True)
    await pool.judge(verifier, task, {ENDLESS!r})

asyncio.run(main())
"""


async def test_nothing_outlives_a_kill() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, stdout=asyncio.subprocess.PIPE, env=env
    )
    assert run.stdout is not None
    assert await run.stdout.readline() == b"ready\n"
    (host,) = [child for child in children(run.pid) if children(child)]
    await busy_worker(host)
    processes = family(run.pid)
    run.kill()
    await run.wait()
    assert len(processes) >= 3
    for process in processes:
        await gone(process)


def test_a_verifier_without_a_verdict_stops_no_run() -> None:
    failed = [Failed("verifier", "late")] * 4
    check_failures([*failed, Finished(0.0)], max_failed_fraction=0.0)


async def gone(process: int) -> None:
    await until(lambda: not runs(process))


async def busy_worker(host: int) -> int:
    """Return a host's worker that has computed for a while and still does."""
    await until(lambda: any(map(is_busy, children(host))))
    return next(filter(is_busy, children(host)))


async def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {within_s:g} s")


def is_busy(process: int) -> bool:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[11]) > 20

"""Our own program, forked from a process that has loaded what it needs: sooner there, no other.

Mutants seen caught: it can be read, or its forks cannot; it ends with an episode; forks are its own
children; it has a display; its end ends the desktop, or goes unnoticed; it is there before any
form; it is never asked.
"""

import os
import signal
from collections.abc import AsyncGenerator
from itertools import islice

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import call
from agentrl.errors import EnvError
from agentrl.task import Task
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.tasks import template_pack
from tests.support.desktops import BACKENDS, desktop_of, processes_of
from tests.support.examples import spread_cases

pytestmark = pytest.mark.asyncio(loop_scope="module")
PACK = template_pack(templates=["press"])
_PEEK = """
import contextlib, os
for pid in filter(str.isdecimal, os.listdir("/proc")):
    line = b""
    with contextlib.suppress(OSError):
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    if b"inside." + b"zygote" in line:
        try:
            print(len(open(f"/proc/{pid}/environ", "rb").read()))
        except PermissionError:
            print("refused")
"""


@pytest_asyncio.fixture(params=spread_cases(BACKENDS, 1), scope="module", loop_scope="module")
async def pool(request: pytest.FixtureRequest) -> AsyncGenerator[DesktopPool]:
    """One desktop at a time."""
    made = DesktopPool(
        DesktopSettings(
            backend=request.param,
            desktops=1,
            warm=0,
            call_s=120,
            open_s=120,
            start_s=120,
            settle_s=20,
            recycle_after=100,
        )
    )
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def env(pool: DesktopPool) -> AsyncGenerator[GuiEnv]:
    made = GuiEnv(pack=PACK, desktop=pool, observation=["axtree", "screenshot"])
    yield made
    await made.close()


@pytest.fixture
def task() -> Task:
    (made,) = islice(PACK.tasks("heldout", 1), 1)
    return made


async def test_the_next_form_is_forked_and_is_no_other(
    pool: DesktopPool, env: GuiEnv, task: Task
) -> None:
    """The first one of a desktop is not: a desktop on which there are no forms holds no more."""
    dialog = GuiEnv(pack=template_pack(templates=["enter_code"]), desktop=pool)
    await dialog.reset(seed=0)
    await dialog.close()
    first, _ = await env.reset(options={"task": task})
    assert len(processes_of(env, "inside.form")) == 1
    assert not processes_of(env, "inside.zygote")
    for _ in range(2):
        opening, _ = await env.reset(options={"task": task})
        assert not processes_of(env, "inside.form")
        assert len(processes_of(env, "inside.zygote")) == 2, "it, and its fork"
        assert opening == first
    assert (await play_gold(env, task)).reward == 1


async def test_a_fork_that_crashes_is_no_reward(env: GuiEnv, task: Task) -> None:
    """It is a child of the first process, as any other program is."""
    await env.reset(options={"task": task})
    await env.reset(options={"task": task})
    os.kill(processes_of(env, "inside.zygote")[-1], signal.SIGSEGV)
    await env.step(call("computer", action="wait", seconds=0.5))
    with pytest.raises(EnvError, match="crashed"):
        await env.step(call("computer", action="done"))


async def test_no_program_of_an_episode_can_read_it(env: GuiEnv, task: Task) -> None:
    await env.reset(options={"task": task})
    await env.reset(options={"task": task})
    asked = await desktop_of(env).ask("run", command=["python3", "-c", _PEEK], limit_s=60.0)
    said = asked.blob[: asked.body["out_bytes"]].decode().split()
    assert len(said) == 2
    assert said.count("refused") == 1, "the fork is a program as any other"


async def test_without_it_a_form_starts_as_any_program(env: GuiEnv, task: Task) -> None:
    first, _ = await env.reset(options={"task": task})
    await env.reset(options={"task": task})
    desktop = desktop_of(env)
    os.kill(processes_of(env, "inside.zygote")[0], signal.SIGKILL)
    opening, _ = await env.reset(options={"task": task})
    assert desktop_of(env) is desktop
    assert len(processes_of(env, "inside.form")) == 1
    assert not processes_of(env, "inside.zygote")
    assert opening == first
    await env.reset(options={"task": task})
    assert len(processes_of(env, "inside.zygote")) == 2, "another one was made"

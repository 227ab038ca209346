"""Desktops that break under an episode: recovered from, or an infrastructure failure of it.

With every back-end.
"""

import os
import signal
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import Step, call
from agentrl.errors import ConfigError, EnvError
from agentrl.task import Split, Task
from agentrl_envs.accessibility.reading import read
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSession, DesktopSettings
from agentrl_envs.gui.inside.form import COMMAND, STATE
from agentrl_envs.gui.world import DesktopScene, LiveDesktop, TaskVerdict
from agentrl_envs.pooled import PoolPermits
from tests.support.desktops import BACKENDS, desktop_of, processes_of
from tests.support.examples import spread_cases

pytestmark = pytest.mark.asyncio(loop_scope="module")

PANEL = b'{"kind": "panel", "title": "Panel", "buttons": ["One", "Two"], "columns": 2}'
FORM = [*COMMAND, "/home/user/form/form.json"]
GONE_S = 60.0


@dataclass(slots=True)
class Pack:
    """One task: press One. Beside its program others can be there."""

    programs: Sequence[Sequence[str]] = ()
    form: Sequence[Sequence[str]] = (FORM,)
    has_gold: bool = field(default=False, init=False)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        yield Task(prompt="Press One.", id=f"one-{split}", split=split, seed=seed)

    def scene(self, task: Task) -> DesktopScene:
        return DesktopScene(
            goal="Press One.",
            files={"form/form.json": PANEL},
            programs=[*self.form, *self.programs],
        )

    async def judge(
        self, task: Task, desktop: LiveDesktop, said: str | None, *, failed: bool
    ) -> TaskVerdict:
        return TaskVerdict(reward=float(await desktop.read(f"form/{STATE}") == b'["One"]'))

    def gold(self, task: Task, seen: Any) -> Any:
        raise KeyError(task.id)


@pytest.fixture(scope="module", params=spread_cases(BACKENDS, 1))
def settings(request: pytest.FixtureRequest) -> DesktopSettings:
    return DesktopSettings(
        backend=request.param, desktops=3, warm=0, call_s=120, start_s=60, settle_s=20
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(settings: DesktopSettings) -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(settings)
    yield made
    await made.close()


def process_of(env: GuiEnv, name: str) -> int:
    """Return the pid here of the program on an environment's desktop that is called so."""
    return processes_of(env, name)[0]


def form_of(env: GuiEnv) -> int:
    """Return the pid here of the form, whatever it was forked from."""
    return processes_of(env, "gui.inside.")[-1]


def shown(step: Step) -> str:
    return step[0].messages[-1].text


async def does(env: GuiEnv, action: str, **arguments: Any) -> Step:
    return await env.step(call("computer", action=action, **arguments))


async def begun(pool: DesktopPool, *programs: Sequence[str], **settings: Any) -> tuple[GuiEnv, str]:
    env = GuiEnv(pack=Pack(programs), desktop=pool, **settings)
    opening, _ = await env.reset(seed=0)
    return env, opening.messages[-1].text


@pytest.mark.parametrize("part", ["Xvfb", "jwm", "agent.zip"])
async def test_a_part_that_dies_fails_the_episode_and_not_the_next(
    pool: DesktopPool, part: str
) -> None:
    env, text = await begun(pool)
    button = read(text).id("button", "One")
    broken = desktop_of(env)
    os.kill(process_of(env, part), signal.SIGKILL)
    with pytest.raises(EnvError):
        await does(env, "click", element=button)
    with pytest.raises(RuntimeError):
        await does(env, "done")
    opening, _ = await env.reset(seed=0)
    assert desktop_of(env) is not broken
    await does(env, "click", element=read(opening.messages[-1].text).id("button", "One"))
    assert (await does(env, "done"))[1] == 1.0
    await env.close()


@pytest.mark.parametrize("part", ["Xvfb", "jwm"])
async def test_a_desktop_that_broke_is_not_judged(pool: DesktopPool, part: str) -> None:
    env, text = await begun(pool)
    await does(env, "click", element=read(text).id("button", "One"))
    os.kill(process_of(env, part), signal.SIGKILL)
    with pytest.raises(EnvError):
        await does(env, "done")
    await env.close()


async def test_a_desktop_that_does_not_answer_is_lost(settings: DesktopSettings) -> None:
    small = DesktopPool(settings)
    try:
        env, text = await begun(small)
        broken = desktop_of(env)
        broken.settings = replace(settings, call_s=5, settle_s=1)
        os.kill(process_of(env, "Xvfb"), signal.SIGSTOP)
        with pytest.raises(EnvError, match="did not answer within"):
            await does(env, "click", element=read(text).id("button", "One"))
        await env.close()
        await small.wait_until_ready()
        assert not broken.sound
        assert small.figures()["ready"] == 0
    finally:
        await small.close()


async def test_a_program_that_hangs_is_named_and_is_no_reward(pool: DesktopPool) -> None:
    env, text = await begun(pool, observation_kwargs={"deadline_s": 2})
    button = read(text).id("button", "One")
    pid = form_of(env)
    os.kill(pid, signal.SIGSTOP)
    step = await does(env, "screenshot")
    assert "notice: the program of 'Panel' does not answer" in shown(step)
    assert "no longer visible" in shown(await does(env, "click", element=button))
    os.kill(pid, signal.SIGCONT)
    back = read(shown(await does(env, "wait", seconds=0.5)))
    assert back.id("button", "One") == button, "the same number as before"
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EnvError, match="hang"):
        await does(env, "done")
    await env.close()


async def test_a_program_that_crashes_is_no_reward(pool: DesktopPool) -> None:
    env, _ = await begun(pool)
    os.kill(form_of(env), signal.SIGSEGV)
    await does(env, "wait", seconds=0.5)
    with pytest.raises(EnvError, match="crashed"):
        await does(env, "done")
    await env.reset(seed=0)
    await does(env, "key", keys="alt+F4")
    assert (await does(env, "done"))[1] == 0.0, "the agent closed it, and did not press"
    await env.close()


@pytest.mark.parametrize("closes", [1, 5])
async def test_a_program_that_closes_by_itself_is_started_again(
    settings: DesktopSettings, closes: int
) -> None:
    """A program can lose its first window on a busy machine; nobody is shown an empty desktop."""
    script = f"echo >> n; [ $(wc -l < n) -gt {closes} ] && exec yad --title=Here; "
    program = ["sh", "-c", script + "yad --title=Gone --timeout=1; true"]
    unsteady = await DesktopPool.open(replace(settings, still_s=5.0, staged=0))
    env = GuiEnv(pack=Pack(form=[program]), desktop=unsteady, max_turns=None)
    try:
        if closes == 1:
            opening, _ = await env.reset(seed=0)
            assert read(opening.messages[0].text).find("window", "Here")
        else:
            with pytest.raises(EnvError, match="sh was started 2 times"):
                await env.reset(seed=0)
    finally:
        await env.close()
        await unsteady.close()


async def test_a_dialog_over_everything_is_named_and_can_be_closed(pool: DesktopPool) -> None:
    update = ["yad", "--title=Update", "--text=Restart now?", "--geometry=1000x700+0+0"]
    env, text = await begun(pool, update)
    page = read(text)
    button = page.id("button", "One")
    assert "behind the window 'Update'" in shown(await does(env, "click", element=button))
    closed = await does(env, "click", element=page.id("button", "Cancel"))
    assert "Update" not in shown(closed)
    await does(env, "click", element=button)
    assert (await does(env, "done"))[1] == 1.0
    await env.close()


async def test_a_window_off_the_screen_can_be_fetched_back(pool: DesktopPool) -> None:
    env, text = await begun(pool, observation_kwargs={"boxes": True})
    window = read(text).find("window", "Panel")
    (left, top), (wide, _) = window.at, window.size
    handle = [left + wide / 2, top + 8]
    step = await does(env, "drag", coordinate=handle, to_coordinate=[handle[0], 766])
    button = read(text).id("button", "One")
    assert "off the screen" in shown(await does(env, "click", element=button)), shown(step)
    await does(env, "drag", coordinate=[handle[0], 766], to_coordinate=[400, 300])
    await does(env, "click", element=button)
    assert (await does(env, "done"))[1] == 1.0
    await env.close()


async def test_a_screen_of_another_size_is_refused(pool: DesktopPool) -> None:
    env, _ = await begun(pool, observation="screenshot")
    desktop = desktop_of(env)
    desktop.settings = replace(desktop.settings, width=800)
    with pytest.raises(EnvError, match="1024 x 768 but should be 800 x 768"):
        await does(env, "screenshot")
    await env.close()


async def test_tens_of_windows(pool: DesktopPool) -> None:
    loop = "for i in $(seq 20); do xterm -T window-$i -geometry 20x4 & done; wait"
    env, _ = await begun(pool, ["sh", "-c", loop])
    page = read(shown(await does(env, "wait", seconds=2)))
    names = {node.name for node in page.all("window")}
    assert {f"window-{i}" for i in range(1, 21)} <= names
    await env.close()


async def test_a_program_that_does_not_start_is_no_fault_of_the_agent(
    settings: DesktopSettings,
) -> None:
    for pack, start_s, why in (
        (Pack([["no-such-program"]]), settings.start_s, "cannot be started"),
        (Pack([["sleep", "100"]], form=()), 2, "showed no window"),
    ):
        small = DesktopPool(replace(settings, start_s=start_s))
        try:
            env = GuiEnv(pack=pack, desktop=small)
            with pytest.raises(EnvError, match=why):
                await env.reset(seed=0)
            await env.close()
            await small.wait_until_ready()
            assert small.figures()["used"] == 0
        finally:
            await small.close()


async def test_who_waits_for_a_desktop_waits_so_long(settings: DesktopSettings) -> None:
    small = DesktopPool(replace(settings, desktops=1, open_s=1))
    small._places = PoolPermits("desktop", 0, within_s=1)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(EnvError, match="no desktop became available within 1 s"):
        await small.take()
    await small.close()
    with pytest.raises(EnvError, match="closed"):
        await small.take()


async def test_desktops_are_used_again_and_replaced_when_worn(settings: DesktopSettings) -> None:
    small = DesktopPool(replace(settings, desktops=1, recycle_after=2))
    met: list[DesktopSession] = []
    for _ in range(3):
        env, text = await begun(small)
        met.append(desktop_of(env))
        assert await met[-1].read(f"form/{STATE}") is None, "nothing is left of the one before"
        await does(env, "click", element=read(text).id("button", "Two"))
        await env.close()
        await small.wait_until_ready()
    assert met[0] is met[1]
    assert met[1] is not met[2]
    assert not met[1].sound
    await small.close()
    assert not met[2].sound


async def test_a_desktop_that_lost_a_file_of_its_own_is_replaced(pool: DesktopPool) -> None:
    env, _ = await begun(pool)
    desktop = desktop_of(env)
    await desktop.ask("run", command=["rm", "/run/desktop/bus"], limit_s=20.0)
    await env.close()
    await pool.wait_until_ready()
    assert not desktop.sound


async def test_without_a_desktop_it_says_what_is_missing(
    settings: DesktopSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ConfigError, match="apt-get install"):
        await DesktopSession.start(settings)

"""What a desktop costs: to start, to clear, to begin a task on, to look at, and in memory.

A task of each program is begun on a desktop that is ready, and again on one on which its programs
were put ahead, as in a run that says which tasks come next. Resets of the two kinds take turns, so
that whatever else the machine does is beside both. A form is forked, from the second one of a
desktop on. Steps move the mouse, so what they cost is to wait until the screen rests and to look.
Memory is PSS: a page that several processes share counts once over all of them, so that one of many
desktops holds less than one alone. Wall seconds: what is waited for is programs, and a busy machine
makes all of it longer.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from agentrl.env import call
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSession, DesktopSettings
from agentrl_envs.gui.observation import KINDS
from agentrl_envs.gui.tasks import template_pack
from benchmarks.browsing.times import middle_ms, timed
from benchmarks.harness import Benchmark

TEMPLATES = {
    "a form": "press",
    "a dialog": "enter_code",
    "a text editor": "write_line",
    "a calculator": "answer_sum",
    "a spreadsheet": "enter_cell",
    "a file manager": "rename",
    "a terminal": "count_lines",
    "a browser": "web_press",
}
CROWDS = (1, 2, 4)
MANY = (1, 4, 16)
SETTINGS = DesktopSettings(desktops=8, warm=0, call_s=120, open_s=300, start_s=120)


async def begun(env: GuiEnv, template: str, *, told: int | None = None) -> float:
    """Begin a task; return the seconds of its reset.

    `told` is how many times more the task is said to come next; None says nothing.
    """
    (task,) = islice(template_pack(templates=[template]).tasks("train", 0), 1)
    _ = env.tools  # the first one of a process is made by transformers, and imports it
    coming = {} if told is None else {"next": (task,) * told}
    seconds, _ = await timed(env.reset(options={"task": task, **coming}))
    return seconds


async def resets(
    pool: DesktopPool, template: str, count: int
) -> tuple[list[float], list[float], int]:
    """Return the seconds of resets on bare desktops and ahead, and the PSS with the program."""
    pack = template_pack(templates=[template])
    bare, ahead, held = list[float](), list[float](), 0
    for _ in range(count):
        await pool.give(await pool.take())  # one that is ready, where the last was thrown away
        await pool.wait_until_ready()
        first, second = (GuiEnv(pack=pack, desktop=pool) for _ in range(2))
        bare.append(await begun(first, template, told=1))
        held = pss_bytes(first.desktop)
        await pool.wait_until_ready()
        ahead.append(await begun(second, template, told=0))
        await first.close()
        await second.close()
        await pool.wait_until_ready()
    return bare, ahead, held


async def steps(pool: DesktopPool, kind: str, count: int) -> list[float]:
    """Return the seconds of steps that move the mouse, with an observation of one kind."""
    env = GuiEnv(pack=template_pack(templates=["press"]), desktop=pool, observation=kind)
    await begun(env, "press")
    seconds = list[float]()
    for number in range(count):
        action = call("computer", action="move", coordinate=[5 + number % 2, 700])
        seconds.append((await timed(env.step(action)))[0])
    await env.close()
    return seconds


async def started_and_cleared(count: int) -> tuple[list[float], list[float], int]:
    """Return the seconds of fresh desktops and of clearing used ones, and the PSS of one."""
    starts, clears, held = list[float](), list[float](), 0
    for _ in range(count):
        seconds, desktop = await timed(DesktopSession.start(SETTINGS))
        starts.append(seconds)
        held = pss_bytes(desktop)
        await desktop.program(["mousepad"])
        clears.append((await timed(desktop.clear()))[0])
        await desktop.close()
    return starts, clears, held


async def held_by_one_of(count: int) -> float:
    """Return the PSS of a desktop with a form, where there are so many."""
    pack = template_pack(templates=["press"])
    pool = DesktopPool(replace(SETTINGS, desktops=count))
    envs = [GuiEnv(pack=pack, desktop=pool) for _ in range(count)]
    for env in envs:
        await begun(env, "press")
    held = [pss_bytes(env.desktop) for env in envs]
    for env in envs:
        await env.close()
    await pool.close()
    return sum(held) / count


async def crowd(count: int, each: int, *, ahead: bool) -> float:
    """Return how many episodes of one action a second come of so many at once."""
    pool = DesktopPool(replace(SETTINGS, staged=count if ahead else 0))
    envs = [GuiEnv(pack=template_pack(templates=["press"]), desktop=pool) for _ in range(count)]

    async def play(env: GuiEnv) -> None:
        for _ in range(each):
            await begun(env, "press", told=count)
            await env.step(call("computer", action="done"))
            await env.close()

    await asyncio.gather(*(begun(env, "press") for env in envs))
    await asyncio.gather(*(env.close() for env in envs))
    await pool.wait_until_ready()
    seconds, _ = await timed(asyncio.gather(*(play(env) for env in envs)))
    await pool.close()
    return count * each / seconds


def pss_bytes(desktop: DesktopSession) -> int:
    """Return what the processes of a desktop hold, a shared page in equal parts."""
    wave, total = [desktop.pid], 0
    while wave:
        total += sum(map(_pss_bytes, wave))
        wave = [child for pid in wave for child in _children(pid)]
    return total


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it ended while we looked
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        listings = [Path(f"/proc/{pid}/task/{one}/children").read_text() for one in threads]
    except OSError:
        return []
    return [int(child) for listing in listings for child in listing.split()]


async def desktops(bench: Benchmark, counts: Sequence[int]) -> None:
    """State everything; `counts` are repetitions of starts, of resets and of steps."""
    starts, clears, held = await started_and_cleared(counts[0])
    bench.row("start, a desktop without programs", middle_ms(starts), unit="ms")
    bench.row("clear, a desktop with an editor", middle_ms(clears), unit="ms")
    bench.row("memory, a desktop without programs", held / 1e6, unit="MB")
    pool = DesktopPool(SETTINGS)
    for name, template in TEMPLATES.items():
        bare, ahead, held = await resets(pool, template, counts[1])
        bench.row(f"reset, {name}", middle_ms(bare), unit="ms")
        bench.row(f"reset, {name}, ahead", middle_ms(ahead), unit="ms")
        bench.row(f"memory, with {name}", held / 1e6, unit="MB")
    for kind in KINDS:
        seconds = await steps(pool, kind, counts[2])
        bench.row(f"step, {kind}", middle_ms(seconds), unit="ms")
    await pool.close()
    for count in MANY[: 2 if bench.quick else None]:
        held = await held_by_one_of(count)
        bench.row(f"memory, one of {count} with a form", held / 1e6, unit="MB")
    for count in CROWDS:
        for name, ahead in (("", False), (", ahead", True)):
            rate = await crowd(count, counts[1], ahead=ahead)
            bench.row(f"{count} at once{name}", rate, unit="episodes/s")


def main() -> None:
    """Measure everything and state it."""
    bench = Benchmark.from_command_line("gui", __doc__)
    asyncio.run(desktops(bench, (2, 2, 5) if bench.quick else (8, 8, 30)))
    bench.finish()


if __name__ == "__main__":
    main()

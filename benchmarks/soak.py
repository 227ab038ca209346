"""Do thousands of sessions, treated badly, do as they should and leave nothing behind?

Each family is a session that is opened, its forks and the forks of those. What is done to it is
random: cells that print, bind names, write files, start programs, daemons and threads, flood, run
out of time or memory, crash, or kill themselves; commands; cancelled calls; sessions closed in mid
cell; now and then a `kill -9` of the keeper or of the supervisor. After each thing the session is
held against a model: a reply carries the token of its request, the names and files are those that
must be there. In the end nothing may be left.

`--seed` and the number of a family say what is done to it; `--family` plays one alone.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import get_args

from rich.table import Table

from agentrl.sandbox import AfterTimeout, Backend, Pressure, SandboxSettings
from agentrl_sandbox import ForkServerPool
from benchmarks.harness import Benchmark, positive
from benchmarks.soaking import programs
from benchmarks.soaking.census import Census, open_files, resident_bytes
from benchmarks.soaking.ground import Book, Ground
from benchmarks.soaking.player import Player, Wrong

MODES: tuple[AfterTimeout, ...] = get_args(AfterTimeout)
LOOK_EVERY_S = 1.0
GRACE_S = 20.0
"""How long what was closed may take to end."""
WRONGS_MAX = 20
GROWTH_GOAL_KB = 1000.0
"""Of this process, per thousand sessions: what is kept of a session that is closed has more than a
kB, and the allocator's holes have less.
"""


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak."""

    sessions: int
    seed: int = 0
    backend: Backend = "namespaces"
    at_once: int = 24
    sabotage: bool = True
    family: int | None = None
    """The only family to play; None for all."""
    book: Book = field(default_factory=Book)
    census: Census = field(init=False)
    opened: int = 0
    families: int = 0
    wrongs: list[str] = field(default_factory=list[str])
    left: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Sessions so far, and bytes of this process."""
    disasters: int = 0

    def __post_init__(self) -> None:
        self.census = Census(docker=self.backend == "docker")

    async def run(self) -> None:
        """Play all families, close the pools, and count what is left."""
        self.census.files_before = open_files()
        grounds = [self._ground(mode) for mode in MODES]
        watcher = asyncio.create_task(self._watch())
        try:
            if self.family is None:
                await asyncio.gather(*(self._players(grounds) for _ in range(self.at_once)))
            else:
                await self._play(grounds, self.family)
            self.census.look()
        finally:
            watcher.cancel()
            for ground in grounds:
                await ground.pool.close()
        self.disasters = sum(ground.disasters for ground in grounds)
        self.left = await asyncio.to_thread(self.census.left_after, GRACE_S)

    @property
    def growth_kb(self) -> float:
        """Return by how many kB this process grew per thousand sessions, in the second half."""
        later = self.sizes[len(self.sizes) // 2 :]
        if len(later) < 2:
            return 0.0
        count = len(later)
        mean_x, mean_y = (sum(column) / count for column in zip(*later, strict=True))
        spread = sum((x - mean_x) ** 2 for x, _ in later)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in later) / spread if spread else 0.0
        return slope * 1000 / 1e3

    def _ground(self, mode: AfterTimeout) -> Ground:
        settings = SandboxSettings(
            backend=self.backend,
            allow_unisolated=self.backend == "process",
            after_timeout=mode,
            limits=programs.LIMITS,
            pressure=Pressure(sessions=4096, starts_per_s=10_000.0, start_burst=1000),
        )
        isolated = self.backend != "process"
        return Ground(ForkServerPool(settings), mode, isolated, self.book)

    async def _players(self, grounds: Sequence[Ground]) -> None:
        while self.opened < self.sessions and len(self.wrongs) < WRONGS_MAX:
            number, self.families = self.families, self.families + 1
            await self._play(grounds, number)

    async def _play(self, grounds: Sequence[Ground], number: int) -> None:
        rng = Random(f"{self.seed}/{number}")
        ground = rng.choice(grounds)
        player = Player(number, ground, rng, sabotage=self.sabotage)
        try:
            await player.play()
        except Wrong as error:
            last = " > ".join(player.deeds[-30 if self.family is None else 0 :])
            self.wrongs.append(f"family {number} ({ground.mode}): {error}\n    after {last}")
            print(self.wrongs[-1], flush=True)
        finally:
            self.opened += player.opened

    async def _watch(self) -> None:
        while True:
            self.census.look()
            self.sizes.append((self.opened, resident_bytes()))
            await asyncio.sleep(LOOK_EVERY_S)


def table(soak: Soak) -> Table:
    """Return what was done, how often, and how long it took."""
    made = Table(title=f"what was done, seed {soak.seed}, {soak.backend}")
    for heading in ("what", "times", "p50 ms", "p99 ms", "longest ms"):
        made.add_column(heading, justify="left" if heading == "what" else "right")
    for what in soak.book.kinds():
        times = (f"{1e3 * soak.book.quantile_s(what, part):.1f}" for part in (0.5, 0.99, 1.0))
        made.add_row(what, str(soak.book.count(what)), *times)
    return made


def state(bench: Benchmark, soak: Soak, seconds: float) -> None:
    """Add the rows; those with a goal decide whether the soak is passed."""
    bench.row("sessions", soak.opened, unit="sessions")
    bench.row("families", soak.families, unit="families")
    bench.row("time", seconds, unit="s")
    for status, count in sorted(soak.book.statuses.items()):
        bench.row(f"cells that ended with {status}", count, unit="cells")
    bench.row("supervisors killed", soak.disasters, unit="kills")
    bench.row("things that were wrong", len(soak.wrongs), unit="", goal=0, better="lower")
    for what, found in soak.left.items():
        bench.row(f"{what} left", len(found), unit=what, goal=0, better="lower")
        for each in found[:10]:
            print(f"left: {each:.1000}")
    sizes_bytes = [size for _, size in soak.sizes] or [0]
    bench.row("memory of this process, at most", max(sizes_bytes) / 1e6, unit="MB")
    goal = GROWTH_GOAL_KB if soak.opened >= 2000 else None
    bench.row("growth, second half", soak.growth_kb, unit="kB/1000", goal=goal, better="lower")


def arguments() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--sessions", type=positive, default=10_000, help="default 10,000")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--backend", choices=get_args(Backend), default="namespaces")
    made.add_argument("--at-once", type=positive, default=24, help="families (default 24)")
    made.add_argument("--family", type=int, help="play this one alone")
    made.add_argument("--no-kills", action="store_true", help="kill no keeper or supervisor")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return made


def main() -> None:
    """Soak, print, and exit with 1 when something was wrong or is left."""
    chosen = arguments().parse_args()
    soak = Soak(
        sessions=chosen.sessions,
        seed=chosen.seed,
        backend=chosen.backend,
        at_once=chosen.at_once,
        sabotage=not chosen.no_kills,
        family=chosen.family,
    )
    bench = Benchmark("soak", json_file=chosen.json)
    start_s = time.perf_counter()
    asyncio.run(soak.run())
    bench.console.print(table(soak))
    state(bench, soak, time.perf_counter() - start_s)
    bench.finish()
    sys.exit(not all(row.ok is not False for row in bench.rows))


if __name__ == "__main__":
    main()

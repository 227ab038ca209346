"""Every player of MiniWoB++ on many problems of its family: how often it wins, and what it loses.

    python -m benchmarks.browsing.players --seeds 24 [--families click-tab enter-date]

Half of the seeds are of the training range and half are held out. A failure is printed with what
reproduces it.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from agentrl.authoring.gold import play_gold
from agentrl.errors import AgentrlError
from agentrl.runtime.seeds import derive
from agentrl.task import SPLITS, Task
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.miniwob.pack import SEED_RANGES, MiniWobPack, task_of
from agentrl_envs.web.miniwob.players import PLAYERS
from benchmarks.harness import positive

_MAX_TURNS = 60


def problems(families: Sequence[str], seeds: int) -> Iterator[Task]:
    """Yield so many problems of each family, by turns from either split."""
    for family in families:
        for number in range(seeds):
            split = SPLITS[number % len(SPLITS)]
            within = SEED_RANGES[split]
            seed = within[derive("players", family, number) % len(within)]
            yield task_of(family, seed, split=split)


async def won(tasks: Iterator[Task], at_once: int) -> tuple[Counter[str], list[str]]:
    """Play them all; return how many were won per family, and a line for each that was not."""
    pool = await BrowserPool.open(BrowserSettings(call_s=60, episodes=at_once))
    wins, losses = Counter[str](), list[str]()

    async def play() -> None:
        env = WebEnv(pack=MiniWobPack(families=[*PLAYERS]), browser=pool, screen=(400, 300))
        for task in tasks:
            family = task.tags[0]
            try:
                reward = (await play_gold(env, task, max_turns=_MAX_TURNS)).reward
                why = f"reward {reward:g}"
            except (AgentrlError, LookupError, ValueError) as error:
                reward, why = 0.0, f"{type(error).__name__}: {str(error)[:300]}"
            wins[family] += reward == 1
            if reward != 1:
                losses.append(f"{task.id}: {why}")
                print(losses[-1], flush=True)
        await env.close()

    try:
        await asyncio.gather(*(play() for _ in range(at_once)))
    finally:
        await pool.close()
    return wins, losses


def main() -> None:
    """Play and state what was won."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=positive, default=24, help="problems per family")
    parser.add_argument("--families", nargs="*", default=sorted(PLAYERS))
    parser.add_argument("--at-once", type=positive, default=4)
    asked = parser.parse_args()
    began = time.perf_counter()
    wins, losses = asyncio.run(won(problems(asked.families, asked.seeds), asked.at_once))
    played = asked.seeds * len(asked.families)
    whole = sum(wins[family] == asked.seeds for family in asked.families)
    print(
        f"{played - len(losses)} of {played} problems won, {whole} of {len(asked.families)} "
        f"families without a loss, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()

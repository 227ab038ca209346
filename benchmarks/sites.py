"""What our own sites and the search tools cost, and a fork of a browser on a site by each strategy.

- A page of the shop and of the wiki, from the request to the bytes; a copy of a shop's world; a
  search in a world's articles. All in this process: CPU time.
- A fork in the middle of an order, by a copy of the state and by a replay of the actions: wall time
  until the fork can act. Needs Chromium.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from agentrl.message import Message
from agentrl.runtime.scope import run_scope
from agentrl_envs.retrieval.wiki import corpus_of
from agentrl_envs.web import WebEnv
from agentrl_envs.web.episode_site import WebRequest
from agentrl_envs.web.sites import shop_pack, wiki_pack
from agentrl_envs.web.sites.asgi import AsgiSite
from agentrl_envs.web.sites.pack import TemplateSitePack
from agentrl_tools.search.index import get_index
from benchmarks.harness import Benchmark, Contender, Run

COUNTRIES = 30
FORK_AFTER = "Check out"
"""The page that has this link is the cart: five to seven actions are done."""


def world_of(pack: TemplateSitePack[Any]) -> AsgiSite[Any]:
    """Return the world of a pack's first task."""
    return pack.world(next(iter(pack.tasks("train", 0))))


def answered(pack: Callable[[], TemplateSitePack[Any]], path: str, times: int) -> Run:
    """Return a run that asks for one page again and again; its work is pages."""
    world = world_of(pack())
    request = WebRequest(method="GET", url=world.origins[0] + path, headers={})

    async def ask() -> float:
        for _ in range(times):
            await world.answer(request)
        return float(times)

    asyncio.run(ask())
    return lambda: asyncio.run(ask())


def copied(times: int) -> Run:
    """Return a run that copies a shop; its work is copies."""
    world = world_of(shop_pack())
    return lambda: float(len([world.copy() for _ in range(times)]))


def searched(times: int) -> Run:
    """Return a run that searches the articles of a world; its work is searches."""
    corpus = corpus_of(0, COUNTRIES)
    index = get_index(corpus)
    names = [document.id for document in corpus.documents]
    queries = [f"{names[n % len(names)]} born in" for n in range(times)]
    return lambda: float(len([index.rank(query, 5) for query in queries]))


async def forks(strategy: str, times: int) -> list[float]:
    """Return the seconds of forks in the middle of an order."""
    made = shop_pack(templates=["order"])
    env = WebEnv(pack=made, fork=strategy)  # pyright: ignore[reportArgumentType]
    seconds: list[float] = []
    async with run_scope():
        for task in islice(made.tasks("train", 0), times):
            opening, _ = await env.reset(seed=0, options={"task": task})
            seen: list[Message] = list(opening.messages)
            while FORK_AFTER not in seen[-1].text:
                action = env.gold(task, seen)
                seen += [action.message, *(await env.step(action))[0].messages]
            began = time.perf_counter()
            fork = await env.fork()
            seconds.append(time.perf_counter() - began)
            await fork.close()
        await env.close()
    return seconds


def main() -> None:
    """Measure, print and write."""
    bench = Benchmark.from_command_line("sites", __doc__)
    size = 1 if bench.quick else 10
    runs = bench.compare(
        {
            "shop": Contender(set_up=partial(answered, shop_pack, "/search?q=kettle", 50 * size)),
            "wiki": Contender(set_up=partial(answered, wiki_pack, "/", 50 * size)),
            "copy": Contender(set_up=partial(copied, 100 * size)),
            "search": Contender(set_up=partial(searched, 200 * size)),
        }
    )
    bench.cost("a page of the shop", runs["shop"])
    bench.cost("a page of the wiki", runs["wiki"])
    bench.cost("a copy of a shop's world", runs["copy"])
    bench.cost(f"a search in {COUNTRIES * 28} articles", runs["search"])
    for strategy in ("copy", "replay"):
        seconds = asyncio.run(forks(strategy, 2 * size))
        milliseconds = statistics.median(seconds) * 1e3
        bench.row(f"a fork in a browser by {strategy}, median", milliseconds, unit="ms")
    bench.finish()


if __name__ == "__main__":
    main()

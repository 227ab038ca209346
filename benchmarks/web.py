"""What a reset and a step in a browser cost, beside bare Playwright and BrowserGym.

One MiniWoB++ task (click-test): begin the episode, read the page, click on the button, read the
page and the reward. Soft resets begin on the page that is there, cold ones load it in a context of
its own; `loaded ahead` is that with the loading done between two episodes, while a policy thinks.
Wall seconds: what is waited for is a browser, and most of its time is no CPU time of ours.
"""

import asyncio
from collections.abc import Mapping, Sequence

from agentrl_envs.web.observation.view import KINDS
from benchmarks.browsing.bare import bare
from benchmarks.browsing.ours import at_once, one_after_another
from benchmarks.browsing.peer import browsergym
from benchmarks.browsing.times import middle_ms
from benchmarks.harness import Benchmark, parser

SOFT_GOAL_MS, COLD_GOAL_MS, STEP_GOAL_MS, PEER_GOAL = 20.0, 90.0, 60.0, 15.0
CROWDS = (1, 4, 16)


def rows(bench: Benchmark, name: str, seconds: Mapping[str, Sequence[float]]) -> float:
    """State the medians of a peer; return its reset and step together, in milliseconds."""
    reset_ms, step_ms = middle_ms(seconds["resets"]), middle_ms(seconds["steps"])
    bench.row(f"reset, {name}", reset_ms, unit="ms")
    bench.row(f"click, {name}", step_ms, unit="ms")
    return reset_ms + step_ms


def main() -> None:
    """Measure everything and state it."""
    arguments = parser(__doc__)
    arguments.add_argument("--executable", default="", help="Chromium of those at once")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("web", chosen)
    episodes = 5 if bench.quick else 30
    soft = asyncio.run(one_after_another(["axtree"], episodes, "kept"))
    ahead = asyncio.run(one_after_another(["axtree"], episodes, "ahead"))
    cold = asyncio.run(one_after_another(["axtree"], episodes, "loaded"))
    soft_ms, step_ms = middle_ms(soft.resets), middle_ms(soft.steps)
    bench.row("reset, soft", soft_ms, unit="ms", goal=SOFT_GOAL_MS, better="lower")
    bench.row("reset, loaded ahead", middle_ms(ahead.resets), unit="ms")
    bench.row("reset, cold", middle_ms(cold.resets), unit="ms", goal=COLD_GOAL_MS, better="lower")
    bench.row("click, axtree", step_ms, unit="ms", goal=STEP_GOAL_MS, better="lower")
    for soft_too in (True, False):
        name = f"bare Playwright, {'soft' if soft_too else 'cold'}"
        rows(bench, name, asyncio.run(bare(episodes, soft=soft_too)))
    peer = browsergym(2 if bench.quick else 8)
    if isinstance(peer, str):
        bench.notes.append(peer)
    else:
        times = rows(bench, "BrowserGym 0.14.3", peer) / (soft_ms + step_ms)
        bench.row("an episode", times, unit="x", peer="BrowserGym 0.14.3", goal=PEER_GOAL)
    for kind in KINDS[1:]:
        seen = asyncio.run(one_after_another([kind], episodes, "kept"))
        bench.row(f"click, {kind}", middle_ms(seen.steps), unit="ms")
    for count in CROWDS:
        crowd = asyncio.run(at_once(count, 3 if bench.quick else 10, executable=chosen.executable))
        bench.row(f"{count} at once", crowd.episodes_per_s, unit="episodes/s")
        if crowd.bytes_per_episode is not None:
            held_mb = crowd.bytes_per_episode / 1e6
            bench.row(f"memory per episode, {count} at once", held_mb, unit="MB")
    each = 1 if bench.quick else 5
    crowd = asyncio.run(at_once(CROWDS[-1], each, page="loaded", executable=chosen.executable))
    title = f"{CROWDS[-1]} at once, a page opened for each"
    bench.row(title, crowd.episodes_per_s, unit="episodes/s")
    bench.finish()


if __name__ == "__main__":
    main()

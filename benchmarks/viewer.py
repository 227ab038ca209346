"""How fast the page of `agentrl view` is with a large run, in Chromium, from disk.

    python benchmarks/viewer.py [--trajectories 10000] [--json FILE]

First paint counts from the navigation, in a fresh browser context; a filter from the key to the
next frame after the table has changed. Both are the browser's own clock. What a training step
spends on keeping what the page shows of tokens is in docs/viewer.md.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from agentrl.view.document import page
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader
from benchmarks.harness import Benchmark, Row, parser, positive
from benchmarks.made_run import MadeRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = 8
FILTER = """
text => new Promise(done => {
  const input = document.querySelector('#search');
  const before = document.querySelector('.found').innerText;
  const began = performance.now();
  input.value = text;
  input.dispatchEvent(new InputEvent('input', { bubbles: true }));
  const look = () => document.querySelector('.found').innerText !== before
    ? requestAnimationFrame(() => done(performance.now() - began)) : requestAnimationFrame(look);
  look();
})
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
TIMEOUT_MS = 120_000


class MainThread:
    """The CPU time of a page's main thread, which a busy neighbour does not lengthen."""

    def __init__(self, made: "Page") -> None:
        self._session = made.context.new_cdp_session(made)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used_s(self) -> float:
        """Return what its tasks have used so far."""
        found = self._session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def opened(browser: "Browser", file: Path) -> tuple["Page", float]:
    """Return the open page and the seconds from the navigation to its first paint with content."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    made = context.new_page()
    made.set_default_timeout(TIMEOUT_MS)
    made.goto(f"{file.as_uri()}#/trajectories", wait_until="commit")
    made.wait_for_selector(".list-row")
    while made.evaluate(PAINT) is None:
        made.wait_for_timeout(10)
    return made, float(made.evaluate(PAINT)) / 1000


def filters_ms(made: "Page") -> list[tuple[float, float]]:
    """Return what each of some filters took: by the clock, and of the main thread's CPU."""
    thread, found = MainThread(made), list[tuple[float, float]]()
    for text in ("what is 12", "what is 123 *", "it is 7", "no such thing", "sample 3"):
        before = thread.used_s()
        wall_ms = float(made.evaluate(FILTER, text))
        found.append((wall_ms, (thread.used_s() - before) * 1000))
    return found


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--trajectories", type=positive, default=10_000)
    parsed = arguments.parse_args()
    bench = Benchmark.from_arguments("viewer", parsed)
    count = 800 if bench.quick else int(parsed.trajectories)
    from playwright.sync_api import sync_playwright

    from agentrl_envs.web.browser.chromium import find

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = MadeRun(
            folder=Path(place) / "run", groups=count // SIZE, size=SIZE, per_step=25
        ).make()
        file = Path(place) / "run.html"
        began = time.perf_counter()
        with RunReader(run) as source:
            file.write_text(
                "".join(page([source], steps=StepRange(), limit=count)), encoding="utf-8"
            )
        bench.rows.append(
            Row(metric="making the file", value=time.perf_counter() - began, unit="s")
        )
        size = file.stat().st_size / 2**20
        bench.rows.append(Row(metric="size of the file", value=size, unit="MiB"))
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        paints: list[float] = []
        filters: list[tuple[float, float]] = []
        for _ in range(bench.rounds):
            made, paint = opened(browser, file)
            paints.append(paint)
            filters += filters_ms(made)
            made.context.close()
        browser.close()
    walls, cpus = [wall for wall, _ in filters], [cpu for _, cpu in filters]
    paint, slowest = median(paints), max(walls)
    bench.rows += [
        Row(metric="first paint", value=paint, unit="s", goal=2.0, ok=paint <= 2),
        Row(metric="filter, median", value=median(walls), unit="ms"),
        Row(metric="filter, slowest", value=slowest, unit="ms", goal=200.0, ok=slowest <= 200),
        Row(metric="filter, median CPU", value=median(cpus), unit="ms"),
        Row(metric="filter, most CPU", value=max(cpus), unit="ms"),
    ]
    bench.finish()


if __name__ == "__main__":
    main()

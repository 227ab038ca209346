"""The pictures of the run page in the documentation, made in Chromium of runs that are there.

    agentrl train quickstart
    agentrl train quickstart run.name=grpo store.keep=all
    agentrl train quickstart run.name=aepo store.keep=all rollout.branching.topology=aepo \\
        rollout.branching.probe_tokens=8 learn.advantage.name=aepo learn.loss.name=aepo
    python -m benchmarks.viewer_pictures --run runs/quickstart --branching runs/aepo \\
        --pair runs/grpo runs/aepo [--steps A:B] [--token N]

`--run` gives the overview and how a served run stands; `--branching` a group that branched, the
tokens of a trajectory in it, and two trajectories compared; `--pair` the overview of two runs and
one task in both. `--steps` are those of the branching run.
"""

import argparse
import io
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.view.document import page
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[1] / "docs" / "images"
COLOURS = 256
WIDTH, HEIGHT = 1200, 640
ALL_STEPS = StepRange()
SPREAD = "groups?sort=-spread"
"""The table whose first group has the most different rewards."""
GAIN = "tasks?sort=-gain"
"""The table whose first task has the largest gain from the first run to the second."""


class PageCamera:
    """A browser's page, and the folder of its pictures."""

    def __init__(self, browser_page: "Page", folder: Path) -> None:
        self._page = browser_page
        self._folder = folder

    def open(self, file: Path, *runs: Path, steps: StepRange = ALL_STEPS) -> None:
        """Write the page of a run, or of two, and open it."""
        with ExitStack() as opened:
            sources = [opened.enter_context(RunReader(run)) for run in runs]
            text = "".join(page(sources, steps=steps))
        file.write_text(text, encoding="utf-8", errors="replace")
        self._page.goto(file.as_uri())

    def take_served(self, run: Path) -> None:
        """Take the picture of a run that is served."""
        command = [sys.executable, "-m", "agentrl.cli", "view", str(run)]
        command += ["--serve", "--port", "0", "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                self._page.goto(server.stdout.readline().strip())
                self._page.wait_for_selector(".standing .uses")
                self.take("live")
            finally:
                server.terminate()

    def go(self, place: str, awaited: str) -> None:
        """Go to a place of the page, and wait for an element."""
        self._page.evaluate("place => { location.hash = '#/' + place }", place)
        self._page.wait_for_selector(awaited)

    def find_branched(self) -> list[str]:
        """Open the group with the most different rewards; return the addresses of two branches."""
        self.go(SPREAD, ".list-row")
        self.click_row("svg")
        group = self._page.evaluate("location.hash")
        places: list[str] = []
        for number in range(2):
            self.go(group.removeprefix("#/"), "svg")
            for _ in range(number + 1):
                self._page.keyboard.press("j")
            self._page.keyboard.press("Enter")
            self._page.wait_for_selector(".message")
            places.append(self._page.evaluate("location.hash").removeprefix("#/"))
        self.go(group.removeprefix("#/"), "svg")
        return places

    def click_row(self, awaited: str) -> None:
        """Click the first row of a table, and wait for an element."""
        self._page.click(".list-row >> nth=0")
        self._page.wait_for_selector(awaited)

    def click(self, text: str) -> None:
        """Click a button."""
        self._page.get_by_role("button", name=text, exact=True).click()

    def take(self, name: str) -> None:
        """Write what is in sight, in few colours."""
        from PIL import Image

        self._page.wait_for_timeout(500)
        picture = Image.open(io.BytesIO(self._page.screenshot()))
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(self._folder / f"viewer-{name}.png", optimize=True)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path)
    parser.add_argument("--branching", type=Path)
    parser.add_argument("--pair", type=Path, nargs=2)
    parser.add_argument("--steps", metavar="A:B")
    parser.add_argument("--token", type=int, default=0, help="Token that is marked.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parsed = parser.parse_args()
    if parsed.run is parsed.branching is parsed.pair is None:
        parser.error("no run is given: add --run, --branching or --pair")
    from playwright.sync_api import sync_playwright

    from agentrl_envs.web.browser.chromium import find

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        # Our own files in it, and nothing else.
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        viewport = {"width": WIDTH, "height": HEIGHT}
        camera = PageCamera(browser.new_page(viewport=viewport), parsed.folder)  # pyright: ignore
        file = Path(place) / "page.html"
        if parsed.run is not None:
            take_run(camera, file, parsed.run)
        if parsed.branching is not None:
            steps = StepRange.parse(parsed.steps)
            take_branching(camera, file, parsed.branching, steps, token=parsed.token)
        if parsed.pair is not None:
            take_pair(camera, file, *parsed.pair)
        browser.close()


def take_run(camera: PageCamera, file: Path, run: Path) -> None:
    """Take the overview of a run, as a file and served."""
    camera.open(file, run)
    camera.go("overview", ".headlines svg")
    camera.take("overview")
    camera.take_served(run)


def take_branching(
    camera: PageCamera, file: Path, run: Path, steps: StepRange, *, token: int
) -> None:
    """Take a group that branched, the tokens of a trajectory, and two trajectories compared."""
    camera.open(file, run, steps=steps)
    one, other = camera.find_branched()
    camera.take("group")
    camera.go(f"{other}?turn=0", ".message")
    camera.click("Tokens")
    camera.click("Entropy")
    camera.go(f"{other}?token={token}", ".token-facts")
    camera.take("tokens")
    ids = (address.partition("?")[0].partition("/")[2] for address in (one, other))
    camera.go(f"compare/{'/'.join(ids)}", ".sides")
    camera.click("Go there")
    camera.take("compare")


def take_pair(camera: PageCamera, file: Path, first: Path, second: Path) -> None:
    """Take the overview of two runs, and the task with the largest gain."""
    camera.open(file, first, second)
    camera.go("overview", ".headlines svg")
    camera.take("runs")
    camera.go(GAIN, ".list-row")
    camera.click_row(".partings")
    camera.take("task")


if __name__ == "__main__":
    main()

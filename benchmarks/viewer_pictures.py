"""The pictures of the run page in the documentation, made in Chromium of runs that are there.

    agentrl train quickstart
    agentrl train methods/aepo store.keep=all
    python -m benchmarks.viewer_pictures runs/quickstart runs/aepo [--steps A:B] [--token N]

The first run gives the overview and how a served run stands, the second a group that branched, the
tokens of a trajectory in it, and two trajectories compared. `--steps` are those of the second.
"""

import argparse
import io
import subprocess
import sys
import tempfile
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
SPREAD = "groups?sort=-spread"
"""The table whose first group has the most different rewards."""


class PageCamera:
    """A browser's page, and the folder of its pictures."""

    def __init__(self, browser_page: "Page", folder: Path) -> None:
        self._page = browser_page
        self._folder = folder

    def open(self, file: Path, run: Path, steps: StepRange) -> None:
        """Write the page of a run and open it."""
        with RunReader(run) as source:
            text = "".join(page([source], steps=steps))
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
        self._page.click(".list-row >> nth=0")
        self._page.wait_for_selector("svg")
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
    parser.add_argument("run", type=Path)
    parser.add_argument("branching", type=Path)
    parser.add_argument("--steps", metavar="A:B")
    parser.add_argument("--token", type=int, default=0, help="Token that is marked.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parsed = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from agentrl_envs.web.browser.chromium import find

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        # Our own files in it, and nothing else.
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        viewport = {"width": WIDTH, "height": HEIGHT}
        camera = PageCamera(browser.new_page(viewport=viewport), parsed.folder)  # pyright: ignore
        camera.open(Path(place) / "run.html", parsed.run, StepRange())
        camera.go("overview", ".headlines svg")
        camera.take("overview")
        camera.open(Path(place) / "branching.html", parsed.branching, StepRange.parse(parsed.steps))
        one, other = camera.find_branched()
        camera.take("group")
        camera.go(f"{other}?turn=0", ".message")
        camera.click("Tokens")
        camera.click("Entropy")
        camera.go(f"{other}?token={parsed.token}", ".token-facts")
        camera.take("tokens")
        ids = (address.partition("?")[0].partition("/")[2] for address in (one, other))
        camera.go(f"compare/{'/'.join(ids)}", ".sides")
        camera.click("Go there")
        camera.take("compare")
        camera.take_served(parsed.run)
        browser.close()


if __name__ == "__main__":
    main()

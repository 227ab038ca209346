"""The same task with nothing but Playwright: navigate, click, read the reward."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from agentrl_envs.web.browser.chromium import find
from benchmarks.browsing.times import timed

ORIGIN = "http://miniwob.test"
_BEGIN = """(seed) => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 1e6;
  core.startEpisodeReal();
  return core.getUtterance();
}"""


async def bare(episodes: int, *, soft: bool) -> Mapping[str, list[float]]:
    """Return the seconds of resets and clicks; `soft` begins again on the page that is there."""
    from playwright.async_api import async_playwright

    resets: list[float] = []
    steps: list[float] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 400, "height": 300})

        async def served(route: Any) -> None:
            path = route.request.url.removeprefix(f"{ORIGIN}/")
            file = files("miniwob") / "html" / path
            await (route.fulfill(path=str(file)) if file.is_file() else route.abort())

        async def reset(seed: int) -> None:
            if not soft or seed == 0:
                await page.goto(f"{ORIGIN}/miniwob/click-test.html")
            await page.evaluate(_BEGIN, seed)
            await page.locator("body").aria_snapshot()

        async def step() -> None:
            await page.click("#subbtn")
            await page.evaluate("() => WOB_RAW_REWARD_GLOBAL")
            await page.locator("body").aria_snapshot()

        await page.route("**/*", served)
        for number in range(episodes + 3):
            reset_s, _ = await timed(reset(number))
            step_s, _ = await timed(step())
            if number >= 3:
                resets.append(reset_s)
                steps.append(step_s)
        await browser.close()
    return {"resets": resets, "steps": steps}

"""BrowserGym on the same task, in a virtual environment of its own.

    python -m venv .bench/browsergym
    .bench/browsergym/bin/pip install browsergym-core==0.14.3 browsergym-miniwob==0.14.3

It pins Playwright 1.44 and insists on that version's own download of Chromium, twice: for the page,
and for a window to chat in. Both are led to the Chromium of this machine; nothing else is changed.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from agentrl_envs.web.browser.chromium import find

PYTHON = Path(__file__).parents[2] / ".bench" / "browsergym" / "bin" / "python"

_SCRIPT = """
import json, sys, time
import playwright.sync_api as api
from playwright._impl._browser_type import BrowserType

launch = BrowserType.launch

async def launched(self, **options):
    options.update(executablePath=sys.argv[1], headless=True)
    options["args"] = [*(options.get("args") or []), "--no-sandbox", "--headless=new"]
    return await launch(self, **options)

BrowserType.launch = launched
import gymnasium
import browsergym.miniwob

resets, steps = [], []
env = gymnasium.make("browsergym/miniwob.click-test")
for number in range(int(sys.argv[2]) + 1):
    began = time.perf_counter()
    observation, _ = env.reset(seed=number)
    reset_s = time.perf_counter() - began
    nodes = observation["axtree_object"]["nodes"]
    (bid,) = [n["browsergym_id"] for n in nodes if n.get("role", {}).get("value") == "button"]
    began = time.perf_counter()
    _, reward, *_ = env.step(f"click('{bid}')")
    step_s = time.perf_counter() - began
    assert reward == 1, reward
    if number:
        resets.append(reset_s)
        steps.append(step_s)
env.close()
print(json.dumps({"resets": resets, "steps": steps}))
"""


def browsergym(episodes: int) -> Mapping[str, list[float]] | str:
    """Return the seconds of resets and clicks, or why there are none."""
    if not PYTHON.exists():
        return f"BrowserGym is not installed in {PYTHON.parents[1].name}; see benchmarks/browsing"
    pages = Path(str(files("miniwob"))) / "html" / "miniwob"
    environ = {**os.environ, "MINIWOB_URL": f"file://{pages}/"}
    done = subprocess.run(
        [str(PYTHON), "-c", _SCRIPT, find(), str(episodes)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        return f"BrowserGym failed: {done.stderr.strip().splitlines()[-1:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])

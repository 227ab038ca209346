"""An owner of browsers that is killed leaves none of them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.chromium

OWNER = """
import asyncio, json, sys
from agentrl_envs.web import WebEnv
from tests.support.web_pages import PagesPack

async def main():
    env = WebEnv(pack=PagesPack(), browser={"warm": 1})
    await env.reset(seed=0)
    browser = env._holding.now._browsers[0]
    print(json.dumps([browser._command.environ["AGENTRL_LEASE"]]), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_killed_owner_leaves_nothing(root: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        (mark,) = json.loads(owner.stdout.readline())
        assert carrying(mark)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 60
    while (left := carrying(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)  # other processes end, and tell nobody
    assert not left


def carrying(mark: str) -> list[int]:
    """Return the processes whose environment or command line has a mark."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            try:
                text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in text:
                found.append(int(path.name))
    return found

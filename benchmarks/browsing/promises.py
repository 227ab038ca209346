"""`check_env` on what is played in a browser: every family of MiniWoB++, our sites, the retrieval.

    python -m benchmarks.browsing.promises [--only miniwob/ClickTest-v0 shop/Mix-v0] [--episodes 1]

One environment after another, for the check counts what a process holds. A line each as it is done;
at the end how many keep all promises, and which do not, each with the promise it breaks.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentrl.env import call
from agentrl.errors import AgentrlError
from agentrl.registry import make
from agentrl.testing import check_env
from agentrl_envs.families import MINIWOB, camel
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from benchmarks.harness import positive

_MAX_TURNS = 40
_TRIED = [call("wait", milliseconds=100), call("click", id=1), call("wait", milliseconds=300)]
"""Before and after a fork where nobody knows better."""
_TASKS = 8
_CALL_S = 120.0
_SITES: Final = ("shop/Mix-v0", "wiki/Mix-v0")
_OTHERS: Final = ("retrieval/Wiki-v0",)


def ids() -> list[str]:
    """Return every environment that is played in a browser or asks the world behind one."""
    return [*(f"miniwob/{camel(family)}-v0" for family in MINIWOB), *_SITES, *_OTHERS]


async def broken(env_id: str, kwargs: Mapping[str, Any], episodes: int) -> str:
    """Return the promise an environment breaks, in words; empty where it keeps all."""
    env = make(env_id, **kwargs)
    gold = "a player" if hasattr(env, "gold") else "no player"
    began = time.perf_counter()
    try:
        promises = await check_env(
            env,
            episodes=episodes,
            tasks=_TASKS,
            max_turns=_MAX_TURNS,
            timeout_s=_CALL_S,
            grace_s=_CALL_S,
            actions=_TRIED,
        )
    except (AgentrlError, LookupError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    finally:
        await env.close()
    took_s = time.perf_counter() - began
    print(f"{env_id}: {len(promises)} promises, {gold}, {took_s:.0f} s", flush=True)
    return ""


async def swept(chosen: Sequence[str], episodes: int) -> dict[str, str]:
    """Check them all; return what each broke that broke something."""
    settings = BrowserSettings(call_s=_CALL_S)
    found = dict[str, str]()
    pool = await BrowserPool.open(settings)
    try:
        for env_id in chosen:
            kwargs = {} if env_id in _OTHERS else {"browser": pool}
            if why := await broken(env_id, kwargs, episodes):
                found[env_id] = why
                print(f"{env_id}: {why}", flush=True)
    finally:
        await pool.close()
    return found


def main() -> None:
    """Check, and state who keeps what it promises."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=ids(), metavar="ID")
    parser.add_argument("--episodes", type=positive, default=1, help="of each split")
    asked = parser.parse_args()
    began = time.perf_counter()
    found = asyncio.run(swept(asked.only, asked.episodes))
    kept = len(asked.only) - len(found)
    took_s = time.perf_counter() - began
    print(f"{kept} of {len(asked.only)} keep all they promise, {took_s:.0f} s")
    for env_id, why in found.items():
        print(f"{env_id} breaks: {why}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()

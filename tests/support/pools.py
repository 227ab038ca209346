"""Pools of sandboxes that are closed whatever happens, and time for what runs in them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentrl.sandbox import Sandbox, SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox.pool import WARM

LONGER_S = (0.5, 5.0, 30.0)
"""Deadlines before which code must have got somewhere; a slow machine is given the next one."""


@asynccontextmanager
async def opened(settings: SandboxSettings, *, warm: int = WARM) -> AsyncGenerator[ForkServerPool]:
    """Return a pool and close it."""
    pool = ForkServerPool(settings, warm=warm)
    try:
        yield pool
    finally:
        await pool.close()


async def sizes(session: Sandbox, path: str = ".") -> dict[str, int]:
    """Return the sizes of what is in a directory of a session, by name."""
    return {entry.name: entry.size_bytes for entry in await session.entries(path)}

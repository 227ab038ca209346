"""Sandboxes: where model-written code runs.

sandbox = await open_session()          # shares one supervisor inside a run's scope
result = await sandbox.exec("1 + 1")    # ExecResult(status="ok", value="2", ...)
branch = await sandbox.fork()           # an independent copy, a millisecond later
"""

from agentrl.runtime.scope import shared
from agentrl.sandbox import Sandbox, sandbox_settings
from agentrl_sandbox.layers import IsolationLayer, layers
from agentrl_sandbox.pool import ForkServerPool
from agentrl_sandbox.session import SandboxSession

__all__ = [
    "ForkServerPool",
    "IsolationLayer",
    "SandboxSession",
    "layers",
    "open_session",
]


async def open_session() -> Sandbox:
    """Return a fresh session under the settings in force.

    Inside a run's scope, sessions of equal settings share one pool, which the scope closes.
    Outside, the session has a pool of its own and closes it when it and its forks are closed.
    """
    settings = sandbox_settings()

    async def open_it() -> ForkServerPool:
        return ForkServerPool(settings)

    pool = await shared(("sandbox", settings), open_it)
    if pool is not None:
        return await pool.open()
    private_pool = ForkServerPool(settings, warm=0)
    try:
        return await private_pool.open(owns_pool=True)
    except BaseException:
        await private_pool.close()
        raise

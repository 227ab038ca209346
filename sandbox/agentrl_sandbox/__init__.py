"""Sandboxes: where model-written code runs.

sandbox = await open_session()          # shares one supervisor inside a run's scope
result = await sandbox.exec("1 + 1")    # ExecResult(status="ok", value="2", ...)
branch = await sandbox.fork()           # an independent copy, a millisecond later

Importing this package is light: `agentrl --help` does it, for the command `image`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.sandbox import Sandbox
    from agentrl_sandbox.isolation_layers import IsolationLayer, layers
    from agentrl_sandbox.pool import ForkServerPool
    from agentrl_sandbox.session import SandboxSession

__all__ = [
    "ForkServerPool",
    "IsolationLayer",
    "SandboxSession",
    "layers",
    "open_session",
]

_LAZY = {
    "ForkServerPool": "agentrl_sandbox.pool",
    "IsolationLayer": "agentrl_sandbox.isolation_layers",
    "SandboxSession": "agentrl_sandbox.session",
    "layers": "agentrl_sandbox.isolation_layers",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'agentrl_sandbox' has no attribute {name!r}")


async def open_session() -> "Sandbox":
    """Return a fresh session under the settings in force.

    Inside a run's scope, sessions of equal settings share one pool, which the scope closes.
    Outside, the session has a pool of its own and closes it when it and its forks are closed.
    """
    from agentrl.runtime.scope import shared
    from agentrl.sandbox import sandbox_settings
    from agentrl_sandbox.pool import ForkServerPool

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

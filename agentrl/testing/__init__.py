"""Promises of the contracts, as code: a check to run on yours, and a simple implementation.

    contract        check           implementation
    Env             check_env       ScriptedEnv
    Tool            check_tool      (a plain function)
    SandboxPool     check_sandbox   InMemorySandboxPool
    SandboxProvider check_provider  (agentrl_sandbox.provider.DockerProvider)
    PolicyEngine    check_engine    ScriptedEngine

A check raises `CheckError`, which names the promise. Nothing here needs pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.testing.engine import ScriptedEngine, check_engine
    from agentrl.testing.env import check_env
    from agentrl.testing.provider import check_provider
    from agentrl.testing.sandbox import InMemorySandboxPool, check_sandbox
    from agentrl.testing.scripted_env import ScriptedEnv, ScriptedTurn
    from agentrl.testing.tool import check_tool

__all__ = [
    "InMemorySandboxPool",
    "ScriptedEngine",
    "ScriptedEnv",
    "ScriptedTurn",
    "check_engine",
    "check_env",
    "check_provider",
    "check_sandbox",
    "check_tool",
]

_HOMES = {
    "InMemorySandboxPool": "agentrl.testing.sandbox",
    "ScriptedEngine": "agentrl.testing.engine",
    "ScriptedEnv": "agentrl.testing.scripted_env",
    "ScriptedTurn": "agentrl.testing.scripted_env",
    "check_engine": "agentrl.testing.engine",
    "check_env": "agentrl.testing.env",
    "check_provider": "agentrl.testing.provider",
    "check_sandbox": "agentrl.testing.sandbox",
    "check_tool": "agentrl.testing.tool",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'agentrl.testing' has no attribute {name!r}")

"""Policy engines: everything that samples turns from a policy.

`ScriptedEngine` plays replies given to it and needs no model. `LocalEngine` decodes many requests
at once in this process. Only the latter imports torch, and only when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from agentrl.engine.scripted import ScriptedEngine

if TYPE_CHECKING:
    from agentrl.engine.local import LocalEngine

__all__ = ["LocalEngine", "ScriptedEngine"]


def __getattr__(name: str) -> Any:
    if name == "LocalEngine":
        from agentrl.engine.local import LocalEngine

        return LocalEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""An engine in another process: the contract over a socket, token ids as typed arrays.

    ProcessEngine    owns a process, and replaces one that died     process.py, replicas.py
    ListeningProcess starts one that serves the network, no torch   launch.py
    AddressEngine    connects, and again when that is lost          address.py, replicas.py
      RemoteEngine   the contract, on our side of a socket          client.py
        ~~~~ frames: JSON and arrays, nothing that runs code        wire.py, frames.py
      EngineServer   any engine, on the other side                  server.py

The engine behind it may be of any kind, in another interpreter, on another machine. What breaks on
the way (a process that died, a socket that fell silent) is an `EngineError` of the requests in
flight, so an infrastructure failure and never a reward.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.engine.remote.address import AddressEngine
    from agentrl.engine.remote.client import RemoteEngine, connect
    from agentrl.engine.remote.process import ProcessEngine
    from agentrl.engine.remote.replicas import EngineReplica, EngineReplicas
    from agentrl.engine.remote.server import EngineServer

_MODULES = {
    "AddressEngine": "address",
    "EngineReplica": "replicas",
    "EngineReplicas": "replicas",
    "EngineServer": "server",
    "ProcessEngine": "process",
    "RemoteEngine": "client",
    "connect": "client",
}
"""Modules of the names, imported when they are asked for: an actor that only holds the process of
an engine imports no torch."""

__all__ = [
    "AddressEngine",
    "EngineReplica",
    "EngineReplicas",
    "EngineServer",
    "ProcessEngine",
    "RemoteEngine",
    "connect",
]


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)

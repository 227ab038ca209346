"""An engine in another process: the contract over a socket, token ids as typed arrays.

    ProcessEngine    owns a process, and replaces one that died     process.py, replicas.py
    AddressEngine    connects, and again when that is lost          address.py, replicas.py
      RemoteEngine   the contract, on our side of a socket          client.py
        ~~~~ frames: JSON and arrays, nothing that runs code        wire.py, frames.py
      EngineServer   any engine, on the other side                  server.py

The engine behind it may be of any kind, in another interpreter, on another machine. What breaks on
the way (a process that died, a socket that fell silent) is an `EngineError` of the requests in
flight, so an infrastructure failure and never a reward.
"""

from agentrl.engine.remote.address import AddressEngine
from agentrl.engine.remote.client import RemoteEngine, connect
from agentrl.engine.remote.process import ProcessEngine
from agentrl.engine.remote.replicas import EngineReplica, EngineReplicas
from agentrl.engine.remote.server import EngineServer

__all__ = [
    "AddressEngine",
    "EngineReplica",
    "EngineReplicas",
    "EngineServer",
    "ProcessEngine",
    "RemoteEngine",
    "connect",
]

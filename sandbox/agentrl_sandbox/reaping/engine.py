"""Containers, over the socket of an engine: found by label, removed with what runs in them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ANSWER_S = 10.0
"""Per request; killing and removing a container takes the engine about a second."""


class ContainerEngineError(OSError):
    """The engine does not answer, or refuses."""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container as the engine lists it."""

    id: str
    labels: dict[str, str]
    running: bool


def default_engine(environ: Mapping[str, str] = os.environ) -> str:
    """Return the socket of the engine that the environment names, or the usual one."""
    host = environ.get("DOCKER_HOST", "")
    return host.removeprefix("unix://") if host.startswith("unix://") else "/var/run/docker.sock"


def containers(engine: str, label: str) -> list[ListedContainer]:
    """Return containers in any state that have a label, given as `key` or `key=value`."""
    query = {"all": "1", "filters": json.dumps({"label": [label]})}
    status, body = _request(engine, "GET", "/containers/json", query)
    if status != 200:
        raise ContainerEngineError(f"the engine at {engine} refused the request: {_message(body)}")
    entries = json.loads(body)
    return [
        ListedContainer(c["Id"], dict(c.get("Labels") or {}), c.get("State") == "running")
        for c in entries
    ]


def remove(engine: str, container_id: str) -> bool:
    """Kill and remove a container with its volumes; False when it was gone."""
    query = {"force": "1", "v": "1"}
    status, body = _request(engine, "DELETE", f"/containers/{container_id}", query)
    if status not in (204, 404):
        raise ContainerEngineError(f"the engine at {engine} refused the request: {_message(body)}")
    return status != 404


def _request(engine: str, method: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    # Imported when they are needed: a reaper that only waits stays small.
    import http.client
    import socket
    from urllib.parse import urlencode

    class EngineSocket(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(engine)

    connection = EngineSocket("localhost", timeout=_ANSWER_S)
    try:
        connection.request(method, f"{path}?{urlencode(query)}")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise ContainerEngineError(f"the engine at {engine} does not answer: {why}") from error
    finally:
        connection.close()


def _message(body: bytes) -> str:
    try:
        answer: Any = json.loads(body)
        return str(answer["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]

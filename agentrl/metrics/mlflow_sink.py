"""A run's numbers in MLflow."""

import json
import posixpath
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError, contain
from agentrl.metrics.run_id import read_run_id, write_run_id
from agentrl.runtime.extras import explain_missing
from agentrl.runtime.threads import call_within

KNOWN_AS = "mlflow.json"
"""In a run's folder: its id in MLflow."""
OPEN_S = 60.0
"""Deadline of the first answer: the client itself tries again for minutes."""
CLOSE_S = 60.0
"""Deadline of what is left to be sent at the end."""
MOST_PARAMETERS = 100
MOST_METRICS = 1000
"""Of one request."""
MOST_NAME = 250
"""Characters of a name."""
MOST_VALUE = 6000
"""Characters of a parameter's value, such as a long system message; MLflow refuses more."""


class MlflowSink:
    """Sends every line of the metrics; one run of theirs for one of ours, however often resumed.

    Opened before training begins, so that a wrong server fails then. Lines are sent by a thread of
    its own, for the client tries for minutes to reach a server that is gone. MLflow takes nothing
    back: a step that a resumed run does again is there twice.
    """

    key = "metrics.mlflow"

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        experiment: str,
        tracking_uri: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `ConfigError` where the package is missing or MLflow refuses the run."""
        try:
            mlflow: Any = import_module("mlflow")
        except ImportError as error:
            raise ConfigError(
                f"{explain_missing(self.key, 'mlflow')}, or set it to null"
            ) from error
        file = folder / KNOWN_AS
        parameters = dict(flatten_config(config or {}))
        try:
            self._client = mlflow.MlflowClient(tracking_uri)
            self._entities = mlflow.entities
            self._run_id = call_within(
                OPEN_S, self._open_run, read_run_id(file), name, experiment, parameters
            )
        except (mlflow.MlflowException, ImportError, OSError, ValueError) as error:
            why = str(error) or f"no answer within {OPEN_S:g} s"
            raise ConfigError(
                f"MLflow rejected the run {name!r} of experiment {experiment!r}: {why}; set "
                f"{self.key}.tracking_uri, such as http://HOST:5000, delete {file} to begin "
                f"another run there, or set {self.key} to null"
            ) from error
        write_run_id(file, self._run_id)
        self._error: Exception | None = None
        self._lines: queue.SimpleQueue[tuple[int, int, dict[str, float]] | None]
        self._lines = queue.SimpleQueue()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._send_lines, name="agentrl-mlflow", daemon=True
        )
        self._thread.start()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Have a line sent. Raises the error of an earlier one, after which none is sent."""
        if self._error is not None:
            raise self._error
        self._lines.put((step, time.time_ns() // 1_000_000, dict(figures)))

    def close(self) -> None:
        """Wait for what is being sent, `TimeoutError` after a minute. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._lines.put(None)
        thread.join(CLOSE_S)
        if thread.is_alive():
            raise TimeoutError(f"MLflow did not take the last figures within {CLOSE_S:g} s")
        if self._error is not None:
            raise self._error

    def _open_run(
        self, run_id: str | None, name: str, experiment: str, parameters: Mapping[str, str]
    ) -> str:
        """Go on with a run of MLflow, or begin one with these parameters; return its id."""
        client = self._client
        if run_id is not None:
            client.update_run(run_id, status="RUNNING")
            return run_id
        earlier = client.get_experiment_by_name(experiment)
        experiment_id = (
            client.create_experiment(experiment) if earlier is None else earlier.experiment_id
        )
        run_id = str(client.create_run(experiment_id, run_name=name).info.run_id)
        params = [self._entities.Param(key, value) for key, value in parameters.items()]
        for at in range(0, len(params), MOST_PARAMETERS):
            client.log_batch(run_id, params=params[at : at + MOST_PARAMETERS])
        return run_id

    def _send_lines(self) -> None:
        with contain(self._remember):
            while (line := self._lines.get()) is not None:
                self._send(*line)
            self._client.set_terminated(self._run_id)

    def _remember(self, error: Exception) -> None:
        self._error = error

    def _send(self, step: int, milliseconds: int, figures: Mapping[str, float]) -> None:
        metrics = [
            self._entities.Metric(to_mlflow_name(name), value, milliseconds, step)
            for name, value in figures.items()
        ]
        for at in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[at : at + MOST_METRICS])


def flatten_config(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a config, dots between their parts, with their values as JSON or text."""
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten_config(cast(Mapping[str, Any], value), f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield to_mlflow_name(name), text[:MOST_VALUE]


def to_mlflow_name(name: str) -> str:
    """Return a name as MLflow allows it: letters, digits, `_`, `.`, `-`, spaces and slashes, as a
    relative path in its shortest form."""
    path = posixpath.normpath(re.sub(r"[^\w./ -]", "_", name))
    return (path.lstrip("./") or "_")[:MOST_NAME].rstrip("/")

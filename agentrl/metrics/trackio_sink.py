"""A run's numbers in Trackio."""

import contextlib
import contextvars
import sqlite3
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.metrics.run_id import read_run_id, write_run_id
from agentrl.runtime.extras import explain_missing

KNOWN_AS = "trackio.json"
"""In a run's folder: its id in Trackio."""


class TrackioSink:
    """Sends every line of the metrics; one run of theirs for one of ours, however often resumed.

    Opened before training begins, so that a wrong name fails then. Trackio sends from a thread of
    its own and warns of what it cannot send, which then waits on this machine.
    """

    key = "metrics.trackio"

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        project: str,
        space_id: str | None = None,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `ConfigError` where the package is missing or Trackio refuses the run."""
        try:
            trackio: Any = import_module("trackio")
        except ImportError as error:
            raise ConfigError(
                f"{explain_missing(self.key, 'trackio')}, or set it to null"
            ) from error
        run_id = read_run_id(folder / KNOWN_AS)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                # In a context of its own: Trackio ends the run that it last began in this one.
                run = contextvars.copy_context().run(
                    trackio.init,
                    project=project,
                    name=name,
                    group=group,
                    space_id=space_id,
                    config=dict(config or {}),
                    resume="never" if run_id is None else "must",
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                )
        except (ValueError, OSError, RuntimeError, sqlite3.Error) as error:
            raise ConfigError(
                f"Trackio rejected the run {name!r} of project {project!r}: {error}; change "
                f"{self.key}, or set it to null"
            ) from error
        self._run: Any = run
        if run_id is None:
            write_run_id(folder / KNOWN_AS, str(run.id))
        elif run.id != run_id:
            # Trackio finds runs by their names, the newest first.
            self.close()
            raise ConfigError(
                f"project {project!r} of Trackio has a newer run {name!r} than this one, which "
                f"cannot go on there; delete {folder / KNOWN_AS} to begin another there, or set "
                f"{self.key} to null"
            )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                run.finish()

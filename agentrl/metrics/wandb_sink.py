"""A run's numbers in Weights & Biases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentrl.errors import ConfigError
from agentrl.metrics.run_id import read_run_id, write_run_id
from agentrl.runtime.extras import explain_missing

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

KNOWN_AS = "wandb.json"
"""In a run's folder: what W&B calls it, so that a resumed run goes on with the same one."""

Mode = Literal["online", "offline"]

FINISH_S = 120.0
"""Longest wait for W&B to take what it has not got yet, when a run ends."""


class WandbSink:
    """Sends every line of the metrics; one run of theirs for one of ours, however often resumed.

    Opened before training begins, so that a wrong key fails then. Steps count by their own figure,
    `step`: W&B takes back nothing, and a resumed run does some steps again.
    """

    key = "metrics.wandb"

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        project: str,
        mode: Mode = "online",
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `ConfigError` where the package is missing or W&B refuses the run."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                f"{explain_missing('metrics.wandb', 'wandb')}, or set it to null"
            ) from error
        run_id = read_run_id(folder / KNOWN_AS)
        try:
            self._run: Run | None = wandb.init(
                dir=folder,
                id=run_id,
                resume="allow",
                name=name,
                project=project,
                entity=entity,
                group=group,
                tags=[*tags],
                mode=mode,
                config=dict(config or {}),
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    finish_timeout=FINISH_S,
                    finish_timeout_raises=True,
                ),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"W&B rejected the run {name!r} of project {project!r}: {error}; log in with "
                "`wandb login`, set metrics.wandb.mode: offline, or metrics.wandb: null"
            ) from error
        if run_id is None:
            write_run_id(folder / KNOWN_AS, self._run.id)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log({**figures, "step": step})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish()
        except TimeoutError as error:
            raise TimeoutError(
                f"W&B did not take everything within {FINISH_S:g} s; upload the rest with "
                f"`wandb sync {run.settings.sync_dir}`"
            ) from error

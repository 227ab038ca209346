"""Evaluation on its own: any policy of a config, on the config's held-out tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl import wiring
from agentrl.atomic import write_json
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.evaluation.folder import open_record
from agentrl.evaluation.record import EvaluationRecord
from agentrl.evaluation.report import Report
from agentrl.evaluation.reports import REPORT
from agentrl.first_policy import load_policy
from agentrl.progress import Progress, Quiet
from agentrl.sandbox import using_sandbox
from agentrl.scope import run_scope
from agentrl.thread import run_to_the_end


def evaluate(
    config: RunConfig | Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    checkpoint: Path | str | None = None,
    progress: Progress | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Report:
    """Evaluate a policy on the held-out tasks of `config`.

    The policy is `checkpoint`, or the newest one of the run that `config` describes, or
    `policy.path`. The tasks and the sampling noise are those of the run's own evaluations.

    With `out` every trajectory is kept in that folder as it ends, and `resume` plays only what is
    missing there, those that broke among it. Raises `ConfigError` naming the keys that changed.
    """
    if resume and out is None:
        raise ConfigError("resume (--resume) goes on with the evaluation in out (--out); name it")
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides or {})
    path = checkpoint or _newest(config) or config.policy.path
    if path is None:
        raise ConfigError(
            f"there is no policy to evaluate: {config.run.folder / config.run.name} holds no "
            "checkpoint and policy.path is not set; train first, or name a checkpoint"
        )
    wiring.use_threads(config.run.threads)
    if out is None:
        return run_to_the_end(_evaluate(config, path, progress or Quiet(), None))
    with open_record(out, config, path, resume=resume) as record:
        report = run_to_the_end(_evaluate(config, path, progress or Quiet(), record))
    write_json(out / REPORT, report.to_json())
    return report


def _newest(config: RunConfig) -> Path | None:
    from agentrl.learn.checkpoint import latest

    return latest(config.run.folder / config.run.name / "checkpoints")


async def _evaluate(
    config: RunConfig, path: Path | str, progress: Progress, record: EvaluationRecord | None
) -> Report:
    make_env = wiring.env_factory(config)
    heldout = wiring.evaluation_tasks(config, make_env())
    from agentrl.engine.opening import engine_of

    policy = load_policy(config, path)
    with using_sandbox(wiring.sandbox_settings(config.sandbox)):
        async with run_scope(), engine_of(config, policy) as engine:
            rollouts = wiring.rollouts(config, make_env, engine, policy.chat)
            return await wiring.evaluation(config, heldout).run(rollouts, progress, record=record)

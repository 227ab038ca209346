"""Evaluation on its own: any policy of a config, on the config's held-out tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl import wiring
from agentrl.atomic import write_json
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.evaluation.budget import Budget
from agentrl.evaluation.folder import open_record
from agentrl.evaluation.record import EvaluationRecord
from agentrl.evaluation.report import Report
from agentrl.evaluation.reports import REPORT
from agentrl.evaluation.scaling.catalogue import method_of
from agentrl.evaluation.scaling.run import ScaledEvaluation
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
    _check_scaling(config, out)
    wiring.use_threads(config.run.threads)
    if out is None:
        return run_to_the_end(_evaluate(config, path, progress or Quiet(), None))
    with open_record(out, config, path, resume=resume) as record:
        report = run_to_the_end(_evaluate(config, path, progress or Quiet(), record))
    write_json(out / REPORT, report.to_json())
    return report


def _check_scaling(config: RunConfig, out: Path | None) -> None:
    """Raise `ConfigError` for what does not go together with `evaluate.scaling`."""
    section = config.evaluate
    if section.scaling is None:
        return
    others = {
        "--out": out is not None,
        "evaluate.until": section.until is not None,
        "evaluate.budget.each": Budget(**section.budget.each.model_dump()).bounds,
        "evaluate.budget.total": Budget(**section.budget.total.model_dump()).bounds,
        "evaluate.samples_per_task": section.samples_per_task > 1,
    }
    given = [name for name, there in others.items() if there]
    if given:
        raise ConfigError(
            f"evaluate.scaling submits one attempt for each task and cannot be combined with "
            f"{', '.join(given)}; leave that out, or set evaluate.scaling to null"
        )
    method_of(section.scaling)


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
        async with (
            run_scope(),
            wiring.worlds(config, make_env) as make_world,
            engine_of(config, policy) as engine,
        ):
            rollouts = wiring.rollouts(config, make_world, engine, policy.chat)
            plain = wiring.evaluation(config, heldout)
            section = config.evaluate.scaling
            if section is None:
                return await plain.run(rollouts, progress, record=record)
            scaled = ScaledEvaluation(
                evaluation=plain,
                method=method_of(section),
                name=section.name,
                tasks_at_once=max(1, rollouts.concurrency // section.samples),
            )
            return await scaled.run(rollouts, progress)

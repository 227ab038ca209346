"""Evaluation on its own: any policy of a config, on the config's held-out tasks."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.evaluation.budget import has_bounds
from agentrl.evaluation.record import EvaluationRecord
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.reports import REPORT
from agentrl.evaluation.scaling.methods import method_of
from agentrl.evaluation.scaling.run import ScaledEvaluation
from agentrl.models.place import is_gguf, policy_place
from agentrl.run import build
from agentrl.run.evaluation_folder import open_record
from agentrl.run.player import evaluate_player
from agentrl.run.policy_model import load_policy
from agentrl.run.preflight import check_machine
from agentrl.runtime.atomic_files import write_json
from agentrl.runtime.heap import frozen_heap
from agentrl.runtime.machine import set_thread_count
from agentrl.runtime.progress import RunProgress, SilentProgress
from agentrl.runtime.reachability import endpoint_faults
from agentrl.runtime.scope import run_scope
from agentrl.runtime.threads import run_to_the_end
from agentrl.sandbox import using_sandbox

if TYPE_CHECKING:
    from agentrl.evaluation.endpoint import HttpEndpoint


def evaluate(
    config: RunConfig | Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    checkpoint: Path | str | None = None,
    progress: RunProgress | None = None,
    out: Path | None = None,
    resume: bool = False,
    endpoint: "HttpEndpoint | None" = None,
    player: str | None = None,
) -> EvaluationReport:
    """Evaluate a policy on the held-out tasks of `config`.

    The policy is `checkpoint`, or the newest one of the run that `config` describes, or
    `policy.path`. The tasks and the sampling noise are those of the run's own evaluations.

    Args:
        config: A YAML file, or a config that was loaded already.
        overrides: Values by dotted key, laid over the config.
        checkpoint: Folder of a policy or of a checkpoint.
        progress: Object that is told of phases and tasks, such as that of `show_progress`; None
            shows nothing.
        out: Folder in which every trajectory is kept as it ends.
        resume: Play only what is missing in `out`, those that broke among it.
        endpoint: Server of somebody else's that answers as the policy; the policies of the config
            are not looked at.
        player: `gold`, `random`, or `module:function`, which plays in the place of a policy. The
            function is given the messages so far and the tools, and returns an `Action` or text.

    Returns:
        Every score with its interval, failed trajectories apart.

    Raises:
        ConfigError: The config has a problem, there is no policy, arguments do not go together, or
            `out` holds an evaluation under other keys, which are named.
        AgentrlError: Something else ended it, such as that every trajectory failed.
    """
    if resume and out is None:
        raise ConfigError(
            "resume (--resume) resumes the evaluation in out (--out), which is not set; set it"
        )
    config = load_config(config, overrides or {})
    if player is not None:
        if endpoint is not None or checkpoint is not None or out is not None:
            raise ConfigError(
                f"player (--player) is {player}, which uses no endpoint, no checkpoint, and no "
                "tokens; omit --endpoint, --checkpoint, and --out"
            )
        return run_to_the_end(evaluate_player(config, player, progress or SilentProgress()))
    if endpoint is not None:
        return _evaluate_endpoint(
            config, endpoint, checkpoint, progress or SilentProgress(), out, resume=resume
        )
    path = checkpoint or _find_newest(config) or config.policy.path
    if path is None:
        raise ConfigError(
            f"there is no policy to evaluate: {config.run.folder / config.run.name} has no "
            "checkpoint and policy.path is not set; train first, or name a checkpoint"
        )
    _check_scaling(config, out)
    if config.engine.kind == "endpoint":
        raise ConfigError(
            f"engine.kind is endpoint, whose servers have the base model of a run but not {path}; "
            f"evaluate with engine.kind: local or vllm and engine.endpoint: null, or serve {path} "
            "and name its server with endpoint (--endpoint)"
        )
    policy = config.policy.model_copy(update={"path": str(path), "make": None})
    progress = progress or SilentProgress()
    check_machine(config.model_copy(update={"policy": policy}), progress.say)
    path = policy_place(path)
    if is_gguf(path) and config.engine.kind == "vllm":
        raise ConfigError(
            f"engine.kind is vllm, which loads model folders, but {path} is a GGUF file; set "
            "engine.kind: local, or evaluate policy/ of a run that starts from this file"
        )
    set_thread_count(config.run.threads)
    if out is None:
        return run_to_the_end(_evaluate(config, path, progress, None))
    place = out.absolute()
    with open_record(out, config, path, resume=resume) as record:
        report = run_to_the_end(_evaluate(config, path, progress, record))
    write_json(place / REPORT, report.to_json())
    return report


def _check_scaling(config: RunConfig, out: Path | None) -> None:
    section = config.evaluate
    if section.scaling is None:
        return
    others = {
        "--out": out is not None,
        "evaluate.until": section.until is not None,
        "evaluate.budget.each": has_bounds(section.budget.each),
        "evaluate.budget.total": has_bounds(section.budget.total),
        "evaluate.samples_per_task": section.samples_per_task > 1,
    }
    conflicts = [name for name, there in others.items() if there]
    if conflicts:
        raise ConfigError(
            "evaluate.scaling submits one attempt per task and cannot be combined with "
            f"{', '.join(conflicts)}; remove that, or set evaluate.scaling to null"
        )
    method_of(section.scaling)


def _evaluate_endpoint(
    config: RunConfig,
    endpoint: "HttpEndpoint",
    checkpoint: Path | str | None,
    progress: RunProgress,
    out: Path | None,
    *,
    resume: bool,
) -> EvaluationReport:
    budget = config.evaluate.budget
    if checkpoint is not None:
        raise ConfigError(
            f"checkpoint (--checkpoint) is {checkpoint} and the policy is {endpoint}; give only "
            "one of them"
        )
    if config.evaluate.scaling is not None:
        raise ConfigError(
            "evaluate.scaling needs the sampled tokens, which an endpoint does not return; set "
            "evaluate.scaling to null"
        )
    for name, part in (("each", budget.each), ("total", budget.total)):
        for key in ("tokens", "money"):
            if getattr(part, key) is not None:
                raise ConfigError(
                    f"evaluate.budget.{name}.{key} is {getattr(part, key)}, but the tokens of an "
                    "endpoint are not counted; limit turns, tool_calls or env_s instead"
                )
    if fault := endpoint_faults([endpoint.url], endpoint.key_variable).get(endpoint.url):
        way = (
            "start the server there, or name another server"
            if fault.may_pass
            else "set the variable to the key of the server"
        )
        raise ConfigError(f"--endpoint is {endpoint.url}, which {fault.why}; {way}")
    if out is None:
        return run_to_the_end(_play_endpoint(config, endpoint, progress, None))
    place = out.absolute()
    with open_record(out, config, str(endpoint), resume=resume) as record:
        report = run_to_the_end(_play_endpoint(config, endpoint, progress, record))
    write_json(place / REPORT, report.to_json())
    return report


async def _play_endpoint(
    config: RunConfig,
    endpoint: "HttpEndpoint",
    progress: RunProgress,
    record: EvaluationRecord | None,
) -> EvaluationReport:
    from agentrl.evaluation.endpoint import EndpointChat, EndpointEngine

    make_env = build.build_env_factory(config)
    heldout = build.build_evaluation_tasks(config, make_env(), progress.say)
    with using_sandbox(build.build_sandbox_settings(config.sandbox)), frozen_heap():
        async with run_scope(), EndpointEngine(endpoint) as engine:
            rollouts = build.build_rollout_runner(config, make_env, engine, EndpointChat())
            # Its tokens are bytes; how long a context may be is the endpoint's business.
            limits = replace(rollouts.limits, context_tokens=2**31)
            rollouts = replace(rollouts, limits=limits)
            evaluation = build.build_evaluation(config, heldout)
            evaluation = replace(evaluation, about={**evaluation.about, "policy": str(endpoint)})
            return await evaluation.run(rollouts, progress, record=record)


def _find_newest(config: RunConfig) -> Path | None:
    from agentrl.learn.checkpoint import latest

    return latest(config.run.folder / config.run.name / "checkpoints")


async def _evaluate(
    config: RunConfig, path: Path | str, progress: RunProgress, record: EvaluationRecord | None
) -> EvaluationReport:
    make_env = build.build_env_factory(config)
    heldout = build.build_evaluation_tasks(config, make_env(), progress.say)
    from agentrl.run.build_engine import build_engine

    policy = load_policy(config, path)
    with using_sandbox(build.build_sandbox_settings(config.sandbox)), frozen_heap():
        async with (
            run_scope(),
            build.open_env_workers(config, make_env) as make_world,
            build_engine(config, policy) as engine,
        ):
            rollouts = build.build_rollout_runner(config, make_world, engine, policy.chat)
            plain = build.build_evaluation(config, heldout)
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

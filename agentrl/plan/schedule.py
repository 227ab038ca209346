"""A run's schedule in virtual time, with planned speeds in place of measured ones."""

from dataclasses import dataclass, replace
from statistics import fmean

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost, TurnCost
from agentrl.plan.rollout import RolloutCost
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.simulate.engine import EngineSpeed
from agentrl.simulate.study import StudyResult, StudySetting, compare

STEPS, WARM_STEPS = 5, 2
PLAYED = 64
"""Most trajectories of a step that are played. Of a larger one every part is scaled down alike."""
BUSY = 0.7
"""From this share of the time on, something is what a run waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeForecast:
    """One mode of the scheduler, by what it makes of the planned speeds."""

    mode: str
    steps_per_hour: float
    trained_tokens_per_s: float
    train_busy: float
    engine_busy: float
    env_busy: float
    bound_by: str
    advice: str


def fit_trace(trace: LatencyTrace, config: RunConfig) -> LatencyTrace:
    """Return the trajectories of a trace as the limits of a config would have cut them."""
    rollout, context_tokens = config.rollout, config.engine.context_tokens
    if context_tokens < 2:
        raise ConfigError(
            f"engine.context_tokens is {context_tokens}, but a trajectory has a prompt and a "
            "sampled token; set it to at least 2"
        )

    def fit(one: TrajectoryCost) -> TrajectoryCost:
        prompt = min(one.prompt_tokens, max(1, context_tokens // 2))
        left = context_tokens - prompt
        turns: list[TurnCost] = []
        for turn in one.turns[: rollout.max_turns]:
            tokens = min(turn.tokens, config.sampling.max_turn_tokens, left)
            if tokens <= 0:
                break
            reply = min(turn.reply_tokens, left - tokens)
            turns.append(replace(turn, tokens=tokens, reply_tokens=reply))
            left -= tokens + reply
        return replace(one, prompt_tokens=prompt, turns=tuple(turns))

    return replace(trace, trajectories=tuple(fit(t) for t in trace.trajectories))


def mean_tokens(trace: LatencyTrace) -> float:
    """Return the mean length of a trajectory: prompt, sampled tokens and replies."""
    return fmean(
        t.prompt_tokens + t.tokens + sum(turn.reply_tokens for turn in t.turns)
        for t in trace.trajectories
    )


def forecast_modes(
    config: RunConfig,
    trace: LatencyTrace,
    rollout: RolloutCost,
    *,
    engines: int,
    train_s: float,
    load_s: float,
) -> tuple[ModeForecast, ...]:
    """Play a few steps of each mode in virtual time; `trace` is fitted to the config already."""
    section = config.rollout
    group_size = min(section.group_size, PLAYED)
    groups = min(section.tasks_per_step, max(1, PLAYED // group_size))
    scale = section.tasks_per_step * section.group_size / (groups * group_size)
    slope_s = (rollout.step_s - rollout.first_step_s) / max(1, rollout.slots - 1) / engines
    speed = EngineSpeed(
        slots=_scaled(rollout.slots * engines, scale),
        step_s=rollout.first_step_s,
        slot_s=slope_s * scale,
        prefill_tokens_per_step=max(1, round(rollout.first_step_s * rollout.prefill_tokens_per_s)),
        pause_s=0.0,
        load_s=load_s,
    )
    policy = SchedulerPolicy(
        groups_per_step=groups,
        group_size=group_size,
        concurrency=_scaled(section.concurrency, scale),
        retries=section.retries,
        over_provision=section.over_provision,
        max_staleness=section.max_staleness,
    )
    setting = StudySetting(
        trace=trace,
        policy=policy,
        speed=speed,
        train_s=train_s,
        steps=STEPS,
        warm_steps=WARM_STEPS,
        failure_rate=0.0,
    )
    return tuple(_forecast(one, scale) for one in compare(setting))


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count / scale))


def _forecast(result: StudyResult, scale: float) -> ModeForecast:
    setting = result.setting
    steps = setting.steps - setting.warm_steps
    train_busy = setting.train_s * steps / result.seconds
    shares = {
        "the trainer": train_busy,
        "the engines": result.engine_busy,
        "the environments": result.env_busy,
    }
    bound_by, advice = name_bound(shares, setting.policy.mode)
    return ModeForecast(
        mode=setting.policy.mode,
        steps_per_hour=3600 * steps / result.seconds,
        trained_tokens_per_s=result.tokens_per_s * scale,
        train_busy=train_busy,
        engine_busy=result.engine_busy,
        env_busy=result.env_busy,
        bound_by=bound_by,
        advice=advice,
    )


_CHANGES = {
    "the trainer": "raise learn.devices.count, or train less of the model (learn.lora)",
    "the engines": "raise engine.processes, or engine.slots where the KV cache has room",
    "the environments": "raise rollout.concurrency, or make the environment's steps faster",
}


def name_bound(shares: dict[str, float], mode: str) -> tuple[str, str]:
    """Return the bottleneck of a run by the share of time each part is busy, and what to change."""
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] >= BUSY:
        return busiest, _CHANGES[busiest]
    if mode == "async":
        return "the tail of long trajectories", "raise rollout.concurrency or max_staleness"
    return (
        f"{busiest} and the others in turn",
        "set rollout.mode: async, with devices for the engines apart",
    )

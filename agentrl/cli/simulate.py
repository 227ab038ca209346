"""`agentrl simulate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonFlag, Overrides, check_writable
from agentrl.cli.completion import complete_config
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.cli.progress import show_progress
from agentrl.cli.trace import find_trace
from agentrl.errors import ConfigError

MOST_TRAIN_S = 1e6
"""Virtual time goes by in days at most, so an endless step would never end."""

if TYPE_CHECKING:
    from agentrl.simulate.provision import ProvisionPlan
    from agentrl.simulate.study import StudyResult, StudySetting


def simulate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|TRACE",
            autocompletion=complete_config,
            help="Config file, a name of agentrl configs, a trace file, or a synthetic trace: "
            "lognormal, bimodal, agentic.",
        ),
    ],
    overrides: Overrides = None,
    *,
    trace: Annotated[
        str | None, typer.Option(help="With CONFIG: trace to simulate; agentic by default.")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Number of training steps to simulate.")] = 12,
    train_s: Annotated[
        float,
        typer.Option(min=0, max=MOST_TRAIN_S, help="Duration of one optimiser step, in seconds."),
    ] = 20.0,
    failures: Annotated[
        float | None, typer.Option(min=0, max=0.9, help="Fraction of attempts that fail.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write the timeline to this SVG file.")
    ] = None,
    recommend: Annotated[
        bool,
        typer.Option(help="Search for the best concurrency, over-provisioning, and staleness."),
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Simulate the rollout schedule of a run: sync, partial, and async against the ideal."""
    from agentrl.runtime.atomic_files import write_text
    from agentrl.simulate import study, timeline
    from agentrl.simulate.provision import plan_capacity

    check_writable(picture, "--picture")
    setting = _setting(target, overrides or (), trace, steps, train_s, failures)
    results = study.compare(setting)
    sync = results[0].per_s
    if picture is not None:
        write_text(picture, timeline.picture(results))
        show_text(f"written to {picture}", err)
    if not as_json:
        rows = [_row(one, sync) for one in results]
        ideal = ("ideal", f"{results[0].ideal_per_s:.3f}", "", "100%", *[""] * 6)
        show_table(HEADINGS, [*rows, ideal], title=_title(setting))
        for one in results:
            show_text(f"\n{one.setting.policy.mode}\n{timeline.text(one.timeline)}")
    best = _search(setting) if recommend else []
    capacity = list(plan_capacity(setting)) if recommend and setting.train_s else []
    if as_json:
        show_json(
            {
                "ideal_per_s": results[0].ideal_per_s,
                "modes": [_result_json(one) for one in results],
                "recommended": [_recommended_json(one) for one in best],
                "capacity": capacity,
            }
        )
        return
    if best:
        _show_recommended(best)
    if capacity:
        _show_capacity(setting, capacity)


HEADINGS = (
    "mode",
    "trajectories/s",
    "x sync",
    "of ideal",
    "engine busy",
    "env busy",
    "env held",
    "mean age",
    "oldest",
    "retried",
)


def _row(one: "StudyResult", sync_per_s: float) -> tuple[str, ...]:
    return (
        one.setting.policy.mode,
        f"{one.per_s:.3f}",
        f"{one.per_s / sync_per_s:.2f}",
        f"{one.per_s / one.ideal_per_s:.0%}",
        f"{one.engine_busy:.1%}",
        f"{one.env_busy:.1%}",
        f"{one.env_held:.1%}",
        f"{one.age_mean:.2f}",
        str(one.age_max),
        str(one.retried),
    )


def _result_json(one: "StudyResult") -> dict[str, object]:
    return {
        "mode": one.setting.policy.mode,
        "trajectories_per_s": one.per_s,
        "engine_busy": one.engine_busy,
        "env_busy": one.env_busy,
        "env_held": one.env_held,
        "age_mean": one.age_mean,
        "age_max": one.age_max,
        "retried": one.retried,
    }


def _recommended_json(one: "StudyResult") -> dict[str, object]:
    policy = one.setting.policy
    return {
        "mode": policy.mode,
        "concurrency": policy.concurrency,
        "over_provision": policy.over_provision,
        "max_staleness": policy.max_staleness,
        "trajectories_per_s": one.per_s,
        "engine_busy": one.engine_busy,
    }


def _title(setting: "StudySetting") -> str:
    policy, trace = setting.policy, setting.trace
    return (
        f"{trace.name}: {trace.tokens_mean:.0f} tokens and {trace.env_s_mean:.1f} environment-"
        f"seconds per trajectory; {policy.groups_per_step} groups of {policy.group_size}, "
        f"{policy.concurrency} environments, {setting.speed.slots} slots"
    )


def _setting(
    target: str,
    overrides: Sequence[str],
    trace: str | None,
    steps: int,
    train_s: float,
    failures: float | None,
) -> "StudySetting":
    from agentrl.config.load import load_config
    from agentrl.config.packaged import find_config_file
    from agentrl.rollout.scheduler.policy import SchedulerPolicy
    from agentrl.simulate.engine import EngineSpeed
    from agentrl.simulate.study import StudySetting
    from agentrl.simulate.synthetic import TRACES

    policy = SchedulerPolicy(groups_per_step=16, group_size=8, concurrency=256, over_provision=2.0)
    speed = EngineSpeed()
    file = find_config_file(Path(target))
    if file.suffix in (".yaml", ".yml"):
        config = load_config(file, overrides)
        policy = SchedulerPolicy(
            groups_per_step=config.rollout.tasks_per_step,
            group_size=config.rollout.group_size,
            concurrency=config.rollout.concurrency,
            retries=config.rollout.retries,
            over_provision=2.0,
        )
        speed = EngineSpeed(slots=config.engine.slots)
        target = trace or "agentic"
    elif not file.exists() and target not in TRACES:
        raise ConfigError(
            f"{target!r} is neither a file nor the name of a config or trace; `agentrl configs` "
            f"lists the configs, and the synthetic traces are {', '.join(TRACES)}. `agentrl trace "
            "record RUN` writes the trace of a run"
        )
    elif overrides or trace is not None:
        extra = overrides[0] if overrides else f"--trace {trace}"
        raise ConfigError(
            f"{target} is a trace, which {extra} cannot change; name a config instead, as in "
            f"agentrl simulate quickstart {extra}"
        )
    return StudySetting(
        trace=find_trace(target),
        policy=policy,
        speed=speed,
        train_s=train_s,
        steps=steps,
        warm_steps=min(3, steps - 1),
        failure_rate=failures,
    )


def _search(setting: "StudySetting") -> "list[StudyResult]":
    """Return the best setting of each mode that can be set."""
    from agentrl.simulate import recommend

    grid = recommend.grid_around(setting)
    total = sum(1 for _ in recommend.settings(setting, grid))
    with show_progress() as progress, progress.phase("search", total=total) as bar:
        results = recommend.search(setting, grid, lambda: bar.advance(1))
    return [recommend.recommend(results, mode) for mode in ("partial", "async")]


def _show_recommended(results: "Sequence[StudyResult]") -> None:
    rows: list[tuple[str, ...]] = []
    for one in results:
        policy = one.setting.policy
        knob = f"max_staleness: {policy.max_staleness}"
        if policy.mode == "partial":
            knob = f"over_provision: {policy.over_provision:g}"
        figures = (f"{one.per_s:.3f}", f"{one.engine_busy:.1%}")
        rows.append((policy.mode, str(policy.concurrency), knob, *figures))
    show_text()
    show_table(
        ("mode", "concurrency", "", "trajectories/s", "engine busy"), rows, title="recommended"
    )


def _show_capacity(setting: "StudySetting", capacity: "Sequence[ProvisionPlan]") -> None:
    """Show how many engines and environments keep the trainer busy at each staleness."""
    from agentrl.simulate.provision import HEADROOM

    rows = [
        (str(one.max_staleness), f"{one.needed_per_s:.3f}", _count(one.engines), _count(one.envs))
        for one in capacity
    ]
    show_text()
    show_table(
        ("staleness", "trajectories/s", f"engines of {setting.speed.slots} slots", "environments"),
        rows,
        title=f"capacity for a trainer that never waits, with {HEADROOM:.0%} headroom",
    )


def _count(units: int | None) -> str:
    return "not reachable" if units is None else str(units)

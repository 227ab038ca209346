"""`agentrl plan`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import ConfigFile, JsonFlag, Overrides
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.cli.trace import find_trace
from agentrl.errors import ConfigError
from agentrl.runtime.extras import check_installed

if TYPE_CHECKING:
    from agentrl.plan.run_plan import RunPlan


def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    machine: Annotated[
        str,
        typer.Option(
            help="Machine to plan for, as COUNTxDEVICE such as 8xH100-80GB; `this` measures the "
            "CPU here."
        ),
    ] = "this",
    trace: Annotated[
        str, typer.Option(help="Trace of trajectories to plan with: a file, or a synthetic one.")
    ] = "agentic",
    as_json: JsonFlag = False,
) -> None:
    """Forecast memory, speed, and schedule of a run from its config alone. Exits 2 if it cannot
    fit."""
    check_installed("agentrl plan", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.plan.machine import find_machine

    loaded = load_config(config, overrides or ())
    played, place = find_trace(trace), find_machine(machine)

    from agentrl.plan.model_shape import find_shape
    from agentrl.plan.report import to_json
    from agentrl.plan.run_plan import plan_run, suggest_changes

    shape = find_shape(loaded)
    result = plan_run(loaded, shape, place, played)
    changes = suggest_changes(loaded, shape, place, played) if result.faults else None
    if as_json:
        show_json(to_json(result, changes))
    else:
        _show(result)
    if result.faults:
        raise ConfigError(_refusal(result, changes))


def _show(plan: "RunPlan") -> None:
    from agentrl.plan.report import (
        MODE_HEADINGS,
        advice_lines,
        memory_rows,
        mode_rows,
        speed_rows,
        title_of,
    )

    show_table(("memory", "of", "bytes"), memory_rows(plan), title=title_of(plan))
    show_text()
    show_table(("speed", "of", "by roofline"), speed_rows(plan))
    if plan.modes:
        show_text()
        show_table(
            MODE_HEADINGS, mode_rows(plan), title="schedule in virtual time (* the config's)"
        )
        show_text()
        show_text("to change")
        for line in advice_lines(plan):
            show_text(f"  {line}")
    for warning in plan.warnings:
        show_text(f"warning: {warning}", err)


def _refusal(plan: "RunPlan", changes: Any) -> str:
    faults = "; ".join(map(str, plan.faults))
    if changes is None:
        return (
            f"{plan.model} does not fit on {plan.machine.name}: {faults}. No change of the config "
            "that was tried is enough: plan for more or larger devices, a smaller model, or a "
            "shorter engine.context_tokens"
        )
    lines = "\n".join(f"  {key}={json.dumps(value)}" for key, value in changes.items())
    return (
        f"{plan.model} does not fit on {plan.machine.name}: {faults}. With these it would:\n{lines}"
    )

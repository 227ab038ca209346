"""`agentrl trace record` and `agentrl trace show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonFlag, RunFolder, check_writable
from agentrl.cli.console import err, show_json, show_table, show_text

if TYPE_CHECKING:
    from agentrl.metrics.latency_trace import LatencyTrace

QUANTILES = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}

app = typer.Typer(help="Record and inspect latency traces of trajectories, for `agentrl simulate`.")


@app.command("record")
def record(
    run: RunFolder,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Trace file to write; RUN.trace.jsonl in the working directory by default.",
        ),
    ] = None,
) -> None:
    """Write a trace file with the latencies and token counts of a run's trajectories."""
    from agentrl.metrics.latency_trace import FILE, read_trace, write_trace

    trace = read_trace(run / FILE, name=run.resolve().name)
    output = output or Path(f"{trace.name}.trace.jsonl")
    check_writable(output, "--output")
    write_trace(output, trace)
    show_text(f"wrote {len(trace.trajectories)} trajectories to {output}", err)


@app.command("show")
def show(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE", help="Trace file, or synthetic trace: lognormal, bimodal, agentic."
        ),
    ],
    *,
    as_json: JsonFlag = False,
) -> None:
    """Print latency and length statistics of a trace."""
    from agentrl.metrics.latency_trace import quantile

    read = find_trace(trace)
    costs = read.trajectories
    figures = {
        "turns": [float(len(cost.turns)) for cost in costs],
        "sampled tokens": [float(cost.tokens) for cost in costs],
        "reset, s": [cost.reset_s for cost in costs],
        "environment, s": [cost.env_s for cost in costs],
        "one step, s": [turn.step_s for cost in costs for turn in cost.turns],
    }
    quantiles = {
        name: {heading: quantile(values, q) for heading, q in QUANTILES.items()}
        for name, values in figures.items()
    }
    if as_json:
        show_json(
            {
                "name": read.name,
                "trajectories": len(costs),
                "failure_rate": read.failure_rate,
                "quantiles": quantiles,
            }
        )
        return
    rows = [(name, *(f"{v:.4g}" for v in values.values())) for name, values in quantiles.items()]
    title = f"{read.name}: {len(costs)} trajectories, {read.failure_rate:.1%} of attempts failed"
    show_table(("", *QUANTILES), rows, title=title)


def find_trace(name: str) -> "LatencyTrace":
    """Return the synthetic trace of this name, or the one in the file."""
    from agentrl.metrics.latency_trace import read_trace
    from agentrl.simulate.synthetic import TRACES, synthetic

    return synthetic(name) if name in TRACES else read_trace(Path(name))

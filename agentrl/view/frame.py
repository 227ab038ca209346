"""One frame of `agentrl watch`, for a terminal. A pure function of `RunStatus`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentrl.evaluation.interval import IntervalEstimate
from agentrl.view.live import is_stuck
from agentrl.view.run_status import RunStatus

SHOWN_FLYING = 8

_BARS = "▁▂▃▄▅▆▇█"
CURVE_COLUMNS = 48
"""Bars in a curve of rewards."""


def frame(standing: RunStatus) -> RenderableType:
    """Return the frame of a run's state."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for name, text in _facts(standing):
        facts.add_row(name, text)
    parts: list[RenderableType] = [_title(standing), facts]
    if standing.flying:
        parts += [Text(), _flying(standing)]
    return Group(*parts)


def curve(values: Sequence[float]) -> str:
    """Return values as bars between their least and their greatest; level ones lie low."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    top = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / span * top) if span else 0] for value in values)


def bucket_means(values: Sequence[float], count: int) -> list[float]:
    """Return the means of `count` buckets of neighbours, or the values where they are no more."""
    if len(values) <= count:
        return list(values)
    bounds = [index * len(values) // count for index in range(count + 1)]
    return [fmean(values[low:high]) for low, high in pairwise(bounds)]


def span(seconds: float) -> str:
    """Return a number of seconds for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _title(standing: RunStatus) -> Text:
    colours = {"running": "green", "ended": "", "killed": "red"}
    title = Text(standing.name, style="bold")
    title.append(f"  {standing.phase}", style=colours[standing.phase])
    of = "" if standing.steps is None else f" of {standing.steps}"
    title.append(f"  step {standing.step}{of}", style="")
    if standing.left_s is not None:
        title.append(f", about {span(standing.left_s)} left", style="dim")
    return title


def _facts(standing: RunStatus) -> Iterator[tuple[str, Text]]:
    figures = standing.figures
    yield "reward", _reward(standing.rewards)
    if standing.step_s is not None:
        speed = f"{span(standing.step_s)} per step"
        if (tokens := figures.get("tokens_per_s")) is not None:
            speed += f", {tokens:,.0f} trained tokens per second"
        yield "throughput", Text(speed)
    if standing.learning is not None:
        waits = 1 - standing.learning
        yield "loop", Text(f"trains {standing.learning:.0%}, waits for groups {waits:.0%}")
    if (shares := standing.shares) is not None:
        yield (
            "trajectories",
            Text(
                f"with the policy {shares.policy:.0%}, in the environment {shares.world:.0%}, "
                f"otherwise {shares.other:.0%}"
            ),
        )
    if "age/mean" in figures:
        most = figures.get("age/max", 0)
        yield "staleness", Text(f"{figures['age/mean']:.2f} versions, at most {most:.0f}")
    groups = ", ".join(f"{count} {state}" for state, count in sorted(standing.groups.items()))
    yield "groups", Text(groups or "none recorded")
    yield "failures", _failures(standing)
    for fault in standing.faults:
        yield "file", Text(fault, style="red")


def _reward(rewards: Sequence[tuple[int, IntervalEstimate]]) -> Text:
    if not rewards:
        return Text("no group has been trained yet", style="dim")
    step, last = rewards[-1]
    text = Text(f"{last.mean:.3f}", style="bold")
    if last.tasks > 1:
        text.append(f" ({last.low:.3f} to {last.high:.3f} over {last.tasks} groups)", style="")
    text.append(f" at step {step}  ", style="dim")
    text.append(curve([one.mean for _, one in rewards[-CURVE_COLUMNS:]]), style="cyan")
    return text


def _failures(standing: RunStatus) -> Text:
    total = sum(standing.failures.values())
    if not total:
        return Text(f"none in {standing.ended} trajectories")
    breakdown = ", ".join(f"{count} {name}" for name, count in standing.failures.items())
    return Text(f"{breakdown}, of {standing.ended} trajectories", style="red")


def _flying(standing: RunStatus) -> Table:
    flying = standing.flying
    what = "under way" if standing.phase == "running" else "left open"
    table = Table(show_edge=False, title=f"{len(flying)} {what}", title_justify="left")
    for heading in ("group", "no.", "task"):
        table.add_column(heading, no_wrap=True)
    for heading in ("turns", "used", "quiet"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in flying[:SHOWN_FLYING]:
        stuck = is_stuck(one)
        quiet = "" if one.quiet_s is None else span(one.quiet_s)
        table.add_row(
            str(one.group),
            str(one.sample),
            Text(one.task[:40]),
            str(one.turns),
            span(one.used_s),
            Text(f"{quiet} stuck" if stuck else quiet, style="red" if stuck else ""),
        )
    return table

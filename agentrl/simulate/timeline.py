"""Timeline of a simulated run, as a line of text and as a picture (SVG)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from agentrl.simulate.study import StudyResult, StudyTimeline

SHADES = " ▁▂▃▄▅▆▇█"
COLOURS = {"train": "#d9822b", "load": "#8b2be2"}
WIDTH, ROW, LEFT = 1000, 64, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """Share of an engine's slots that were taken, per stretch of equal length."""

    shares: tuple[float, ...]
    seconds: float


def engine_load(timeline: StudyTimeline, columns: int) -> LoadCurve:
    """Return the load of the engine, averaged over `columns` stretches of the run."""
    width = timeline.end_s / columns if timeline.end_s else 1.0
    filled = [0.0] * columns
    changes = [*timeline.seats, (timeline.end_s, 0)]
    for (start, seated), (end, _) in pairwise(changes):
        at = min(columns - 1, int(start / width))
        while start < end and at < columns:
            upto = min(end, (at + 1) * width)
            filled[at] += max(0.0, upto - start) * seated
            start, at = upto, at + 1
    shares = tuple(min(1.0, x / (width * timeline.slots)) for x in filled)
    return LoadCurve(shares=shares, seconds=width)


def text(timeline: StudyTimeline, columns: int = 100) -> str:
    """Return two lines: how full the engine was, and when the trainer (T) or a load (L) was on."""
    load = engine_load(timeline, columns)
    engine = "".join(SHADES[round(share * (len(SHADES) - 1))] for share in load.shares)
    beside = [" "] * columns
    for span in timeline.spans:
        if span.name in ("train", "load"):
            first = min(columns - 1, int(span.start_s / load.seconds))
            last = min(columns - 1, int(span.end_s / load.seconds))
            for column in range(first, last + 1):
                if span.name == "train" or beside[column] == " ":
                    beside[column] = span.name[0].upper()
    return f"engine  {engine}\ntrainer {''.join(beside)}"


def picture(studied: Sequence[StudyResult]) -> str:
    """Return an SVG: one row per mode, the engine's load as an area, training and loads below."""
    longest = max(one.timeline.end_s for one in studied)
    height = ROW * len(studied) + 30
    rows = [_row(one, index, longest) for index, one in enumerate(studied)]
    axis = "".join(
        f'<text x="{LEFT + WIDTH * i / 4:.0f}" y="{height - 6}" text-anchor="middle">'
        f"{longest * i / 4:.0f} s</text>"
        for i in range(5)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {height}" '
        f'font-family="sans-serif" font-size="12">{"".join(rows)}{axis}</svg>\n'
    )


def _row(one: StudyResult, index: int, longest: float) -> str:
    top, floor = ROW * index + 8, ROW * index + 48
    load = engine_load(one.timeline, 500)
    scale = WIDTH / longest
    points = [f"{LEFT},{floor}"]
    for column, share in enumerate(load.shares):
        x = LEFT + (column + 0.5) * load.seconds * scale
        points.append(f"{x:.1f},{floor - share * (floor - top):.1f}")
    points.append(f"{LEFT + one.timeline.end_s * scale:.1f},{floor}")
    bars = "".join(
        f'<rect x="{LEFT + span.start_s * scale:.1f}" y="{floor + 2}" height="6" '
        f'width="{max(1.0, (span.end_s - span.start_s) * scale):.1f}" '
        f'fill="{COLOURS[span.name]}"><title>{span.name}</title></rect>'
        for span in one.timeline.spans
        if span.name in COLOURS
    )
    label = escape(f"{one.setting.policy.mode} {one.engine_busy:.0%}")
    return (
        f'<text x="4" y="{floor - 14}">{label}</text>'
        f'<polygon points="{" ".join(points)}" fill="#3b7dd8"/>{bars}'
    )

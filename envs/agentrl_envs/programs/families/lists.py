"""Families about lists: a pipeline and a reduction, intervals, walks over a matrix."""

from random import Random
from typing import Any

from agentrl_envs.programs.family import Arguments, Params, ProgramFamily, number_steps


def _draw_list_step(rng: Random) -> list[Any]:
    kind = rng.choice(["scale", "without", "above", "differences", "running", "stride", "sort"])
    match kind:
        case "scale":
            return [kind, rng.choice([-3, -2, 2, 3, 4]), rng.randint(-9, 9)]
        case "without":
            modulus = rng.randint(2, 5)
            return [kind, modulus, rng.randrange(modulus)]
        case "above":
            return [kind, rng.randint(-20, 0)]
        case "stride":
            return [kind, rng.randint(2, 3)]
        case _:
            return [kind]


def _draw_reduction(rng: Random, level: int) -> Params:
    steps: list[list[Any]] = []
    while len(steps) < level + 1:
        step = _draw_list_step(rng)
        if step[0] not in [other[0] for other in steps]:
            steps.append(step)
    ends = [
        ["weighted", rng.randint(0, 5)],
        ["alternating"],
        ["squares", rng.randint(50, 999)],
        ["spread", rng.randint(2, 9)],
    ]
    return {"steps": steps, "end": rng.choice(ends)}


def _describe_reduction(params: Params) -> str:
    words = {
        "scale": "Replace every x by {0} * x + ({1}).",
        "without": "Remove every x whose remainder x % {0} is {1}.",
        "above": "Remove every x that is less than {0}.",
        "differences": "Replace the list by the differences of neighbours, the later one minus the "
        "earlier one; a list of less than two becomes empty.",
        "running": "Replace every number by the sum of itself and all before it.",
        "stride": "Keep only the numbers at positions 0, {0}, twice {0} and so on.",
        "sort": "Sort the list, the smallest first.",
        "weighted": "Return the sum of (position + {0}) * x over all x; positions count from 0.",
        "alternating": "Return the first number minus the second plus the third and so on.",
        "squares": "Return the sum of the squares, modulo {0}.",
        "spread": "Return {0} times the largest minus the smallest number.",
    }
    steps = [words[kind].format(*rest) for kind, *rest in [*params["steps"], params["end"]]]
    return (
        "`numbers` is a list of whole numbers. Take these steps, one after the other. If the list "
        f"is empty before the last step, return 0.\n{number_steps(steps)}"
    )


def reduce_list(params: dict[str, Any], numbers: list[int]) -> int:
    for kind, *rest in params["steps"]:
        if kind == "scale":
            numbers = [rest[0] * x + rest[1] for x in numbers]
        elif kind == "without":
            numbers = [x for x in numbers if x % rest[0] != rest[1]]
        elif kind == "above":
            numbers = [x for x in numbers if x >= rest[0]]
        elif kind == "differences":
            numbers = [b - a for a, b in zip(numbers, numbers[1:])]  # noqa: B905, RUF007
        elif kind == "running":
            numbers = [sum(numbers[: at + 1]) for at in range(len(numbers))]
        elif kind == "stride":
            numbers = numbers[:: rest[0]]
        elif kind == "sort":
            numbers = sorted(numbers)
    kind, *rest = params["end"]
    if not numbers:
        return 0
    if kind == "weighted":
        return sum((at + rest[0]) * x for at, x in enumerate(numbers))
    if kind == "alternating":
        return sum(numbers[::2]) - sum(numbers[1::2])
    if kind == "squares":
        return sum(x * x for x in numbers) % rest[0]
    return rest[0] * max(numbers) - min(numbers)


def _list_inputs(rng: Random, params: Params, level: int) -> Arguments:
    return ([rng.randint(-30, 50) for _ in range(rng.randint(4, 8 + 3 * level))],)


def _draw_intervals(rng: Random, level: int) -> Params:
    low = rng.randint(-10, 10)
    return {
        "gap": rng.randint(0, 6),
        "least": rng.randint(0, 6),
        "low": low,
        "high": low + rng.randint(40, 80),
        "gives": rng.choice(["list", "gaps"] if level else ["list"]),
        "factor": rng.randint(2, 9) if level >= 2 else 1,
    }


def _describe_intervals(params: Params) -> str:
    ends = {
        "list": "Return what is left",
        "gaps": "Return the stretches between neighbours of what is left, each from the end of one "
        "to the beginning of the next",
    }[params["gives"]]
    scale = f" Multiply every number by {params['factor']} at the very end." * (
        params["factor"] > 1
    )
    return (
        "`intervals` is a list of pairs [begin, end] of whole numbers, begin <= end, in any order. "
        f"First cut every interval to the range from {params['low']} to {params['high']} and drop "
        "those that lie outside of it altogether; touching its border in one point counts as "
        "inside. Then merge intervals that overlap or touch, or between which the distance is at "
        f"most {params['gap']}, until none are left to merge. Then drop those whose end minus "
        f"begin is less than {params['least']}. {ends}, as a list of pairs [begin, end], the "
        f"smallest first.{scale}"
    )


def merge_intervals(params: dict[str, Any], intervals: list[list[int]]) -> list[list[int]]:
    low, high = params["low"], params["high"]
    merged: list[list[int]] = []
    for begin, end in sorted(intervals):
        if end < low or begin > high:
            continue
        begin, end = max(begin, low), min(end, high)
        if merged and begin - merged[-1][1] <= params["gap"]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    pairs = [pair for pair in merged if pair[1] - pair[0] >= params["least"]]
    if params["gives"] == "gaps":
        pairs = [[pairs[at][1], pairs[at + 1][0]] for at in range(len(pairs) - 1)]
    return [[x * params["factor"] for x in pair] for pair in pairs]


def _interval_inputs(rng: Random, params: Params, level: int) -> Arguments:
    intervals: list[list[int]] = []
    for _ in range(rng.randint(4, 7 + level)):
        begin = rng.randint(params["low"] - 15, params["high"] + 10)
        intervals.append([begin, begin + rng.randint(0, 14)])
    return (intervals,)


def _interval_edges(params: Params) -> list[Arguments]:
    low, high, gap = params["low"], params["high"], params["gap"]
    apart = [[low, low + 8], [low + 8 + gap, low + 17 + gap], [low + 18 + 2 * gap, high]]
    return [([],), ([[low - 9, low], [high, high + 9]],), (apart,), ([[low - 5, high + 5]],)]


def _draw_walk(rng: Random, level: int) -> Params:
    return {
        "walk": rng.choice(["snake", "spiral", "diagonals"] if level else ["snake", "spiral"]),
        "mirror": rng.random() < 0.5,
        "flip": rng.random() < 0.5,
        "transpose": rng.random() < 0.5,
        "first": rng.randint(0, 2),
        "stride": rng.randint(1, 3),
        "factor": rng.randint(1, 9),
        "modulus": rng.randint(50, 99),
    }


def _describe_walk(params: Params) -> str:
    steps: list[str] = []
    if params["transpose"]:
        steps.append("Transpose the matrix: rows become columns.")
    if params["mirror"]:
        steps.append("Reverse every row.")
    if params["flip"]:
        steps.append("Reverse the order of the rows.")
    steps.append(
        {
            "snake": "List the numbers row by row: the first row from the left, the second from "
            "the right, the third from the left and so on.",
            "spiral": "List the numbers in a spiral: begin at the upper left, go along the upper "
            "row to the right, down the right side, along the lower row to the left, up the left "
            "side, and so on inwards.",
            "diagonals": "List the numbers diagonal by diagonal: the numbers at row r and column c "
            "with r + c = 0, then those with r + c = 1, and so on, each diagonal with the smallest "
            "row first.",
        }[params["walk"]]
    )
    steps.append(
        f"Of that list keep the numbers at position {params['first']} and every "
        f"{params['stride']} positions after it; positions count from 0."
    )
    steps.append(
        f"Replace every x by {params['factor']} * x modulo {params['modulus']}. Return the list."
    )
    return (
        "`matrix` is a list of rows of whole numbers, all rows of the same length; there may be "
        f"no rows.\n{number_steps(steps)}"
    )


def walk_matrix(params: dict[str, Any], matrix: list[list[int]]) -> list[int]:
    rows = [list(row) for row in matrix]
    if params["transpose"]:
        rows = [list(column) for column in zip(*rows)]  # noqa: B905
    if params["mirror"]:
        rows = [row[::-1] for row in rows]
    if params["flip"]:
        rows = rows[::-1]
    cells: list[int] = []
    if params["walk"] == "snake":
        for at, row in enumerate(rows):
            cells += row[::-1] if at % 2 else row
    elif params["walk"] == "diagonals":
        width = len(rows[0]) if rows else 0
        for total in range(len(rows) + width):
            for at, row in enumerate(rows):
                if 0 <= total - at < width:
                    cells.append(row[total - at])
    else:
        while rows and rows[0]:
            cells += rows.pop(0)
            rows = [list(column) for column in zip(*rows)][::-1]  # noqa: B905
    selection = cells[params["first"] :: params["stride"]]
    return [params["factor"] * x % params["modulus"] for x in selection]


def _matrix_inputs(rng: Random, params: Params, level: int) -> Arguments:
    height, width = rng.randint(2, 4 + level), rng.randint(2, 4 + level)
    return ([[rng.randint(-20, 99) for _ in range(width)] for _ in range(height)],)


FAMILIES = (
    ProgramFamily(
        name="list_pipeline",
        arguments="numbers",
        draw=_draw_reduction,
        describe=_describe_reduction,
        inputs=_list_inputs,
        edges=lambda params: [([],), ([7],), ([5, 5, 5, -5, -5, 40],)],
        reference=reduce_list,
    ),
    ProgramFamily(
        name="intervals",
        arguments="intervals",
        draw=_draw_intervals,
        describe=_describe_intervals,
        inputs=_interval_inputs,
        edges=_interval_edges,
        reference=merge_intervals,
    ),
    ProgramFamily(
        name="matrix_walk",
        arguments="matrix",
        draw=_draw_walk,
        describe=_describe_walk,
        inputs=_matrix_inputs,
        edges=lambda params: [([],), ([[8, 3, 5, 9]],), ([[4], [6], [7], [2]],)],
        reference=walk_matrix,
    ),
)

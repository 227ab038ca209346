"""Families about things that run: a small machine, a graph, a cellular automaton."""

from random import Random
from typing import Any

from agentrl_envs.programs.family import Arguments, Params, ProgramFamily

_WORDS = ["zig", "fop", "mur", "tak", "bel", "nox", "gim", "ruv", "pel", "dax"]


def _draw_machine(rng: Random, level: int) -> Params:
    kinds = ["add", "multiply", "jump", *["swap", "copy", "halt"][:level]]
    return {
        "words": dict(zip(rng.sample(_WORDS, len(kinds)), kinds, strict=True)),
        "modulus": rng.randint(50, 999),
        "left": rng.randint(0, 9),
        "right": rng.randint(0, 9),
        "steps": rng.randint(20, 60),
    }


def _describe_machine(params: Params) -> str:
    modulus = params["modulus"]
    meaning = {
        "add": f"adds v to register a, modulo {modulus}",
        "multiply": f"multiplies register b by v and adds a to it, modulo {modulus}",
        "swap": "swaps a and b, whatever v is",
        "jump": "goes to the instruction at position v, counted from 0, if a is even; else to the "
        "next one, as all others do",
        "copy": f"sets a to b plus v, modulo {modulus}",
        "halt": "ends the run, if b is greater than v; this counts as a step",
    }
    lines = [f"- {word} v {meaning[kind]}" for word, kind in params["words"].items()]
    return (
        "`program` is a list of instructions [word, v] for a machine with two registers. Register "
        f"a begins with {params['left']}, b with {params['right']}. The run begins at the first "
        "instruction and ends when the position is outside of the program, or after "
        f"{params['steps']} steps. Return [a, b]. The instructions:\n" + "\n".join(lines)
    )


def run_machine(params: dict[str, Any], program: list[list[Any]]) -> list[int]:
    a, b, modulus = params["left"], params["right"], params["modulus"]
    at = steps = 0
    while 0 <= at < len(program) and steps < params["steps"]:
        word, v = program[at]
        kind = params["words"][word]
        at, steps = at + 1, steps + 1
        if kind == "add":
            a = (a + v) % modulus
        elif kind == "multiply":
            b = (b * v + a) % modulus
        elif kind == "swap":
            a, b = b, a
        elif kind == "copy":
            a = (b + v) % modulus
        elif kind == "jump" and a % 2 == 0:
            at = v
        elif kind == "halt" and b > v:
            break
    return [a, b]


def _machine_inputs(rng: Random, params: Params, level: int) -> Arguments:
    size = rng.randint(4, 8 + 2 * level)
    kinds = {kind: word for word, kind in params["words"].items()}
    program: list[list[Any]] = []
    for _ in range(size):
        kind = rng.choice([*kinds, "add", "multiply"])
        v = rng.randint(0, size) if kind == "jump" else rng.randint(1, 40)
        program.append([kinds[kind], v * 10 if kind == "halt" else v])
    return (program,)


def _machine_edges(params: Params) -> list[Arguments]:
    kinds = {kind: word for word, kind in params["words"].items()}
    add, multiply, jump = (kinds[kind] for kind in ("add", "multiply", "jump"))
    loop = [[add, 2], [multiply, 3], [jump, 0], [jump, 0], [add, 1], [jump, 0]]
    return [([],), (loop,), ([[add, 1], [jump, -1], [multiply, 7], [jump, 99]],)]


def _draw_reach(rng: Random, level: int) -> Params:
    modulus = rng.randint(3, 7)
    return {
        "modulus": modulus,
        "closed": rng.randrange(modulus),
        "both_ways": rng.random() < 0.5,
        "steps": rng.randint(2, 4 + level),
        "factor": rng.randint(1, 40),
        "wall": rng.randint(3, 9) if level >= 1 else 0,
    }


def _describe_reach(params: Params) -> str:
    ways = "in both directions" if params["both_ways"] else "from u to v only"
    wall = (
        f" A node whose number can be divided by {params['wall']} may be reached, but no road may "
        "be taken from it, unless it is `start`."
        if params["wall"]
        else ""
    )
    return (
        "`roads` is a list of roads [u, v, w] between nodes, which are numbers from 1 on, with a "
        f"toll w. A road can be taken {ways}. A road with w % {params['modulus']} equal to "
        f"{params['closed']} is closed.{wall} Find all nodes that can be reached from the node "
        f"`start` over at most {params['steps']} roads, `start` included. Return a list of [node, "
        f"cost] in the order of the node, where cost is {params['factor']} times the smallest "
        "number of roads needed."
    )


def reach(params: dict[str, Any], roads: list[list[int]], start: int) -> list[list[int]]:
    onward: dict[int, list[int]] = {}
    for u, v, w in roads:
        if w % params["modulus"] != params["closed"]:
            onward.setdefault(u, []).append(v)
            if params["both_ways"]:
                onward.setdefault(v, []).append(u)
    needed = {start: 0}
    border = [start]
    for distance in range(1, params["steps"] + 1):
        following: list[int] = []
        for node in border:
            if params["wall"] and node % params["wall"] == 0 and node != start:
                continue
            for other in onward.get(node, []):
                if other not in needed:
                    needed[other] = distance
                    following.append(other)
        border = following
    return [[node, params["factor"] * needed[node]] for node in sorted(needed)]


def _reach_inputs(rng: Random, params: Params, level: int) -> Arguments:
    nodes = rng.randint(5, 8 + 2 * level)
    roads = [
        [rng.randint(1, nodes), rng.randint(1, nodes), rng.randint(1, 40)]
        for _ in range(rng.randint(nodes, 2 * nodes))
    ]
    return (roads, rng.choice(roads)[0])


def _reach_edges(params: Params) -> list[Arguments]:
    open_toll = params["closed"] + 1
    chain = [[at, at + 1, open_toll] for at in range(1, 10)]
    closed = [[1, 2, params["closed"] + params["modulus"]], [2, 3, open_toll]]
    return [([], 4), (chain, 1), (closed, 2), ([[6, 5, open_toll]], 5)]


def _draw_automaton(rng: Random, level: int) -> Params:
    return {
        "born": sorted(rng.sample(range(1, 9), rng.randint(1, 3))),
        "stays": sorted(rng.sample(range(9), rng.randint(2, 4))),
        "rounds": 1 + level,
        "wraps": rng.random() < 0.5,
        "alive": rng.choice("#@*x"),
    }


def _describe_automaton(params: Params) -> str:
    born, stays = (", ".join(map(str, params[key])) for key in ("born", "stays"))
    border = (
        "The grid wraps around: beyond the last row or column comes the first, and the other way "
        "round, so that a cell of a small grid may count one neighbour, or itself, several times."
        if params["wraps"]
        else "Beyond the border everything is empty."
    )
    rounds = params["rounds"]
    return (
        f"`grid` is a list of strings of equal length, where {params['alive']!r} is a living cell "
        "and '.' an empty one. In every round all cells change at once. A cell looks at the eight "
        f"places around it. {border} An empty cell comes to life if the number of living ones "
        f"there is one of: {born}. A living cell stays alive if it is one of: {stays}; else it is "
        f"empty. Return the grid after {rounds} round{'s' * (rounds > 1)}, in the same form."
    )


def live(params: dict[str, Any], grid: list[str]) -> list[str]:
    height, width = len(grid), len(grid[0]) if grid else 0

    def alive(row: int, column: int) -> bool:
        if params["wraps"]:
            row, column = row % height, column % width
        inside = 0 <= row < height and 0 <= column < width
        return inside and grid[row][column] == params["alive"]

    def lives_on(row: int, column: int) -> bool:
        around = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
        count = sum(alive(row + r, column + c) for r, c in around)
        return count in params["stays" if alive(row, column) else "born"]

    for _ in range(params["rounds"]):
        grid = [
            "".join(params["alive"] if lives_on(row, column) else "." for column in range(width))
            for row in range(height)
        ]
    return grid


def _automaton_inputs(rng: Random, params: Params, level: int) -> Arguments:
    height, width = rng.randint(3, 5 + level), rng.randint(3, 5 + level)
    signs = [params["alive"], "."]
    return (["".join(rng.choice(signs) for _ in range(width)) for _ in range(height)],)


def _automaton_edges(params: Params) -> list[Arguments]:
    alive = params["alive"]
    return [([],), ([alive],), ([alive * 4, "....", alive * 4],), (["...", f".{alive}.", "..."],)]


FAMILIES = (
    ProgramFamily(
        name="machine",
        arguments="program",
        draw=_draw_machine,
        describe=_describe_machine,
        inputs=_machine_inputs,
        edges=_machine_edges,
        reference=run_machine,
    ),
    ProgramFamily(
        name="reachability",
        arguments="roads, start",
        draw=_draw_reach,
        describe=_describe_reach,
        inputs=_reach_inputs,
        edges=_reach_edges,
        reference=reach,
    ),
    ProgramFamily(
        name="automaton",
        arguments="grid",
        draw=_draw_automaton,
        describe=_describe_automaton,
        inputs=_automaton_inputs,
        edges=_automaton_edges,
        reference=live,
    ),
)

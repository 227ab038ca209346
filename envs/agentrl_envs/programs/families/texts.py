"""Families about text: a pipeline of edits, a small format, brackets."""

from random import Random
from typing import Any

from agentrl_envs.programs.family import Arguments, Params, ProgramFamily, number_steps

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _draw_edit(rng: Random) -> list[Any]:
    kind = rng.choice(["reverse", "rotate", "shift", "drop", "every", "double", "swap", "upper"])
    match kind:
        case "rotate":
            return [kind, rng.randint(1, 9)]
        case "shift":
            return [kind, rng.randint(1, 25)]
        case "every" | "upper":
            return [kind, rng.randint(2, 4)]
        case "drop" | "double":
            return [kind, "".join(sorted(rng.sample(_LETTERS, rng.randint(3, 6))))]
        case _:
            return [kind]


def _draw_edits(rng: Random, level: int) -> Params:
    steps: list[list[Any]] = []
    while len(steps) < level + 2:
        step = _draw_edit(rng)
        if step[0] not in [other[0] for other in steps[-2:]]:
            steps.append(step)
    return {"steps": steps}


def _describe_edits(params: Params) -> str:
    words = {
        "reverse": "Reverse the text.",
        "rotate": "Move the first character to the end, {0} times in a row.",
        "shift": "Replace every letter from a to z by the letter {0} places later in the alphabet, "
        "going on at a after z. Capital letters and everything else stay.",
        "drop": "Remove every character that is one of {0!r}.",
        "every": "Keep only the characters at positions 0, {0}, twice {0} and so on.",
        "double": "Write every character that is one of {0!r} twice.",
        "swap": "Make small letters capital and capital letters small.",
        "upper": "Make the characters number {0}, twice {0} and so on capitals, counting from 1.",
    }
    steps = [words[kind].format(*rest) for kind, *rest in params["steps"]]
    return (
        "`text` is a string of ASCII characters. Change it in these steps, one after the other, "
        f"and return the result as a string:\n{number_steps(steps)}"
    )


def edit_text(params: dict[str, Any], text: str) -> str:
    for kind, *rest in params["steps"]:
        if kind == "reverse":
            text = text[::-1]
        elif kind == "rotate" and text:
            at = rest[0] % len(text)
            text = text[at:] + text[:at]
        elif kind == "shift":
            small = "abcdefghijklmnopqrstuvwxyz"
            moved = small[rest[0] :] + small[: rest[0]]
            text = text.translate(str.maketrans(small, moved))
        elif kind == "drop":
            text = "".join(c for c in text if c not in rest[0])
        elif kind == "every":
            text = text[:: rest[0]]
        elif kind == "double":
            text = "".join(c * 2 if c in rest[0] else c for c in text)
        elif kind == "swap":
            text = text.swapcase()
        elif kind == "upper":
            text = "".join(c.upper() if at % rest[0] == 0 else c for at, c in enumerate(text, 1))
    return text


def _edit_inputs(rng: Random, params: Params, level: int) -> Arguments:
    size = rng.randint(6, 14 + 4 * level)
    return ("".join(rng.choice(_LETTERS + "ABCXYZ 0189") for _ in range(size)),)


def _draw_records(rng: Random, level: int) -> Params:
    field, pair = rng.sample([";", "|", ",", "/", "&"], 2)
    return {
        "field": field,
        "pair": pair if rng.random() < 0.5 else rng.choice([":", "=", "->"]),
        "comment": rng.choice(["#", "%", "!", "--"]),
        "combine": rng.choice(["sum", "largest", "last", "first"]),
        "least": rng.randint(-20, 20),
        "fold": level >= 1 and rng.random() < 0.7,
        "factor": rng.randint(2, 9) if level >= 2 else 1,
    }


def _describe_records(params: Params) -> str:
    fold = "Names that differ in case only are the same; write them small. " * params["fold"]
    factor = (
        f"Multiply every value by {params['factor']} at the very end. "
        if params["factor"] > 1
        else ""
    )
    combine = {
        "sum": "the sum of its values",
        "largest": "the largest of its values",
        "last": "its last value",
        "first": "its first value",
    }[params["combine"]]
    return (
        "`text` is a small file of lines. A line that is empty, or begins with "
        f"{params['comment']!r}, counts for nothing. Any other line has entries separated by "
        f"{params['field']!r}, and an entry is a name, then {params['pair']!r}, then a whole "
        "number; there may be spaces around names and numbers. An entry without "
        f"{params['pair']!r} counts for nothing, and so does one whose number is less than "
        f"{params['least']}. {fold}Return a dict that has, for every name that is left, "
        f"{combine}. {factor}".strip()
    )


def read_records(params: dict[str, Any], text: str) -> dict[str, int]:
    values_by_name: dict[str, list[int]] = {}
    for line in text.split("\n"):
        if not line or line.startswith(params["comment"]):
            continue
        for entry in line.split(params["field"]):
            name, pair, number = entry.partition(params["pair"])
            if pair and int(number) >= params["least"]:
                name = name.strip().lower() if params["fold"] else name.strip()
                values_by_name.setdefault(name, []).append(int(number))
    combine = params["combine"]
    results: dict[str, int] = {}
    for name, values in values_by_name.items():
        if combine == "sum":
            results[name] = sum(values)
        elif combine == "largest":
            results[name] = max(values)
        else:
            results[name] = values[-1] if combine == "last" else values[0]
    return {name: value * params["factor"] for name, value in results.items()}


def _record_inputs(rng: Random, params: Params, level: int) -> Arguments:
    names = rng.sample(["ox", "Ox", "emu", "Emu", "cat", "yak", "Yak", "owl"], 3 + min(level, 2))
    lines: list[str] = []
    for _ in range(rng.randint(2, 4 + level)):
        entries = [
            f"{rng.choice(names)}{rng.choice(['', ' '])}{params['pair']}"
            f"{rng.choice(['', ' '])}{rng.randint(-40, 60)}"
            for _ in range(rng.randint(1, 4))
        ]
        if rng.random() < 0.3:
            entries.insert(rng.randint(0, len(entries)), rng.choice(names))
        line = params["field"].join(entries)
        lines.append(params["comment"] + line if rng.random() < 0.2 else line)
    return ("\n".join(lines),)


def _record_edges(params: Params) -> list[Arguments]:
    field, pair, least = params["field"], params["pair"], params["least"]
    return [
        (f"a{pair}{least}{field}b{pair}{least - 1}",),
        (f"\n{params['comment']}a{pair}99\n Zed {pair} 70 \n",),
        (f"A{pair}50{field}a{pair}51{field}A{pair}49",),
    ]


_PAIRS = ["()", "[]", "{}", "<>", "/\\", "«»", "bd", "pq"]


def _draw_brackets(rng: Random, level: int) -> Params:
    return {
        "pairs": sorted(rng.sample(_PAIRS, min(2 + level, 4))),
        "escape": rng.choice("!%^~$"),
        "deepest": rng.randint(3, 7),
        "weight": rng.randint(2, 99),
    }


def _describe_brackets(params: Params) -> str:
    pairs = ", ".join(f"{pair[0]} with {pair[1]}" for pair in params["pairs"])
    return (
        f"`text` has brackets that open and close in pairs: {pairs}. The character "
        f"{params['escape']} makes the character after it an ordinary one; all other characters "
        "are ordinary too. Go through the text from the left. A closing bracket that does not "
        "belong to the last bracket still open is a mistake, and so is an opening one that makes "
        f"more than {params['deepest']} open at once. At the first mistake return -1 minus its "
        "position, which counts from 0. If brackets are open at the end, return -1 minus the "
        "length of the text. If there is no mistake, return the sum over all opening brackets of "
        f"{params['weight']} times the number open just after it."
    )


def check_brackets(params: dict[str, Any], text: str) -> int:
    opens = {pair[0]: pair[1] for pair in params["pairs"]}
    closes = set(opens.values())
    open_now: list[str] = []
    total = at = 0
    while at < len(text):
        char = text[at]
        if char == params["escape"]:
            at += 2
            continue
        if char in opens:
            open_now.append(opens[char])
            if len(open_now) > params["deepest"]:
                return -1 - at
            total += params["weight"] * len(open_now)
        elif char in closes and (not open_now or open_now.pop() != char):
            return -1 - at
        at += 1
    return -1 - len(text) if open_now else total


def _bracket_inputs(rng: Random, params: Params, level: int) -> Arguments:
    text: list[str] = []
    stack: list[str] = []
    for _ in range(rng.randint(6, 14 + 4 * level)):
        roll = rng.random()
        if roll < 0.4 and len(stack) < params["deepest"] + (rng.random() < 0.1):
            pair = rng.choice(params["pairs"])
            stack.append(pair[1])
            text.append(pair[0])
        elif roll < 0.75 and stack:
            text.append(stack.pop() if rng.random() < 0.95 else rng.choice(params["pairs"])[1])
        elif roll < 0.85:
            text.append(params["escape"] + rng.choice(params["pairs"])[rng.randint(0, 1)])
        else:
            text.append(rng.choice("xyz "))
    text += reversed(stack) if rng.random() < 0.85 else []
    return ("".join(text),)


def _bracket_edges(params: Params) -> list[Arguments]:
    opening, closing = params["pairs"][0]
    deepest = params["deepest"]
    return [
        ("",),
        (opening * deepest + closing * deepest,),
        (opening * (deepest + 1) + closing * (deepest + 1),),
        (opening + closing + params["escape"] + closing + closing,),
    ]


FAMILIES = (
    ProgramFamily(
        name="text_pipeline",
        arguments="text",
        draw=_draw_edits,
        describe=_describe_edits,
        inputs=_edit_inputs,
        edges=lambda params: [("",), ("q",), ("Zebra zoo, 9 aisles!",)],
        reference=edit_text,
    ),
    ProgramFamily(
        name="records",
        arguments="text",
        draw=_draw_records,
        describe=_describe_records,
        inputs=_record_inputs,
        edges=_record_edges,
        reference=read_records,
    ),
    ProgramFamily(
        name="brackets",
        arguments="text",
        draw=_draw_brackets,
        describe=_describe_brackets,
        inputs=_bracket_inputs,
        edges=_bracket_edges,
        reference=check_brackets,
    ),
)

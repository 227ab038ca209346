"""Families about codes: run lengths, check characters, numerals of an invented alphabet."""

from random import Random
from typing import Any

from agentrl_envs.programs.family import Arguments, Params, ProgramFamily


def _draw_runs(rng: Random, level: int) -> Params:
    return {
        "least": rng.randint(2, 4),
        "longest": rng.randint(5, 9),
        "count_first": rng.random() < 0.5,
        "open": rng.choice("<([{") if level >= 1 else "",
        "between": rng.choice(["", "-", ".", "_", "+"]),
        "offset": rng.randint(0, 30),
    }


def _describe_runs(params: Params) -> str:
    close = {"<": ">", "(": ")", "[": "]", "{": "}", "": ""}[params["open"]]
    order = ["the character", "the number"]
    if params["count_first"]:
        order.reverse()
    joint = f", {params['between']!r} between them" if params["between"] else ""
    wrap = f", all of it between {params['open']} and {close}" if close else ""
    plus = f" plus {params['offset']}" if params["offset"] else ""
    return (
        "`text` consists of small letters. Cut it into runs: as many equal letters in a row as "
        f"there are, but at most {params['longest']} of them; what is left over begins the next "
        f"run. A run of fewer than {params['least']} letters stays as it is. Any other is written "
        f"as {order[0]} and {order[1]}{joint}{wrap}, where the number is the length of the "
        f"run{plus}. Return the runs joined."
    )


def encode_runs(params: dict[str, Any], text: str) -> str:
    close = {"<": ">", "(": ")", "[": "]", "{": "}", "": ""}[params["open"]]
    parts: list[str] = []
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and text[end] == text[at] and end - at < params["longest"]:
            end += 1
        if end - at < params["least"]:
            parts.append(text[at:end])
        else:
            pair = [text[at], str(end - at + params["offset"])]
            if params["count_first"]:
                pair.reverse()
            parts.append(params["open"] + params["between"].join(pair) + close)
        at = end
    return "".join(parts)


def _run_inputs(rng: Random, params: Params, level: int) -> Arguments:
    runs = [rng.choice("abcd") * rng.randint(1, 11) for _ in range(rng.randint(2, 4 + level))]
    return ("".join(runs),)


def _run_edges(params: Params) -> list[Arguments]:
    least, longest = params["least"], params["longest"]
    return [("",), ("x" * longest + "x" * least,), ("y" * (least - 1) + "z" * least,)]


def _draw_checksum(rng: Random, level: int) -> Params:
    modulus = rng.randint(11, 36)
    return {
        "weights": [rng.randint(1, 9) for _ in range(2 + level)],
        "modulus": modulus,
        "from_right": rng.random() < 0.5,
        "start": rng.randint(0, 50),
        "alphabet": "".join(rng.sample("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", modulus)),
        "skip": rng.choice("- ./"),
    }


def _describe_checksum(params: Params) -> str:
    weights = ", ".join(map(str, params["weights"]))
    side = "right" if params["from_right"] else "left"
    return (
        f"`code` is a string of digits, capital letters and {params['skip']!r}. Leave out every "
        f"{params['skip']!r}. A digit has its own value, A has 10, B has 11 and so on up to Z with "
        f"35. Multiply the values, from the {side}, by the weights {weights}, over and over again. "
        f"Add the products and {params['start']}, and take the remainder of the division by "
        f"{params['modulus']}. The check character stands at that position, counted from 0, of "
        f"{params['alphabet']!r}. Return what is left of `code` after leaving out, followed by the "
        "check character."
    )


def add_check(params: dict[str, Any], code: str) -> str:
    payload = code.replace(params["skip"], "")
    weights = params["weights"]
    total = params["start"]
    for at, char in enumerate(reversed(payload) if params["from_right"] else payload):
        total += int(char, 36) * weights[at % len(weights)]
    return payload + params["alphabet"][total % params["modulus"]]


def _checksum_inputs(rng: Random, params: Params, level: int) -> Arguments:
    signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" + params["skip"] * 4
    return ("".join(rng.choice(signs) for _ in range(rng.randint(4, 10 + 2 * level))),)


def _draw_numerals(rng: Random, level: int) -> Params:
    source, target = rng.randint(3, 16), rng.randint(3, 16)
    signs = rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ@#$%&?", source)
    return {
        "signs": "".join(signs),
        "target": target,
        "target_signs": "".join(rng.sample("0123456789abcdefghijklmnopqrstuvwxyz", target)),
        "group": rng.randint(2, 4) if level >= 1 else 0,
        "mark": rng.choice("_,.' "),
        "add": rng.randint(1, 999) if level >= 2 else 0,
    }


def _describe_numerals(params: Params) -> str:
    base = len(params["signs"])
    add = f" Add {params['add']} to the number." * bool(params["add"])
    group = (
        f" Then group the digits from the right by {params['group']}, with {params['mark']!r} "
        "between groups."
        if params["group"]
        else ""
    )
    return (
        f"`numeral` is a whole number in base {base}, the most significant digit first. Its digits "
        f"from 0 to {base - 1} are written {' '.join(params['signs'])}. There may be zeros in "
        f"front.{add} Return the number in base {params['target']}, without zeros in front, where "
        f"the digits from 0 to {params['target'] - 1} are written "
        f"{' '.join(params['target_signs'])}. Zero is one digit.{group}"
    )


def rewrite_numeral(params: dict[str, Any], numeral: str) -> str:
    value = 0
    for sign in numeral:
        value = value * len(params["signs"]) + params["signs"].index(sign)
    value += params["add"]
    digits: list[str] = []
    while value or not digits:
        value, digit = divmod(value, params["target"])
        digits.append(params["target_signs"][digit])
    size = params["group"] or len(digits)
    groups = [digits[at : at + size] for at in range(0, len(digits), size)]
    return params["mark"].join("".join(group) for group in groups)[::-1]


def _numeral_inputs(rng: Random, params: Params, level: int) -> Arguments:
    size = rng.randint(2, 6 + 2 * level)
    return ("".join(rng.choice(params["signs"]) for _ in range(size)),)


def _numeral_edges(params: Params) -> list[Arguments]:
    zero, one, top = params["signs"][0], params["signs"][1], params["signs"][-1]
    return [(zero,), (zero * 3 + one,), (top * 9,)]


FAMILIES = (
    ProgramFamily(
        name="run_lengths",
        arguments="text",
        draw=_draw_runs,
        describe=_describe_runs,
        inputs=_run_inputs,
        edges=_run_edges,
        reference=encode_runs,
    ),
    ProgramFamily(
        name="checksum",
        arguments="code",
        draw=_draw_checksum,
        describe=_describe_checksum,
        inputs=_checksum_inputs,
        edges=lambda params: [("",), (params["skip"] * 2 + "Z",), ("00000000",)],
        reference=add_check,
    ),
    ProgramFamily(
        name="numerals",
        arguments="numeral",
        draw=_draw_numerals,
        describe=_describe_numerals,
        inputs=_numeral_inputs,
        edges=_numeral_edges,
        reference=rewrite_numeral,
    ),
)

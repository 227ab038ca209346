"""Families about numbers and dates: sums over numbers of a kind, working days."""

from random import Random
from typing import Any

from agentrl_envs.programs.family import Arguments, Params, ProgramFamily


def _draw_condition(rng: Random) -> list[Any]:
    kind = rng.choice(["remainder", "coprime", "digits", "divisors"])
    match kind:
        case "remainder":
            modulus = rng.randint(2, 7)
            return [kind, modulus, rng.randrange(modulus)]
        case "coprime":
            return [kind, rng.choice([6, 10, 12, 14, 15, 21, 22, 30, 33, 35])]
        case "digits":
            return [kind, rng.randint(2, 10), rng.randint(2, 4)]
        case _:
            return [kind, rng.randint(3, 6)]


def _draw_sum(rng: Random, level: int) -> Params:
    conditions: list[list[Any]] = []
    while len(conditions) < min(level + 1, 3):
        condition = _draw_condition(rng)
        if condition[0] not in [other[0] for other in conditions]:
            conditions.append(condition)
    return {
        "conditions": conditions,
        "factor": rng.randint(1, 9),
        "offset": rng.randint(0, 30),
        "modulus": rng.randint(500, 9999),
    }


def _describe_sum(params: Params) -> str:
    words = {
        "remainder": "k % {0} is {1}",
        "coprime": "k and {0} have no common divisor but 1",
        "digits": "the sum of the digits of k in base {0} can be divided by {1}",
        "divisors": "k has at least {0} divisors, 1 and k included",
    }
    conditions = ", and ".join(words[kind].format(*rest) for kind, *rest in params["conditions"])
    return (
        "`n` is a whole number, 0 or more. Take all whole numbers k from 1 to n for which "
        f"{conditions}. Add {params['factor']} * k + {params['offset']} for every such k, and "
        f"return the sum modulo {params['modulus']}."
    )


def filtered_sum(params: dict[str, Any], n: int) -> int:
    from math import gcd, isqrt

    def digit_sum(number: int, base: int) -> int:
        return number % base + digit_sum(number // base, base) if number else 0

    def holds(k: int, kind: str, *rest: int) -> bool:
        if kind == "remainder":
            return k % rest[0] == rest[1]
        if kind == "coprime":
            return gcd(k, rest[0]) == 1
        if kind == "digits":
            return digit_sum(k, rest[0]) % rest[1] == 0
        small = [d for d in range(1, isqrt(k) + 1) if k % d == 0]
        return sum(1 if d * d == k else 2 for d in small) >= rest[0]

    numbers = [k for k in range(1, n + 1) if all(holds(k, *c) for c in params["conditions"])]
    return sum(params["factor"] * k + params["offset"] for k in numbers) % params["modulus"]


def _sum_inputs(rng: Random, params: Params, level: int) -> Arguments:
    return (rng.randint(40, 240 + 60 * level),)


_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _draw_days(rng: Random, level: int) -> Params:
    return {
        "rest": sorted(rng.sample(range(7), rng.randint(1, 3))),
        "holidays": sorted(rng.sample(range(1, 32), 2 * level)),
        "months_off": sorted(rng.sample(range(1, 13), 1)) if level >= 2 else [],
        "extra": rng.randint(0, 30),
        "back": rng.random() < 0.5,
    }


def _describe_days(params: Params) -> str:
    rest = ", ".join(_DAYS[day] for day in params["rest"])
    off = [f"No work is done on these days of the week: {rest}."]
    if params["holidays"]:
        days = ", ".join(map(str, params["holidays"]))
        off.append(f"Nor on these days of every month: {days}.")
    if params["months_off"]:
        off.append(f"Nor in month {params['months_off'][0]} of the year at all.")
    more = f" plus {params['extra']}" if params["extra"] else ""
    way = "before" if params["back"] else "after"
    return (
        "`day` is a date such as '2024-02-29', and `count` a whole number, 0 or more. "
        f"{' '.join(off)} All other days are working days. Return, as text in the same form, the "
        f"working day that is number `count`{more} {way} `day`, where number 1 is the nearest "
        f"working day strictly {way} `day`. Number 0 is `day` itself, working day or not."
    )


def working_day(params: dict[str, Any], day: str, count: int) -> str:
    from datetime import date, timedelta

    at = date.fromisoformat(day)
    remaining_days = count + params["extra"]
    while remaining_days:
        at += timedelta(days=-1 if params["back"] else 1)
        off = at.weekday() in params["rest"] or at.day in params["holidays"]
        remaining_days -= not off and at.month not in params["months_off"]
    return at.isoformat()


def _day_inputs(rng: Random, params: Params, level: int) -> Arguments:
    day = f"{rng.randint(1990, 2040)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return (day, rng.randint(1, 12 + 8 * level))


FAMILIES = (
    ProgramFamily(
        name="filtered_sum",
        arguments="n",
        draw=_draw_sum,
        describe=_describe_sum,
        inputs=_sum_inputs,
        edges=lambda params: [(0,), (1,), (400,)],
        reference=filtered_sum,
    ),
    ProgramFamily(
        name="working_days",
        arguments="day, count",
        draw=_draw_days,
        describe=_describe_days,
        inputs=_day_inputs,
        edges=lambda params: [("2024-02-29", 0), ("2023-12-31", 1), ("2000-03-01", 3)],
        reference=working_day,
    ),
)

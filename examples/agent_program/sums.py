"""The tasks of `agent.py`, its score, and demonstrations of how to answer its requests."""

from collections.abc import Iterator, Sequence

import agentrl

HIGH = 999


def tasks(split: agentrl.Split, seed: int) -> Iterator[agentrl.Task]:
    """Yield a sum and a product in turn; the numbers decide the split."""
    pairs = agentrl.sample_pairs(split, seed, low=11, high=HIGH)
    for number, (a, b) in enumerate(pairs):
        sign, value, tool = ("*", a * b, "multiply") if number % 2 else ("+", a + b, "add")
        yield agentrl.Task(
            prompt=f"What is {a} {sign} {b}?",
            answer=str(value),
            data={"tool": tool, "a": a, "b": b},
            tags=(tool,),
        )


def score(task: agentrl.Task, result: str) -> float:
    """Return 1 for the right number alone."""
    return float(result.strip() == task.answer)


def gold(task: agentrl.Task, seen: Sequence[agentrl.Message]) -> agentrl.Action:
    """Call the tool, then repeat what it returned."""
    if seen[-1].role == "tool":
        return agentrl.say(seen[-1].text)
    return agentrl.call(task.data["tool"], a=task.data["a"], b=task.data["b"])

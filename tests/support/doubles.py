"""A tiny environment for whole runs: doubling numbers with a tool."""

from collections.abc import Iterable, Sequence

import agentrl
from agentrl.message import Message
from agentrl.task import Split, split_of


@agentrl.tool
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def doubles(split: Split, seed: int) -> Iterable[agentrl.Task]:
    """Yield the numbers below 500 that belong to a split, whatever the seed."""
    for number in range(500):
        if split_of(str(number)) == split:
            yield agentrl.Task(prompt=f"Double {number}", answer=str(2 * number))


def gold(task: agentrl.Task, seen: Sequence[Message]) -> agentrl.Action:
    """Call the tool, then say what it answered."""
    if len(seen) == 1:
        return agentrl.call("double", number=int(task.answer) // 2)
    return agentrl.say(seen[-1].text)

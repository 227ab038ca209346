"""A class in the shape of those that TRL's documentation shows for `environment_factory`."""

from typing import Any

from agentrl.env import Action, call, say
from agentrl.message import Message
from agentrl.task import Task


class IncrementEnv:
    """Counts; TRL's first example."""

    def reset(self, start: int = 0, **kwargs: Any) -> str | None:
        self.counter = start
        self.kwargs = kwargs
        return f" The counter is {start}."

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        if step < 0:
            raise ValueError("step must not be negative")
        self.counter += step
        return self.counter

    async def read(self) -> dict[str, int]:
        """
        Return the counter.
        """
        return {"counter": self.counter}

    def get_reward(self) -> float:
        return float(self.counter == self.kwargs["target"])


class UntypedEnv:
    """Has a method that TRL would refuse."""

    def reset(self, **kwargs: Any) -> None: ...

    def move(self, where) -> str:  # pyright: ignore
        """Move somewhere."""
        return str(where)


class UnpaidEnv:
    """Owns no reward."""

    def reset(self, **kwargs: Any) -> None:
        self.looked = 0

    def look(self) -> str:
        """Look around."""
        self.looked += 1
        return "a door"


def reward_length(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
    """Pay by length."""
    return [len(completion[-1]["content"]) / 10 for completion in completions]


def reward_vowels(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
    """Pay the share of vowels, so that a small policy earns something to learn from."""
    spoken = [[m["content"] for m in turns if m["role"] == "assistant"] for turns in completions]
    return [sum(c in "aeiou" for c in texts[-1]) / (len(texts[-1]) or 1) for texts in spoken]


async def reward_looks(
    environments: list[UnpaidEnv], log_metric: Any, **kwargs: Any
) -> list[float | None]:
    """Pay for looking; give nothing where it was not done."""
    log_metric("looked", environments[0].looked)
    return [float(environment.looked) or None for environment in environments]


def reward_tokens(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Read what an environment does not have."""
    return [float(len(ids)) for ids in completion_ids]


def reward_two(completions: list[Any], **kwargs: Any) -> list[float]:
    """Return more rewards than there are completions."""
    return [0.0, 0.0]


def gold(task: Task, seen: list[Message]) -> Action:
    """Add what is missing, then stop."""
    row = task.data["row"]
    if not any(message.role == "tool" for message in seen):
        return call("increment", step=row["target"] - row["start"])
    return say("done")


class ClosedEnv(IncrementEnv):
    """Takes one column alone, where TRL hands over all."""

    def reset(self, start: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.counter = start


def reward_taget(environments: list[Any], completions: list[Any], taget: list[int]) -> list[float]:
    """Name a column that there is not."""
    return [0.0]

"""One trajectory of an evaluation, as far as it is compared with another policy's."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from agentrl.task import Task
from agentrl.trajectory import Trajectory, outcome_name, reward_of

PROMPT_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSample:
    """Outcome of one attempt at one task."""

    task: str
    """The task's id, for people."""
    fingerprint: str
    """Of the problem: what two evaluations agree on, whatever they call it."""
    sample: int
    """Index among the attempts at the task."""
    outcome: str
    """`finished`, `truncated_turns`, `failed_tool`, ..."""
    reward: float | None
    """None for a trajectory that broke."""
    prompt: str = ""
    """First words of the task, for people."""

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> Self:
        """Return the sample of a trajectory."""
        return cls(
            task=trajectory.task.id,
            fingerprint=trajectory.task.fingerprint,
            sample=trajectory.sample,
            outcome=outcome_name(trajectory.outcome),
            reward=reward_of(trajectory.outcome),
            prompt=first_words(trajectory.task),
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read the output of `to_json`; raise `KeyError` or `TypeError` for anything else."""
        reward = row["reward"]
        return cls(
            task=str(row["task"]),
            fingerprint=str(row["fingerprint"]),
            sample=int(row["sample"]),
            outcome=str(row["outcome"]),
            reward=None if reward is None else float(reward),
            prompt=str(row.get("prompt", "")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def first_words(task: Task) -> str:
    """Return the first words of a task, on one line."""
    parts = [task.prompt] if isinstance(task.prompt, str) else [m.text for m in task.prompt]
    return " ".join(" ".join(parts).split())[:PROMPT_CHARACTERS]


def samples_of(trajectories: Iterable[Trajectory]) -> tuple[EvaluationSample, ...]:
    """Return the samples of trajectories, in their order."""
    return tuple(map(EvaluationSample.from_trajectory, trajectories))

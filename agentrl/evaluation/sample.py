"""One trajectory of an evaluation, as far as it is compared with another policy's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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
    outcome: str
    """`finished`, `truncated_turns`, `failed_tool`, ..."""
    reward: float | None
    """None for a trajectory that broke."""
    prompt: str = ""

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> Self:
        """Return the sample of a trajectory."""
        task = trajectory.task
        parts = [task.prompt] if isinstance(task.prompt, str) else [m.text for m in task.prompt]
        return cls(
            task=task.id,
            fingerprint=task.fingerprint,
            sample=trajectory.sample,
            outcome=outcome_name(trajectory.outcome),
            reward=reward_of(trajectory.outcome),
            prompt=" ".join(" ".join(parts).split())[:PROMPT_CHARACTERS],
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a sample of a report's JSON; raise `KeyError` or `TypeError` for anything else."""
        reward = row["reward"]
        return cls(
            task=str(row["task"]),
            fingerprint=str(row["fingerprint"]),
            sample=int(row["sample"]),
            outcome=str(row["outcome"]),
            reward=None if reward is None else float(reward),
            prompt=str(row.get("prompt", "")),
        )

"""What both contenders are told. Travels between processes as a dictionary of plain values."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.beside_trl.game import LONG, SHORT, Rules

TaskName = Literal["single turn", "multi-turn", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One task with the settings of its training; both contenders read every field."""

    task: TaskName
    policy: str
    """A Hugging Face folder with weights, tokenizer and chat template."""
    steps: int
    threads: int
    completion_tokens: int
    """Most tokens after the prompt: the policy's and, in several turns, the host's."""
    learning_rate: float
    groups: int = 8
    group_size: int = 8
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    clip: float = 0.2
    advantage_epsilon: float = 1e-4
    """Added to the standard deviation of a group's rewards; what TRL adds."""
    temperature: float = 1.0
    peer_rows: int = 64
    """Of TRL: rows in one forward pass; the rest is gradient accumulation."""
    peer_batching: bool = False
    """Of TRL: generate with transformers' continuous batching."""
    first_round: int = 1000
    """Of the tasks; others for another seed."""
    mode: Literal["sync", "partial", "async"] = "sync"
    """Of agentrl: whether rollouts and training overlap."""
    in_flight: int = 1
    """Of agentrl, except in `sync`: games in flight, in steps' worth."""
    wait_share: float = 1.0
    """Of agentrl, where the host waits: the share of its time that it takes."""
    heldout: int = 1
    """Of agentrl: games that it is evaluated on before and after training."""

    @property
    def rows(self) -> int:
        """Return how many completions a step trains."""
        return self.groups * self.group_size

    @property
    def rules(self) -> Rules | None:
        """Return those of the game, if one is played."""
        return {"single turn": None, "multi-turn": SHORT, "waiting": LONG}[self.task]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step as the contender's own process saw it."""

    tokens: int
    """That the policy sampled and that were trained."""
    reward: float
    """Mean over the completions of the step."""
    cpu_s: float
    """Of the process and everything below it, from one step's end to the next one's."""
    wall_s: float
    rollout_cpu_s: float
    rollout_wall_s: float
    prompt_ids: tuple[int, ...] = ()
    """Of the step's first completion."""
    rewards: tuple[float, ...] = ()
    """Of every completion, where the contender tells."""
    advantages: tuple[float, ...] = ()
    """The same."""
    peak_bytes: int = 0
    """Highest resident memory of the process until the end of the step."""

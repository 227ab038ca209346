"""The config of one whole run: one file, every key, its default and what it means."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.learn import LearnSection
from agentrl.config.section import Section


class RunSection(Section):
    """Where the run lives and how long it is."""

    name: str = Field(default="run", pattern=r"^[\w.-]+$")
    """Name of the run; its folder is `run.folder`/`run.name`."""
    folder: Path = Path("runs")
    """Where run folders are made."""
    seed: int = Field(default=0, ge=0)
    """Every random choice of the run derives from it."""
    steps: int = Field(default=100, ge=0)
    """Training steps: one batch of groups each."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many checkpoints stay on disk."""
    threads: int = Field(default=1, ge=1)
    """Torch threads of this process; more than one pays only on an otherwise idle machine."""


class EnvSection(Section):
    """Which environment the policy acts in."""

    id: str
    """A registered id such as `code/ChainSum-v0`, or `module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the environment."""
    task_limit: PositiveInt | None = None
    """Train on the first so many train tasks only; all of them by default."""
    allow_overlap: bool = False
    """Go on although a task is both a train and a held-out task."""


class MakePolicySection(Section):
    """A new Qwen3 model with random weights and a tokenizer trained on the environment's texts."""

    hidden_size: PositiveInt = 128
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 4
    head_dim: PositiveInt = 32
    intermediate_size: PositiveInt = 256
    vocab_size: PositiveInt = 2048
    """Upper bound of the tokenizer's vocabulary. Room for merges makes the text that all
    conversations share a few tokens."""
    tie_embeddings: bool = True


class PolicySection(Section):
    """The policy: a Hugging Face model folder, or a new small model."""

    path: str | None = None
    """A Hugging Face folder or hub name. Exactly one of `path` and `make` is given."""
    make: MakePolicySection | None = None
    template: str | None = None
    """Chat template: a shipped one by name, a file, or the tokenizer's own by default."""
    dialect: str = "auto"
    """How tool calls are written: `hermes`, `llama3`, or found out from the template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    """`cpu`, `cuda`, or the best there is."""


class EngineSection(Section):
    """The policy engine that samples turns."""

    kind: Literal["local"] = "local"
    slots: PositiveInt = 32
    """Requests decoded at once."""
    context_tokens: PositiveInt = 1024
    """Longest context, prompt and sampled tokens together."""


class SamplingSection(Section):
    """The distribution tokens are drawn from."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 keeps the whole vocabulary."""
    max_turn_tokens: PositiveInt = 256
    """Most tokens of one turn."""


class RolloutSection(Section):
    """How trajectories are made, and when one is stopped."""

    tasks_per_step: PositiveInt = 8
    """Task groups in one training step."""
    group_size: PositiveInt = 8
    """Trajectories of each task."""
    concurrency: PositiveInt = 64
    """Trajectories in flight at once."""
    max_turns: PositiveInt = 8
    """Policy messages per trajectory."""
    retries: int = Field(default=2, ge=0)
    """How often a failed trajectory is started again, alone."""
    max_failed_fraction: float = Field(default=0.2, ge=0, le=1)
    """The run stops when more of a step's trajectories than this fail for good."""
    reset_s: PositiveFloat = 60.0
    """Deadline of an environment's reset."""
    step_s: PositiveFloat = 60.0
    """Deadline of an environment's step, its tools included."""
    turn_s: PositiveFloat = 600.0
    """Deadline of one turn of the policy engine."""
    episode_s: PositiveFloat = 1800.0
    """A trajectory that takes longer is truncated after the turn at hand."""


class WarmstartSection(Section):
    """Supervised training on demonstrations before reinforcement learning."""

    steps: PositiveInt = 600
    batch_size: PositiveInt = 32
    """Demonstrations per step."""
    demonstrations: PositiveInt = 4000
    """How many different train tasks are demonstrated by the environment's gold player."""
    guess_fraction: float = Field(default=0.0, ge=0, le=1)
    """This share of the demonstrations answers at once with another task's answer, so that
    reinforcement learning has something to discover."""
    recordings: Path | None = None
    """A JSONL file of recorded conversations instead of the gold player."""
    learning_rate: PositiveFloat = 2e-3
    warmup_steps: int = Field(default=50, ge=0)
    final_learning_rate_fraction: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: PositiveFloat = 1.0


class EvaluateSection(Section):
    """Evaluation on held-out tasks."""

    tasks: PositiveInt = 200
    """Held-out tasks."""
    samples_per_task: PositiveInt = 1
    k: tuple[PositiveInt, ...] = (1,)
    """pass@k for each k; no k may exceed `samples_per_task`."""
    threshold: float = 1.0
    """A trajectory passes when its reward is at least this."""
    temperature: float = Field(default=1.0, ge=0)
    every: int = Field(default=0, ge=0)
    """Steps between evaluations during training; 0 evaluates before and after only."""
    confidence: float = Field(default=0.95, gt=0, lt=1)


class LimitsSection(Section):
    """What one sandbox session may use."""

    wall_s: PositiveFloat = 10.0
    cpu_s: PositiveFloat = 60.0
    memory_bytes: PositiveInt = 512 * 2**20
    processes: PositiveInt = 32
    open_files: PositiveInt = 256
    file_bytes: PositiveInt = 64 * 2**20
    disk_bytes: PositiveInt = 256 * 2**20
    output_bytes: PositiveInt = 16 * 2**10


class SandboxSection(Section):
    """Where model-written code runs."""

    backend: Literal["bubblewrap", "process"] = "bubblewrap"
    allow_unisolated: bool = False
    """Let the `process` back-end run model-written code with resource limits and nothing else."""
    limits: LimitsSection = LimitsSection()


class MetricsSection(Section):
    """Where the numbers go besides `metrics.jsonl`."""

    tensorboard: bool = True


class RunConfig(Section):
    """Everything a run needs to know."""

    run: RunSection = RunSection()
    env: EnvSection
    policy: PolicySection = PolicySection(make=MakePolicySection())
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    rollout: RolloutSection = RolloutSection()
    warmstart: WarmstartSection | None = None
    learn: LearnSection = LearnSection()
    evaluate: EvaluateSection = EvaluateSection()
    sandbox: SandboxSection = SandboxSection()
    metrics: MetricsSection = MetricsSection()

"""The config of one whole run: one file, every key, its default and what it means."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from agentrl.config.branching import BranchingSection
from agentrl.config.caps import ScheduleSection
from agentrl.config.cluster import ClusterSection
from agentrl.config.curation import CurationSection
from agentrl.config.diagnostics import DiagnosticsSection
from agentrl.config.drafts import DraftsSection
from agentrl.config.endpoint import EndpointSection
from agentrl.config.evaluate import EvaluateSection
from agentrl.config.learn import LearnSection
from agentrl.config.learning.layout import LayoutName
from agentrl.config.section import ConfigSection
from agentrl.config.split_guard import SplitGuardSection
from agentrl.config.store import StoreSection
from agentrl.config.view import ViewSection
from agentrl.errors import FailureKind

NAME_BYTES = 255
"""Of a file's name, which Linux and its file systems take at most."""


class RunSection(ConfigSection):
    """Folder and length of the run."""

    name: str = Field(default="run", pattern=r"^[\w.-]*[\w-][\w.-]*$")
    """Name of the run; its folder is `run.folder`/`run.name`."""
    folder: Path = Path("runs")
    """Folder in which run folders are made."""
    seed: int = Field(default=0, ge=0)
    """Every random choice of the run derives from it."""
    steps: int = Field(default=100, ge=0)
    """Training steps: one batch of groups each."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that stay on disk."""
    threads: int = Field(default=1, ge=1)
    """Torch threads of this process; more than one pays only on an otherwise idle machine."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if (size := len(os.fsencode(name))) > NAME_BYTES:
            raise ValueError(
                f"{size} bytes, and a folder's name has {NAME_BYTES} at most; shorten it"
            )
        return name


class EnvSection(ConfigSection):
    """Environment the policy acts in."""

    id: str
    """A registered id such as `code/ChainSum-v0`, or `module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the environment."""
    task_limit: PositiveInt | None = None
    """Train on the first so many train tasks only; all of them by default."""


class MakeVisionSection(ConfigSection):
    """The eyes of a new policy, which is then a Qwen3-VL. A token is two by two patches."""

    hidden_size: PositiveInt = 64
    """Width of the vision tower."""
    layers: PositiveInt = 2
    """Its layers; what leaves the first goes into the first layer of the text half too."""
    heads: PositiveInt = 4
    """Its attention heads; `hidden_size` is a multiple of four times as many."""
    intermediate_size: PositiveInt = 128
    """Width of its feed-forward layers."""
    patch_size: PositiveInt = 14
    """Side of a patch, in pixels."""
    max_pixels: PositiveInt = 112 * 112
    """Larger images are made so small."""


class MakePolicySection(ConfigSection):
    """A new Qwen3 model with random weights and a tokenizer trained on the environment's texts."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 4
    """Transformer layers."""
    heads: PositiveInt = 4
    """Attention heads."""
    kv_heads: PositiveInt = 4
    """Key and value heads; `heads` is a multiple of them."""
    head_dim: PositiveInt = 32
    """Width of one head."""
    intermediate_size: PositiveInt = 256
    """Width of the feed-forward layers."""
    vocab_size: PositiveInt = 2048
    """Upper bound of the tokenizer's vocabulary. Room for merges makes the text that all
    conversations share a few tokens."""
    tie_embeddings: bool = True
    """Share the head's weights with the embedding."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of new weights. A narrow model learns to copy sooner with more: half of
    one by the root of `hidden_size`, say."""
    vision: MakeVisionSection | None = None
    """Eyes, for environments that show images."""


class PolicySection(ConfigSection):
    """The policy: a Hugging Face model folder, or a new small model."""

    path: str | None = None
    """A Hugging Face folder or hub name. Exactly one of `path` and `make` is given."""
    make: MakePolicySection | None = None
    template: str | None = None
    """Chat template: a shipped one by name, a file, or the tokenizer's own by default."""
    dialect: str = "auto"
    """Syntax of tool calls. `auto` takes it from the template; else `hermes`, `llama3`, one of an
    installed distribution, or your own as `module:NAME`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights as they are loaded, and in the engine; training has `learn.precision`."""
    device: str = "auto"
    """`cpu`, `cuda`, or the best there is."""


class VllmSection(ConfigSection):
    """Resources and options of vLLM."""

    memory_fraction: float = Field(default=0.45, gt=0, lt=1)
    """Share of a GPU's memory for weights and keys; the trainer needs some of what is left."""
    cache_bytes: PositiveInt | None = None
    """Room for keys instead of a share; on a CPU, 1 GiB unless set."""
    prefill_tokens: PositiveInt | None = None
    """Most tokens of prompts and samples in one step; vLLM's own choice unless set."""
    prefix_cache: bool = True
    """Keep keys across turns, and share them between samples of a prompt."""
    eager: bool = False
    """Go without CUDA graphs; on a CPU it always does."""
    adapters: Literal["merged", "native"] = "merged"
    """Use of `learn.lora` in vLLM: merged into its weights, or kept apart as an adapter."""
    sampler: Literal["vllm", "agentrl"] = "vllm"
    """Sampler of tokens: vLLM's own, or `agentrl`, which draws what the local engine draws. Drafts
    and entropies need `agentrl` (docs/vllm.md)."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Any other argument of vLLM's `EngineArgs`, such as `quantization`."""


class ProbeSection(ConfigSection):
    """Engines show after every load that they compute what the trainer does."""

    tokens: PositiveInt = 16
    """Fixed tokens that both score."""
    max_gap: PositiveFloat | None = None
    """Largest accepted gap between their log-probs of a token, in nats. Unless set, 0.01 where
    trainer and engine both compute in float32, else 0.5, and 0.5 with `endpoint`."""
    deadline_s: PositiveFloat = 120.0
    """Deadline for the weights to be loaded, and again for the tokens to be scored."""


class BroadcastSection(ConfigSection):
    """New weights go to all engines at once, over a process group of torch."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Backend of the process group. `auto` is nccl where trainer and engines each have GPUs of
    their own, on this machine or by `cluster.engine_gpus`, and gloo elsewhere."""
    bucket_bytes: PositiveInt = 64 * 2**20
    """Bytes sent at once; two such buckets are under way."""
    deadline_s: PositiveFloat = 120.0
    """Deadline for all engines to join, and again for each bucket to arrive."""


class EngineSection(ConfigSection):
    """The policy engine that samples turns."""

    kind: Literal["local", "vllm", "endpoint"] = "local"
    """Engine of the policy. `local` decodes with torch alone, `vllm` with vLLM (docs/vllm.md),
    `endpoint` asks a server that somebody else started."""
    slots: PositiveInt = 32
    """Requests decoded at once."""
    context_tokens: PositiveInt = 1024
    """Longest context, prompt and sampled tokens together."""
    vllm: VllmSection = VllmSection()
    """Resources and options of the `vllm` engine."""
    endpoint: EndpointSection | None = None
    """Servers that `endpoint` asks."""
    addresses: list[str] = Field(default_factory=list[str])
    """Engines that others serve, each as `host:port` (`agentrl engine serve`), instead of one that
    the run makes."""
    key_file: Path | None = None
    """File with the key that they ask for."""
    rolling: bool = False
    """In `async`, with several engines: they take new weights one after the other, and the others
    go on sampling meanwhile."""
    processes: int = Field(default=0, ge=0)
    """Engines in processes of their own, each with all of `slots`; 0 is one in this process."""
    python: str | None = None
    """Interpreter of those processes, where vLLM has a venv of its own; this one's by default."""
    start_s: PositiveFloat = 600.0
    """Deadline for such a process, or an address, to have its engine ready."""
    max_restarts: int = Field(default=10, ge=0)
    """Number of times that a dead process is replaced."""
    probe: ProbeSection | None = None
    """New weights are proven, or taken back; null believes that an engine has what it was given.
    With `vllm` and `endpoint` they always are."""
    broadcast: BroadcastSection | None = None
    """Null sends weights through shared memory, Ray's object store or sockets, wherever engines
    are."""

    @property
    def tells_distributions(self) -> bool:
        """Return whether the engine tells entropies and whole distributions."""
        return self.kind == "local" or (self.kind == "vllm" and self.vllm.sampler == "agentrl")


class SamplingSection(ConfigSection):
    """The distribution tokens are drawn from."""

    temperature: float = Field(default=1.0, ge=0)
    """Divides the logits; training needs more than 0."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the most likely tokens up to this share of the probability; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """0 keeps the whole vocabulary."""
    max_turn_tokens: PositiveInt = 256
    """Most tokens of one turn."""


class SegmentSection(ConfigSection):
    """Budget of a trajectory before it waits for the next version of the weights."""

    tokens: PositiveInt = 4096
    """Sampled in one segment."""
    turns: PositiveInt = 4
    """Policy messages in one segment."""
    segments: PositiveInt = 4
    """Segments of one trajectory; after the last one it is truncated."""


class AlarmsSection(ConfigSection):
    """Failures that stop a run, whatever a single step tolerates."""

    window: PositiveInt = 500
    """Latest attempts that rates are taken over; retried ones count."""
    min_count: PositiveInt = 50
    """Attempts before anything is judged."""
    thresholds: dict[FailureKind, float] = Field(default_factory=dict)
    """Highest tolerated share of attempts by kind: `env`, `tool`, `sandbox`, `verifier`,
    `engine`."""


class RolloutSection(ConfigSection):
    """Collection of trajectories, and the limits that stop one."""

    mode: Literal["sync", "partial", "async"] = "sync"
    """Overlap of trajectories with training. `sync`: none; `partial`: none, but unfinished ones
    wait and go on in the next step (APRIL); `async`: always (AReaL)."""
    over_provision: float = Field(default=1.5, ge=1)
    """In `partial`: groups in flight at the start of a step, per group that the step needs."""
    max_staleness: int = Field(default=1, ge=0)
    """In `async`: most versions ahead of the trainer at which a group may be begun."""
    backlog: int = Field(default=0, ge=0)
    """In `async`: batches that wait, complete, behind the one that trains, which makes it so many
    versions old on purpose; 0 trains as soon as it can."""
    max_start_lag: int | None = Field(default=None, ge=0)
    """A trajectory begun more versions ago than this is begun again."""
    max_age: int | None = Field(default=None, ge=0)
    """No token that was sampled more versions ago than this trains."""
    when_old: Literal["mask", "restart"] = "mask"
    """A trajectory with older tokens: only the younger ones train, or it begins again."""
    min_valid: int = Field(default=0, ge=0)
    """A group with fewer trajectories that did not fail is not trained; its task is tried again."""
    redundancy: int = Field(default=0, ge=0)
    """Trajectories started beyond `group_size`; the first to end are kept, the others stopped."""
    segment: SegmentSection | None = None
    """Budgeted segments; none, and a trajectory runs until it ends."""
    alarms: AlarmsSection = AlarmsSection()
    """Failures that stop the run."""
    branching: BranchingSection = BranchingSection()
    """Rules by which trajectories branch."""
    drafts: DraftsSection | None = None
    """Reuse of a task's last trajectories; none, and every token is sampled anew."""
    tasks_per_step: PositiveInt = 8
    """Task groups in one training step."""
    group_size: PositiveInt = 8
    """Trajectories of each task."""
    concurrency: PositiveInt = 64
    """Trajectories in flight at once."""
    max_turns: PositiveInt = 8
    """Policy messages per trajectory."""
    images: PositiveInt | None = None
    """Number of last images that stay in a context. A note takes the place of an older one, which
    begins a context of its own. Null keeps all."""
    schedule: ScheduleSection | None = None
    """Null keeps `sampling.max_turn_tokens` and `rollout.max_turns` as they are in every step."""
    retries: int = Field(default=2, ge=0)
    """Number of times that a failed trajectory is started again, alone."""
    max_failed_fraction: float = Field(default=0.2, ge=0, le=1)
    """The run stops when more of a step's trajectories than this fail for good. Those whose
    verifier gave no verdict do not count."""
    reset_s: PositiveFloat = 60.0
    """Deadline of an environment's reset."""
    step_s: PositiveFloat = 60.0
    """Deadline of an environment's step, its tools included."""
    turn_s: PositiveFloat = 600.0
    """Deadline of one turn of the policy engine."""
    fork_s: PositiveFloat = 60.0
    """Deadline of an environment's fork."""
    stall_s: PositiveFloat = 3600.0
    """The run stops, and says what is stuck, when nothing at all has moved for so long."""
    episode_s: PositiveFloat = 1800.0
    """A trajectory that takes longer is truncated after the turn at hand."""


UNTIL_STEPS = 10
"""`warmstart.until_loss` is compared with a mean over so many steps: that of one is mostly luck."""


class WarmstartSection(ConfigSection):
    """Supervised training on demonstrations before reinforcement learning; `warmstart: null`
    leaves it out."""

    steps: PositiveInt = 600
    """Optimiser steps; with `until_loss` the most there are."""
    until_loss: PositiveFloat | None = None
    """End as soon as the mean loss of the last ten steps is this or less, in nats per token: how
    long a small policy takes to find out differs much between seeds."""
    batch_size: PositiveInt = 32
    """Demonstrations per step."""
    demonstrations: PositiveInt = 4000
    """Different train tasks that the environment's gold player demonstrates."""
    guess_fraction: float = Field(default=0.0, ge=0, le=1)
    """This share of the demonstrations answers at once with the most frequent answer of all, so
    that reinforcement learning has something to discover."""
    recordings: Path | None = None
    """A JSONL file of recorded conversations instead of the gold player."""
    layout: LayoutName = "padded"
    """As `learn.layout`; `tree` computes a system prompt that all demonstrations share once, which
    pays for a large model."""
    learning_rate: PositiveFloat = 2e-3
    """AdamW's rate after the warm-up; it falls over the last 30 % of the steps."""
    warmup_steps: int = Field(default=50, ge=0)
    """Steps over which the rate rises linearly."""
    final_learning_rate_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final rate, as a share of `learning_rate`."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """A longer gradient is shortened to this."""


class LimitsSection(ConfigSection):
    """Limits of one sandbox session."""

    wall_s: PositiveFloat = 10.0
    """Deadline of one call."""
    cpu_s: PositiveFloat = 60.0
    """CPU time of the whole session."""
    memory_bytes: PositiveInt = 512 * 2**20
    """Address space of one process."""
    processes: PositiveInt = 32
    """Processes and threads at once."""
    open_files: PositiveInt = 256
    """File descriptors of one process."""
    file_bytes: PositiveInt = 64 * 2**20
    """Size of one file."""
    disk_bytes: PositiveInt = 256 * 2**20
    """Size of the session's directory."""
    files: PositiveInt = 65_536
    """Files, directories and links in the session's directory."""
    output_bytes: PositiveInt = 16 * 2**10
    """Size of stdout and of stderr each; head and tail are kept."""


class PressureSection(ConfigSection):
    """Load that one pool of sessions may put on the machine."""

    sessions: PositiveInt = 1024
    """Live sessions, forks included."""
    starts_per_s: PositiveFloat = 200.0
    """Opened sessions per second in the long run."""
    start_burst: PositiveInt = 64
    """Sessions that may be opened at once before `starts_per_s` holds them back."""
    cells: PositiveInt = 256
    """Cells and commands that run at once."""
    free_memory_bytes: NonNegativeInt = 512 * 2**20
    """Memory that must be available on the machine for another session to start."""
    wait_s: PositiveFloat = 60.0
    """Longest wait for a place before the trajectory fails."""


class SandboxSection(ConfigSection):
    """Sandbox in which model-written code runs."""

    backend: Literal["namespaces", "bubblewrap", "docker", "process"] = "namespaces"
    """Namespaces of our own making, or through bubblewrap, a container, or a bare process with
    resource limits only."""
    allow_unisolated: bool = False
    """Let the `process` back-end run model-written code with resource limits and nothing else."""
    after_timeout: Literal["fresh", "restore", "end"] = "fresh"
    """Reaction to a cell that ran out of time or memory, or crashed. `fresh`: names are gone;
    `restore`: names are as before the cell (costs a fork per cell); `end`: the session ends."""
    supervisors: PositiveInt = 1
    """Supervisors (for `docker`: containers) that sessions are spread over."""
    image: str = "agentrl-sandbox"
    """Image of the `docker` back-end."""
    packages: str = ""
    """A directory of Python packages that sessions may import and not change."""
    limits: LimitsSection = LimitsSection()
    """Limits of one session."""
    pressure: PressureSection = PressureSection()
    """Load that all sessions together may put on the machine."""


class WandbSection(ConfigSection):
    """Numbers go to Weights & Biases, too; needs the extra `wandb`."""

    project: str = "agentrl"
    """W&B project."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes into the run's folder; `wandb sync` sends it later."""
    entity: str | None = None
    """User or team; null is the one that is logged in."""
    group: str | None = None
    """Runs that belong together."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""


class MetricsSection(ConfigSection):
    """Destinations of the metrics besides `metrics.jsonl`."""

    tensorboard: bool = True
    """Also write TensorBoard event files into the run's folder."""
    wandb: WandbSection | None = None
    """Also send them to Weights & Biases."""
    opentelemetry: bool = False
    """Send steps and trajectories as OpenTelemetry spans; needs the extra `otel`."""


class RunConfig(ConfigSection):
    """Everything a run needs to know."""

    run: RunSection = RunSection()
    env: EnvSection
    policy: PolicySection = PolicySection(make=MakePolicySection())
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    rollout: RolloutSection = RolloutSection()
    curation: CurationSection = CurationSection()
    warmstart: WarmstartSection | None = None
    learn: LearnSection = LearnSection()
    evaluate: EvaluateSection = EvaluateSection()
    split_guard: SplitGuardSection = SplitGuardSection()
    sandbox: SandboxSection = SandboxSection()
    cluster: ClusterSection = ClusterSection()
    store: StoreSection | None = StoreSection()
    """None records nothing, and a run that is killed loses what came after its last checkpoint."""
    metrics: MetricsSection = MetricsSection()
    diagnostics: DiagnosticsSection = DiagnosticsSection()
    view: ViewSection = ViewSection()

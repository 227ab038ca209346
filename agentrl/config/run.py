"""The config of a whole run: one file with every key, its default, and its meaning."""

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from agentrl.config.branching import BranchingSection
from agentrl.config.cluster import ClusterSection
from agentrl.config.curation import CurationSection
from agentrl.config.evaluate import EvaluateSection
from agentrl.config.learn import LayoutName, LearnSection
from agentrl.config.section import ConfigSection
from agentrl.errors import FailureKind

NAME_BYTES = 255
"""Maximum length of a file name on Linux and its file systems."""


class RunSection(ConfigSection):
    """Name, folder, and length of the run."""

    name: str = Field(default="run", pattern=r"^[\w.-]*[\w-][\w.-]*$")
    """Name of the run; the run folder is `run.folder`/`run.name`."""
    folder: Path = Path("runs")
    """Parent folder of run folders."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random choices of the run."""
    steps: int = Field(default=100, ge=0)
    """Number of training steps; each trains on one batch of groups."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always writes one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of checkpoints to keep."""
    threads: int = Field(default=1, ge=1)
    """Number of torch threads of this process; more than one helps only on an otherwise idle
    machine."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if (size := len(os.fsencode(name))) > NAME_BYTES:
            raise ValueError(
                f"{size} bytes, but a folder name may have at most {NAME_BYTES}; shorten it"
            )
        return name


class EnvSection(ConfigSection):
    """Environment in which the policy acts."""

    id: str
    """Registered id such as `code/ChainSum-v0`, `KIND:WHAT` such as `dataset:tasks.jsonl`, or
    `module:Class`."""
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments for the environment."""
    task_limit: PositiveInt | None = None
    """Number of train tasks to use, from the first; all tasks by default."""


class MakeVisionSection(ConfigSection):
    """Vision encoder of a new policy, which is then a Qwen3-VL model. An image token covers two by
    two patches."""

    hidden_size: PositiveInt = 64
    """Width of the vision encoder."""
    layers: PositiveInt = 2
    """Number of layers; the output of the first layer is also fed into the first layer of the text
    model."""
    heads: PositiveInt = 4
    """Number of attention heads; `hidden_size` must be a multiple of four times this."""
    intermediate_size: PositiveInt = 128
    """Width of the feed-forward layers."""
    patch_size: PositiveInt = 14
    """Side of a patch, in pixels."""
    max_pixels: PositiveInt = 112 * 112
    """Maximum number of pixels; larger images are downscaled."""


class MakePolicySection(ConfigSection):
    """A new Qwen3 model with random weights, and a tokenizer trained on the environment's texts."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 4
    """Number of transformer layers."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    kv_heads: PositiveInt = 4
    """Number of key-value heads; `heads` must be a multiple of this."""
    head_dim: PositiveInt = 32
    """Width of one attention head."""
    intermediate_size: PositiveInt = 256
    """Width of the feed-forward layers."""
    vocab_size: PositiveInt = 2048
    """Maximum size of the tokenizer's vocabulary. With enough merges, the text shared by all
    conversations becomes a few tokens."""
    tie_embeddings: bool = True
    """Share weights between output head and embedding."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the initial weights. A narrow model learns to copy sooner with a larger
    value, such as 0.5 / sqrt(`hidden_size`)."""
    vision: MakeVisionSection | None = None
    """Vision encoder, for environments that show images; null makes a text model."""


class PolicySection(ConfigSection):
    """The policy: a Hugging Face model folder, or a new small model."""

    path: str | None = None
    """Hugging Face model folder or hub name. Set exactly one of `path` and `make`."""
    make: MakePolicySection | None = None
    template: str | None = None
    """Chat template: the name of a shipped one, a file, or null for the tokenizer's own."""
    renderer: str | None = None
    """Renderer of the package `renderers` in place of a chat template, such as `qwen3` or
    `kimi-k2`, with `chat_template_kwargs` as its options; requires the extra `renderers`."""
    dialect: str = "auto"
    """Tool-call dialect. `auto` detects it from the template; otherwise one of docs/chat.md, such
    as `hermes` or `glm_4_5`, one from an installed distribution, or your own as `module:NAME`.
    `renderer` parses with the package of `renderer`."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Variables of the chat template, such as `enable_thinking: false` or `reasoning_effort: low`,
    or options of the renderer; one that it does not read is refused."""
    earlier_turns: Literal["template", "sampled"] = "template"
    """Earlier turns once a user speaks again. `template` keeps what the model's chat template
    keeps: where it drops their thinking, a new context begins. `sampled` keeps every token."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights when loaded, and in the engine; for training see
    `learn.precision`."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for the best available device."""


class VllmSection(ConfigSection):
    """Resources and options of vLLM."""

    memory_fraction: float = Field(default=0.45, gt=0, lt=1)
    """Fraction of GPU memory for weights and KV cache; leave some for the trainer."""
    cache_bytes: PositiveInt | None = None
    """Size of the KV cache, instead of a fraction; on a CPU, 1 GiB by default."""
    prefill_tokens: PositiveInt | None = None
    """Maximum number of tokens of prompts and samples per engine step; null uses vLLM's default."""
    prefix_cache: bool = True
    """Prefix caching: reuse the KV cache across turns and between samples of a prompt."""
    eager: bool = False
    """Disable CUDA graphs; on a CPU they are always disabled."""
    adapters: Literal["merged", "native"] = "merged"
    """Use of `learn.lora` in vLLM: merged into the weights, or as a separate adapter."""
    sampler: Literal["vllm", "agentrl"] = "vllm"
    """Token sampler. `vllm` runs vLLM's own server, by its public interface. `agentrl` runs vLLM in
    the engine's process and samples exactly what the local engine samples; drafts, entropies and
    images require it (docs/vllm.md)."""
    transfer: Literal["folder", "nccl", "ipc"] = "folder"
    """How the server gets whole weights: from a folder in this machine's memory, or from device to
    device by vLLM's weight-transfer API (`nccl`: separate GPUs, `ipc`: the same GPU)."""
    update: Literal["recompute", "keep"] = "recompute"
    """Requests in flight during a weight update: compute their KV cache again under the new
    weights, or keep it."""
    sleep_level: Literal[0, 1, 2] = 0
    """GPU memory that the server releases while the trainer computes, in `sync` and `partial`:
    0 none, 1 the KV cache, and weights to host memory, 2 both without a copy."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Additional arguments of vLLM, such as `tensor_parallel_size` or `quantization`."""


class EndpointSection(ConfigSection):
    """External inference servers (docs/engines.md), which serve the policy as their base model."""

    urls: list[str] = Field(min_length=1)
    """URLs including the API version, such as `http://localhost:8000/v1`; requests are distributed
    over all of them."""
    model: str = Field(min_length=1)
    """Name of the base model on the servers."""
    api: Literal["completions", "generate", "sglang"] = "completions"
    """API for tokens: vLLM's `/v1/completions` or `/inference/v1/generate`, or SGLang's
    `/generate`."""
    weights: Literal["adapters", "folder"] = "adapters"
    """What the servers are given: the adapters of `learn.lora`, or whole weights in a folder, which
    requires a server that allows it (docs/engines.md)."""
    update: Literal["recompute", "keep"] = "recompute"
    """Requests in flight during an update of whole weights: send them again, or keep them and their
    KV cache on the server."""
    adapters: Path | None = None
    """Folder for the adapters, or weights, of each version, which the servers read under the same
    path; null means `adapters` in the run folder."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; if it is not set, no key is sent."""
    silence_s: PositiveFloat = 300.0
    """Maximum time without data from the server before a request is sent again."""
    retries: NonNegativeInt = 8
    """Number of consecutive retries after responses 408, 409, 425, 429 and 5xx and lost
    connections, with waits of up to a minute; then the request fails."""


class ProbeSection(ConfigSection):
    """Weight check: after each load, engines must reproduce the trainer's log-probs."""

    tokens: PositiveInt = 16
    """Number of fixed tokens that both sides score."""
    max_gap: PositiveFloat | None = None
    """Maximum difference of a token's log-prob, in nats. By default 0.01 if trainer and engine both
    compute in float32, else 0.5, and 0.5 with `endpoint`."""
    deadline_s: PositiveFloat = 120.0
    """Timeout for loading the weights, and again for scoring the tokens."""


class BroadcastSection(ConfigSection):
    """Weight broadcast: send new weights to all engines at once through a torch process group."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Backend of the process group. `auto` uses nccl if trainer and engines each have their own
    GPUs, on this machine or through `cluster.engine_gpus`, else gloo."""
    bucket_bytes: PositiveInt = 64 * 2**20
    """Bytes per bucket; two buckets are in flight at a time."""
    deadline_s: PositiveFloat = 120.0
    """Timeout for all engines to join, and again for each bucket to arrive."""


class EngineSection(ConfigSection):
    """Inference engine that samples the policy's turns."""

    kind: Literal["local", "vllm", "endpoint"] = "local"
    """Type of engine. `local` decodes with plain torch, `vllm` with vLLM (docs/vllm.md), `endpoint`
    uses an external inference server."""
    slots: PositiveInt = 32
    """Number of requests decoded concurrently."""
    context_tokens: PositiveInt = 1024
    """Maximum context length: prompt and sampled tokens together."""
    draft_tokens: int = Field(default=0, ge=0)
    """Speculative decoding of `local`: maximum number of n-gram draft tokens per step of a request.
    Changes no sampled token; pays where text repeats, as in later epochs. 0 turns it off."""
    vllm: VllmSection = VllmSection()
    """Resources and options of the `vllm` engine."""
    endpoint: EndpointSection | None = None
    """Servers for `endpoint`."""
    addresses: list[str] = Field(default_factory=list[str])
    """Addresses, as `host:port`, of engines served elsewhere (`agentrl engine serve`), instead of
    starting one in this run."""
    key_file: Path | None = None
    """File with the shared key of those engines."""
    rolling: bool = False
    """Rolling weight updates, in `async` with several engines: update one engine after the other
    while the rest keep sampling."""
    processes: int = Field(default=0, ge=0)
    """Number of engine processes, each with its own `slots`; 0 runs one engine in this process."""
    python: str | None = None
    """Python interpreter of the engine processes, if vLLM is installed in another virtual
    environment; this one by default."""
    start_s: PositiveFloat = 600.0
    """Timeout for an engine process, or an address, to become ready."""
    max_restarts: int = Field(default=10, ge=0)
    """Maximum number of times that a dead engine process is restarted."""
    probe: ProbeSection | None = None
    """Weight check after each update; an engine that fails gets its previous weights back. Null
    trusts engines to load weights correctly. `vllm` and `endpoint` are always checked."""
    broadcast: BroadcastSection | None = None
    """Weight broadcast; null sends weights through shared memory, Ray's object store, or sockets,
    depending on where engines run."""

    @property
    def is_server(self) -> bool:
        """Return whether the engine is vLLM's server, in processes of its own."""
        return self.kind == "vllm" and self.vllm.sampler == "vllm"

    @property
    def tells_distributions(self) -> bool:
        """Return whether the engine reports entropies and full distributions."""
        return self.kind == "local" or (self.kind == "vllm" and self.vllm.sampler == "agentrl")


class SamplingSection(ConfigSection):
    """Distribution from which tokens are sampled."""

    temperature: float = Field(default=1.0, ge=0)
    """Divisor of the logits; training requires a value above 0."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: keep the most likely tokens up to this probability mass; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Keep only this many most likely tokens; 0 keeps all."""
    max_turn_tokens: PositiveInt = 256
    """Maximum number of tokens per turn."""


class SegmentSection(ConfigSection):
    """Partial rollouts: budget of a trajectory before it waits for the next weight version."""

    tokens: PositiveInt = 4096
    """Maximum number of sampled tokens per segment."""
    turns: PositiveInt = 4
    """Maximum number of policy messages per segment."""
    segments: PositiveInt = 4
    """Maximum number of segments per trajectory; after the last one it is truncated."""


class AlarmsSection(ConfigSection):
    """Failure rates that stop a run, regardless of what a single step tolerates."""

    window: PositiveInt = 500
    """Number of latest attempts over which rates are computed; retries count."""
    min_count: PositiveInt = 50
    """Minimum number of attempts before an alarm can fire."""
    thresholds: dict[FailureKind, Annotated[float, Ge(0), Le(1)]] = Field(default_factory=dict)
    """Maximum failure rate by kind: `env`, `request`, `tool`, `sandbox`, `verifier`, `judge`,
    `wording`, `engine`."""


class ScheduleSection(ConfigSection):
    """Periodic schedule of the length limits (SIRI): limits on turns and trajectories tighten, then
    relax again. A trajectory keeps the limits of the step at which it started; evaluations use the
    full limits."""

    wave: Literal["cosine", "stair", "stair_cosine"] = "cosine"
    """Course of the limits within a period. `cosine`: from full to minimum and back along a cosine;
    `stair`: first minimum, then full; `stair_cosine`: a cosine that stays at either end for a
    quarter of the period."""
    period_steps: PositiveInt = 640
    """Length of one period, in training steps."""
    min_turn_tokens: PositiveInt | None = None
    """Minimum of `sampling.max_turn_tokens`; null leaves that key unscheduled."""
    min_turns: PositiveInt | None = None
    """Minimum of `rollout.max_turns`; null leaves that key unscheduled."""


class GrowthSection(ConfigSection):
    """Length limits that begin short and grow with truncation (AgentMath): after a step of which
    too many trajectories were cut by them, what starts next has longer ones, up to the full limits.
    Evaluations use the full limits."""

    turn_tokens: PositiveInt | None = None
    """First value of `sampling.max_turn_tokens`; null begins with that key."""
    turns: PositiveInt | None = None
    """First value of `rollout.max_turns`; null begins with that key."""
    above: float = Field(default=0.1, ge=0, lt=1)
    """Limits grow after a step in which more than this fraction of the trajectories were truncated
    at the last turn, or had a turn cut; failed ones do not count."""
    factor: float = Field(default=1.5, gt=1)
    """Factor by which both limits grow."""


class DraftsSection(ConfigSection):
    """Reuse of a task's previous trajectories as drafts (SPEC-RL); see docs/scheduling.md. Accepted
    tokens are not sampled again."""

    leniency: float = Field(default=math.exp(0.5), ge=0)
    """Draft tokens are accepted with probability `min(1, (leniency * p / q) ** scale)`, where p is
    the current probability and q the one at sampling: 1 is the exact test, 0 rejects all."""
    scale: float = Field(default=1.0, gt=0)
    """Values above 1 reject unlikely tokens more strictly."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Draft tokens with a current probability below this are always rejected."""
    residual: bool = False
    """Sample the replacement of a rejected token from the residual distribution, so that
    trajectories are exact samples of the policy; requires `leniency` of at most 1 and `scale` of at
    least 1."""
    alternatives: PositiveInt = 20
    """With `residual`: number of most likely tokens stored per token; a draft token outside them is
    rejected."""
    reuse: Literal["execute", "verify", "trust"] = "verify"
    """Environment between drafted turns. `execute`: run tools again and use their answers;
    `verify`: run tools again, and end the draft at a different answer; `trust`: use recorded
    answers as long as the actions match."""
    capacity_tokens: PositiveInt = 5_000_000
    """Total number of tokens stored for drafts, context included."""


class RolloutSection(ConfigSection):
    """Collection of trajectories, and their limits."""

    mode: Literal["sync", "partial", "async"] = "sync"
    """Overlap of rollouts and training. `sync`: none; `partial`: none, but unfinished trajectories
    wait and resume in the next step (APRIL); `async`: continuous (AReaL)."""
    over_provision: float = Field(default=1.5, ge=1)
    """In `partial`: groups in flight at the start of a step, relative to the groups that the step
    needs."""
    max_staleness: int = Field(default=1, ge=0)
    """In `async`: maximum staleness: number of versions behind the one that trains a group at which
    the group may start."""
    backlog: int = Field(default=0, ge=0)
    """In `async`: number of complete batches that wait behind the one that trains, which makes them
    that many versions older; 0 trains each batch as soon as possible."""
    max_start_lag: int | None = Field(default=None, ge=0)
    """Maximum number of versions since the start of a trajectory; older trajectories restart. Null
    sets no limit."""
    max_age: int | None = Field(default=None, ge=0)
    """Maximum age of a token, in versions, at which it still trains. Null sets no limit."""
    when_old: Literal["mask", "restart"] = "mask"
    """Treatment of a trajectory that has older tokens: `mask` them, or `restart` it."""
    min_valid: int = Field(default=0, ge=0)
    """Minimum number of trajectories that did not fail; with fewer, a group is dropped and its task
    tried again."""
    redundancy: int = Field(default=0, ge=0)
    """Number of trajectories started beyond `group_size`; the first ones to end are kept, the
    others are stopped."""
    segment: SegmentSection | None = None
    """Budget of segments; null lets each trajectory run to its end."""
    alarms: AlarmsSection = AlarmsSection()
    """Failure rates that stop the run."""
    branching: BranchingSection = BranchingSection()
    """Rollout topology: the points at which trajectories branch."""
    drafts: DraftsSection | None = None
    """Reuse of earlier trajectories as drafts; null samples all tokens."""
    tasks_per_step: PositiveInt = 8
    """Number of tasks (groups) per training step."""
    group_size: PositiveInt = 8
    """Number of trajectories per task."""
    concurrency: PositiveInt = 64
    """Maximum number of trajectories in flight."""
    max_turns: PositiveInt = 8
    """Maximum number of policy messages per trajectory."""
    images: PositiveInt | None = None
    """Number of latest images kept in the context. Older images are replaced by a note, which
    starts a new context. Null keeps all."""
    schedule: ScheduleSection | None = None
    """Schedule of the length limits; null keeps `sampling.max_turn_tokens` and `rollout.max_turns`
    constant."""
    growth: GrowthSection | None = None
    """Growth of the length limits with truncation; null keeps them constant."""
    retries: int = Field(default=2, ge=0)
    """Number of times a failed trajectory is retried."""
    max_failed_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of a step's trajectories that may fail for good before the run stops.
    Trajectories whose verifier gave no verdict do not count."""
    reset_s: PositiveFloat = 60.0
    """Timeout of an environment's reset."""
    step_s: PositiveFloat = 60.0
    """Timeout of an environment's step, including its tools."""
    turn_s: PositiveFloat = 600.0
    """Timeout of one turn of the policy engine."""
    fork_s: PositiveFloat = 60.0
    """Timeout of an environment's fork."""
    stall_s: PositiveFloat = 3600.0
    """The run stops, with a report of what is stuck, after this time without any progress."""
    episode_s: PositiveFloat = 1800.0
    """Maximum duration of a trajectory; a longer one is truncated after its current turn."""


UNTIL_STEPS = 10
"""Number of steps whose mean loss is compared with `warmstart.until_loss`; a single step is too
noisy."""


class WarmstartSection(ConfigSection):
    """Supervised training on demonstrations before reinforcement learning; `warmstart: null`
    disables it."""

    steps: PositiveInt = 600
    """Number of optimiser steps; with `until_loss`, the maximum."""
    until_loss: PositiveFloat | None = None
    """Stop once the mean loss of the last ten steps is at most this, in nats per token. The number
    of steps a small policy needs varies widely between seeds."""
    batch_size: PositiveInt = 32
    """Number of demonstrations per step."""
    demonstrations: PositiveInt = 4000
    """Number of distinct train tasks that the environment's gold player demonstrates."""
    guess_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of demonstrations that answer immediately with the most frequent answer, which
    leaves reinforcement learning something to discover. Where there are fewer tasks than
    `demonstrations`, every task is demonstrated, and these come on top."""
    recordings: Path | None = None
    """JSONL file of recorded conversations to use instead of the gold player."""
    layout: LayoutName = "padded"
    """Sequence layout, as in `learn.layout`; `tree` computes a shared system prompt once, which
    pays off for large models."""
    learning_rate: PositiveFloat = 2e-3
    """Learning rate of AdamW after the warm-up; it decays over the last 30 % of the steps."""
    warmup_steps: int = Field(default=50, ge=0)
    """Number of steps of the linear warm-up."""
    final_learning_rate_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate, as a fraction of `learning_rate`."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are clipped."""


class LimitsSection(ConfigSection):
    """Limits of one sandbox session."""

    wall_s: PositiveFloat = 10.0
    """Timeout of one call."""
    cpu_s: PositiveFloat = 60.0
    """CPU time of the whole session."""
    memory_bytes: PositiveInt = 512 * 2**20
    """Address space per process."""
    processes: PositiveInt = 32
    """Maximum number of processes and threads."""
    open_files: PositiveInt = 256
    """Maximum number of file descriptors per process."""
    file_bytes: PositiveInt = 64 * 2**20
    """Maximum size of one file."""
    disk_bytes: PositiveInt = 256 * 2**20
    """Maximum size of the session directory."""
    files: PositiveInt = 65_536
    """Maximum number of files, directories, and links in the session directory."""
    output_bytes: PositiveInt = 16 * 2**10
    """Maximum size of stdout and of stderr; beyond it, only head and tail are kept."""


class PressureSection(ConfigSection):
    """Limits on the load that one pool of sessions puts on the machine."""

    sessions: PositiveInt = 1024
    """Maximum number of live sessions, forks included."""
    starts_per_s: PositiveFloat = 200.0
    """Sustained rate of session starts per second."""
    start_burst: PositiveInt = 64
    """Number of sessions that may start at once before `starts_per_s` throttles them."""
    cells: PositiveInt = 256
    """Maximum number of cells and commands that run concurrently."""
    free_memory_bytes: NonNegativeInt = 512 * 2**20
    """Available memory that the machine must have for another session to start."""
    wait_s: PositiveFloat = 60.0
    """Maximum time to wait for a session before the trajectory fails."""


class SandboxSection(ConfigSection):
    """Sandbox in which model-written code runs."""

    backend: Literal["namespaces", "bubblewrap", "docker", "process"] = "namespaces"
    """Isolation: Linux namespaces directly, or through bubblewrap, a container, or a plain process
    with resource limits only."""
    allow_unisolated: bool = False
    """Allow the `process` back-end to run model-written code with nothing but resource limits."""
    after_timeout: Literal["fresh", "restore", "end"] = "fresh"
    """Session state after a cell that timed out, ran out of memory, or crashed. `fresh`: variables
    are lost; `restore`: variables are as before the cell (costs a fork per cell); `end`: the
    session ends."""
    supervisors: PositiveInt = 1
    """Number of fork servers (with `docker`: containers) over which sessions are spread."""
    image: str = "agentrl-sandbox"
    """Image for the `docker` back-end."""
    packages: str = ""
    """Directory of Python packages that sessions can import but not modify."""
    limits: LimitsSection = LimitsSection()
    """Limits of each session."""
    pressure: PressureSection = PressureSection()
    """Limits on the load that all sessions together put on the machine."""


class WandbSection(ConfigSection):
    """Also send metrics to Weights & Biases; requires the extra `sinks`."""

    project: str = "agentrl"
    """W&B project."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes to the run folder; upload it later with `wandb sync`."""
    entity: str | None = None
    """W&B user or team; null uses the logged-in user."""
    group: str | None = None
    """W&B group of related runs."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""


class TrackioSection(ConfigSection):
    """Also send metrics to Trackio; requires the extra `sinks`."""

    project: str = "agentrl"
    """Trackio project."""
    space_id: str | None = None
    """Hugging Face Space, such as NAME/SPACE; null keeps everything on this machine, or sends it to
    `TRACKIO_SERVER_URL`."""
    group: str | None = None
    """Trackio group of related runs."""


class MlflowSection(ConfigSection):
    """Also send metrics to MLflow; requires the extra `sinks`."""

    experiment: str = "agentrl"
    """MLflow experiment; created where there is none."""
    tracking_uri: str | None = None
    """Tracking server, such as `http://HOST:5000`; null uses `MLFLOW_TRACKING_URI`."""


class MetricsSection(ConfigSection):
    """Destinations of metrics besides `metrics.jsonl`."""

    tensorboard: bool = False
    """Also write TensorBoard event files to the run folder; requires the extra `sinks`."""
    wandb: WandbSection | None = None
    """Also send metrics to Weights & Biases."""
    trackio: TrackioSection | None = None
    """Also send metrics to Trackio."""
    mlflow: MlflowSection | None = None
    """Also send metrics to MLflow."""
    opentelemetry: bool = False
    """Send steps and trajectories as OpenTelemetry spans; requires the extra `sinks`."""


class SplitGuardSection(ConfigSection):
    """Guard against held-out tasks that leak into training, exactly or nearly."""

    allow: bool = False
    """Continue even if splits overlap."""
    train_tasks: PositiveInt = 1000
    """Number of train tasks to compare before a run; the rest are compared for exact matches as
    they are drawn."""
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Minimum fraction of shared word trigrams at which two tasks count as near-duplicates."""
    max_near_fraction: float = Field(default=0.2, ge=0, le=1)
    """Maximum fraction of held-out tasks with a near-duplicate before a run is refused."""


class StoreSection(ConfigSection):
    """Durable record of all events of a run, from which `--resume` continues after a crash."""

    durable: Literal["process", "interval", "power"] = "process"
    """Durability of a completed turn. `process`: survives the end of the process; `interval`: also
    survives a power failure, except for the last `interval_s`; `power`: survives any power failure,
    but each turn waits for the disk."""
    interval_s: PositiveFloat = 0.05
    """With `interval`: maximum age in seconds of a record that is not yet on disk."""
    segment_bytes: int = Field(default=64 * 2**20, ge=4096)
    """Size at which a log file is closed and the next one started."""
    keep: Literal["all", "untrained"] = "untrained"
    """Tokens to keep on disk: all, or only those that a kept checkpoint may still need."""


class ViewSection(ConfigSection):
    """Data that a run records for `agentrl view`."""

    record: bool = True
    """Record the advantage, ratio, and entropy of each token in each step. Requires `store`."""
    record_bytes: int = Field(default=64 * 2**20, ge=0)
    """Maximum size of this record on disk; beyond it, the oldest steps are deleted."""
    redact: tuple[str, ...] = ()
    """Regular expressions of text to hide, in addition to the values of environment variables that
    look like keys."""

    @field_validator("redact")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                match = re.compile(pattern).match("")
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from error
            if match is not None:
                raise ValueError(
                    f"{pattern!r} matches the empty string, and therefore everywhere; make it more "
                    "specific"
                )
        return patterns


class DiagnosticsSection(ConfigSection):
    """Diagnostics that warn once, with advice, when training shows signs of failure."""

    action: Literal["stop", "warn", "none"] = "warn"
    """`stop` writes a checkpoint and ends the run; `warn` prints a warning once and continues."""
    window: PositiveInt = 10
    """Number of steps over which a metric is averaged."""
    zero_advantage: float = Field(default=0.9, ge=0, le=1)
    """Maximum fraction of trajectories with zero advantage."""
    entropy_left: float = Field(default=0.1, ge=0, le=1)
    """Minimum entropy relative to the first window."""
    heldout_drop: PositiveFloat = 0.1
    """Maximum drop of the held-out reward below its best value while the training reward rises."""
    length_growth: PositiveFloat = 2.0
    """Maximum growth of trajectory length relative to the first window without a gain in reward."""
    reward_gain: float = Field(default=0.02, ge=0)
    """Minimum increase that counts as a gain in reward."""
    other_task_likeness: float = Field(default=0.8, ge=0, le=1)
    """Maximum similarity of trajectories of different tasks without a gain in reward."""
    component_left: float = Field(default=0.5, ge=0, le=1)
    """Minimum of a reward component relative to its first window while the reward rises; 0 disables
    the check."""


class RunConfig(ConfigSection):
    """Complete config of a run."""

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
    """Durable record of the run; null records nothing, and a killed run resumes from its last
    checkpoint."""
    metrics: MetricsSection = MetricsSection()
    diagnostics: DiagnosticsSection = DiagnosticsSection()
    view: ViewSection = ViewSection()

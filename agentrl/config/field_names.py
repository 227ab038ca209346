"""Keys of other frameworks and what to write instead, for hints in errors alone.

The names are those of TRL's GRPOConfig, verl's trainer, prime-rl and vLLM. A test loads a config
with every hint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class FieldHint:
    """Overrides that say what a key of another framework does."""

    overrides: tuple[str, ...]
    note: str = ""
    """Difference between the two, such as another unit."""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{' '.join(self.overrides)}{note}"


def _write(*overrides: str, note: str = "") -> FieldHint:
    return FieldHint(overrides, note)


_PATH = _write("policy.path=Qwen/Qwen3-0.6B", "policy.make=null", "warmstart=null")
_DATA = _write("env.id=dataset:train.parquet", "env.kwargs={}")
_NAME = _write("run.name=first")
_STEPS = _write("run.steps=100")
_EPOCHS = _write("run.steps=100", note="steps of the optimiser, not passes over the tasks")
_SAVE = _write("run.checkpoint_every=10", note="in steps")
_KEEP = _write("run.keep_checkpoints=2")
_TEST = _write("evaluate.every=10", note="in steps")
_WANDB = _write("metrics.wandb.project=agentrl")
_TASKS = _write(
    "rollout.tasks_per_step=16", note="tasks, each with rollout.group_size trajectories"
)
_GROUP = _write("rollout.group_size=8")
_TURNS = _write("rollout.max_turns=8")
_AGE = _write("rollout.mode=async", "rollout.max_staleness=1")
_TURN_TOKENS = _write("sampling.max_turn_tokens=256", note="per turn")
_CONTEXT = _write("engine.context_tokens=4096", note="prompt, tool results and all turns together")
_VLLM = _write("engine.kind=vllm")
_MEMORY = _write("engine.kind=vllm", "engine.vllm.memory_fraction=0.45")
_TENSOR = _write("engine.kind=vllm", "engine.vllm.options={tensor_parallel_size: 2}")
_RATE = _write("learn.optimizer.learning_rate=1e-6")
_WARMUP = _write("learn.optimizer.warmup_steps=10", note="in steps")
_DECAY = _write("learn.optimizer.decay=cosine")
_BETAS = _write("learn.optimizer.betas=[0.9, 0.999]")
_NORM = _write("learn.optimizer.max_grad_norm=1.0")
_KL = _write("learn.kl.coefficient=0.001")
_ENTROPY = _write("learn.entropy_bonus=0.001")
_CLIP = _write("learn.loss.clip_low=0.2", "learn.loss.clip_high=0.2")
_LOW = _write("learn.loss.clip_low=0.2")
_HIGH = _write("learn.loss.clip_high=0.28")
_DUAL = _write("learn.loss.dual_clip=3.0")
_STD = _write("learn.advantage.normalise_std=false")
_MEAN = _write("learn.aggregation=token-mean")
_TIS = _write("learn.correction={name: tis, cap: 2.0}")
_EPOCH = _write("learn.epochs=1", note="passes over each batch")
_MINI = _write("learn.minibatches=2", note="the number of minibatches per batch, not their size")
_MICRO = _write(
    "learn.micro_batch_tokens=8192", note="tokens per pass; gradients add up over passes"
)
_PARALLEL = _write("learn.devices.count=2", "learn.devices.context_parallel=2")
_DEVICES = _write("learn.devices.count=8")
_FILTER = _write("curation.filter.name=dapo")

FIELD_HINTS: Mapping[str, FieldHint] = {
    # The model and its run
    "model": _PATH,
    "model.name": _PATH,
    "model.path": _PATH,
    "model_name": _PATH,
    "model_name_or_path": _PATH,
    "model_path": _PATH,
    "output_dir": _write("run.folder=runs"),
    "default_local_dir": _write("run.folder=runs"),
    "run_name": _NAME,
    "experiment_name": _NAME,
    "max_steps": _STEPS,
    "total_steps": _STEPS,
    "total_training_steps": _STEPS,
    "num_train_epochs": _EPOCHS,
    "total_epochs": _EPOCHS,
    "save_steps": _SAVE,
    "save_freq": _SAVE,
    "ckpt.interval": _SAVE,
    "save_total_limit": _KEEP,
    "max_actor_ckpt_to_keep": _KEEP,
    "report_to": _WANDB,
    "logger": _WANDB,
    "project_name": _WANDB,
    "wandb.project": _WANDB,
    # Tasks
    "dataset_name": _DATA,
    "train_files": _DATA,
    "eval_steps": _TEST,
    "test_freq": _TEST,
    "eval.interval": _TEST,
    "val_batch_size": _write("evaluate.tasks=200"),
    "num_examples": _write("evaluate.tasks=200"),
    "num_generations_eval": _write("evaluate.samples_per_task=4"),
    "val_kwargs.n": _write("evaluate.samples_per_task=4"),
    "val_kwargs.temperature": _write("evaluate.temperature=0.6"),
    # Rollouts
    "batch_size": _TASKS,
    "train_batch_size": _TASKS,
    "rollout_batch_size": _TASKS,
    "generation_batch_size": _TASKS,
    "per_device_train_batch_size": _TASKS,
    "prompts_per_step": _TASKS,
    "num_generations": _GROUP,
    "rollout.n": _GROUP,
    "n_samples_per_prompt": _GROUP,
    "rollouts_per_example": _GROUP,
    "rollout.name": _VLLM,
    "max_tool_calling_iterations": _TURNS,
    "max_assistant_turns": _TURNS,
    "max_user_turns": _TURNS,
    "max_staleness": _AGE,
    "max_async_level": _AGE,
    "max_off_policy_steps": _AGE,
    "oversampling_factor": _write("rollout.mode=partial", "rollout.over_provision=1.5"),
    "temperature": _write("sampling.temperature=1.0"),
    "top_p": _write("sampling.top_p=1.0"),
    "top_k": _write("sampling.top_k=0", note="0 keeps all tokens"),
    "max_completion_length": _TURN_TOKENS,
    "max_completion_tokens": _TURN_TOKENS,
    "max_response_length": _TURN_TOKENS,
    "response_length": _TURN_TOKENS,
    "max_new_tokens": _TURN_TOKENS,
    "max_tokens": _TURN_TOKENS,
    "max_prompt_length": _CONTEXT,
    "max_model_len": _CONTEXT,
    "vllm_max_model_length": _CONTEXT,
    "max_seq_len": _CONTEXT,
    "seq_len": _CONTEXT,
    "max_num_seqs": _write("engine.slots=64"),
    "use_vllm": _VLLM,
    "gpu_memory_utilization": _MEMORY,
    "vllm_gpu_memory_utilization": _MEMORY,
    "tensor_model_parallel_size": _TENSOR,
    "vllm_tensor_parallel_size": _TENSOR,
    "enforce_eager": _write("engine.kind=vllm", "engine.vllm.eager=true"),
    "filter_groups": _FILTER,
    "online_difficulty_filtering": _FILTER,
    # Learning
    "lr": _RATE,
    "learning_rate": _RATE,
    "warmup_steps": _WARMUP,
    "warmup_ratio": _WARMUP,
    "lr_warmup_steps": _WARMUP,
    "lr_warmup_steps_ratio": _WARMUP,
    "lr_scheduler_type": _DECAY,
    "warmup_style": _DECAY,
    "adam_beta1": _BETAS,
    "adam_beta2": _BETAS,
    "weight_decay": _write("learn.optimizer.weight_decay=0.01"),
    "max_grad_norm": _NORM,
    "max_norm": _NORM,
    "grad_clip": _NORM,
    "beta": _KL,
    "kl_beta": _KL,
    "kl_coef": _KL,
    "kl_loss_coef": _KL,
    "use_kl_loss": _KL,
    "kl_loss_type": _write("learn.kl.estimator=k3"),
    "entropy_coeff": _ENTROPY,
    "entropy_coef": _ENTROPY,
    "clip_ratio": _CLIP,
    "cliprange": _CLIP,
    "epsilon": _CLIP,
    "clip_ratio_low": _LOW,
    "epsilon_low": _LOW,
    "clip_ratio_high": _HIGH,
    "epsilon_high": _HIGH,
    "clip_ratio_c": _DUAL,
    "delta": _DUAL,
    "adv_estimator": _write("learn.advantage.name=grpo"),
    "scale_rewards": _STD,
    "norm_adv_by_std_in_grpo": _STD,
    "loss_type": _write(
        "learn.loss.name=ppo_clip",
        "learn.aggregation=token-mean",
        note="grpo is seq-mean-token-mean, dapo token-mean, dr_grpo seq-mean-token-sum-norm",
    ),
    "loss_agg_mode": _MEAN,
    "importance_sampling_level": _write("learn.loss.name=gspo", note="the sequence level"),
    "vllm_importance_sampling_correction": _TIS,
    "vllm_importance_sampling_cap": _TIS,
    "tis_imp_ratio_cap": _TIS,
    "mask_truncated_completions": _write("learn.selection=[{name: overlong}]"),
    "overlong_buffer": _write(
        "learn.reward_shaping=[{name: overlong, limit_tokens: 4096, buffer_tokens: 1024}]"
    ),
    "num_iterations": _EPOCH,
    "ppo_epochs": _EPOCH,
    "num_mini_batches": _MINI,
    "ppo_mini_batch_size": _MINI,
    "steps_per_generation": _MINI,
    "gradient_accumulation_steps": _MICRO,
    "ppo_micro_batch_size_per_gpu": _MICRO,
    "ppo_max_token_len_per_gpu": _MICRO,
    "enable_gradient_checkpointing": _write("learn.gradient_checkpointing=true"),
    "bf16": _write("learn.precision=bfloat16"),
    "n_gpus_per_node": _DEVICES,
    "context_parallel_size": _PARALLEL,
    "cp_size": _PARALLEL,
    "ulysses_sequence_parallel_size": _PARALLEL,
    "lora_r": _write("learn.lora.rank=16"),
    "lora_rank": _write("learn.lora.rank=16"),
    "lora_alpha": _write("learn.lora.alpha=32"),
    "target_modules": _write("learn.lora.targets=all-linear"),
}
"""Hints by key of another framework, which is the end of a dotted name."""


def find_hint(path: str) -> FieldHint | None:
    """Return the hint for the longest end of a dotted name that is a key of another framework."""
    parts = path.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((FIELD_HINTS[end] for end in ends if end in FIELD_HINTS), None)


def find_hints(path: str, value: object) -> dict[str, FieldHint]:
    """Return the hints for a key and, where it holds a mapping, for the keys below it."""
    if not isinstance(value, dict) or not value:
        hint = find_hint(path)
        return {} if hint is None else {path: hint}
    return dict(_iter_hints(path, cast("dict[str, Any]", value)))


def write_table() -> str:
    """Return a table of the keys of other frameworks by what to write, for the documentation."""
    names_by_hint: dict[FieldHint, list[str]] = {}
    for name, hint in FIELD_HINTS.items():
        names_by_hint.setdefault(hint, []).append(f"`{name}`")
    rows = (
        f"| {', '.join(names)} | {' '.join(f'`{one}`' for one in hint.overrides)} | {hint.note} |"
        for hint, names in names_by_hint.items()
    )
    return "\n".join(["| their key | ours, for example | note |", "| --- | --- | --- |", *rows, ""])


def _iter_hints(path: str, section: Mapping[str, Any]) -> Iterator[tuple[str, FieldHint]]:
    for name, value in section.items():
        yield from find_hints(f"{path}.{name}", value).items()

"""How right `agentrl plan` is on this machine's GPU: training steps beside their planned memory and
time, of published shapes with random weights.

- Memory: the most that torch's tensors take in a step whose moments are there, beside the planned
  peak.
- Time: the fastest of some steps, with the optimiser, beside the roofline of their kernels on the
  device of that name in `agentrl/plan/machine.py` (its data sheet, nothing measured here).

A rollout is not part of it. The GPU is one that `agentrl plan --machine` knows; others are refused.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.sample import TrainingGroup, TrainingSample, spans_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.plan.machine import DeviceSpec, find_machine
from agentrl.plan.model_shape import shape_at
from agentrl.plan.training import TrainingCost, optimizer_s, pass_s, trace_training
from benchmarks.harness import Benchmark
from benchmarks.plan import count_places, state

GIB = 2**30
STEPS = 2
"""Steps that are measured; one more comes before."""
CHECKPOINTING: dict[str, Any] = {"gradient_checkpointing": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetting:
    """A published shape, a way to train it, and a batch of groups of one prompt each."""

    shape: str
    learn: dict[str, Any] = field(default_factory=dict[str, Any])
    groups: int = 2
    group_size: int = 8
    prompt: int = 1024
    sampled: int = 1024
    micro_batch: int = 8192

    @property
    def name(self) -> str:
        """Return the name of its rows."""
        parts = [self.shape, str(self.learn["layout"])]
        parts += [name for name in ("lora", "gradient_checkpointing") if self.learn.get(name)]
        return ", ".join([*parts, f"{self.groups}x{self.group_size}x{self.prompt + self.sampled}"])

    @property
    def section(self) -> LearnSection:
        """Return its config section."""
        return LearnSection.model_validate(
            {
                "precision": "bfloat16",
                "micro_batch_tokens": self.micro_batch,
                "gap_alarm": {"action": "none"},
                **self.learn,
            }
        )

    def build_batch(self) -> TrainingBatch:
        """Return random tokens, as if a policy had sampled them."""
        random = np.random.default_rng(0)
        groups: list[TrainingGroup] = []
        for number in range(self.groups):
            prompt = random.integers(2, 30_000, self.prompt)
            samples = [
                self._build_sample(prompt, random, number, n) for n in range(self.group_size)
            ]
            groups.append(TrainingGroup(f"t{number}", tuple(samples)))
        return TrainingBatch(
            groups=tuple(groups),
            owners=tuple(range(self.groups)),
            trees=self.groups,
            trajectories=self.groups * self.group_size,
        )

    def _build_sample(
        self, prompt: Any, random: np.random.Generator, group: int, number: int
    ) -> TrainingSample:
        token_ids = np.concatenate([prompt, random.integers(2, 30_000, self.sampled)])
        mask = np.arange(len(token_ids)) >= self.prompt
        return TrainingSample(
            task_id=f"t{group}",
            sample=number,
            reward=float(number % 2),
            token_ids=token_ids,
            mask=mask,
            behaviour=np.where(mask, -10.0, 0.0),
            spans=spans_of(mask, nodes=np.where(mask, number + 1, 0)),
        )


SETTINGS = (
    GpuSetting(shape="Qwen3-0.6B", learn={"layout": "packed"}),
    GpuSetting(shape="Qwen3-0.6B", learn={"layout": "tree"}),
    GpuSetting(shape="Qwen3-0.6B", learn={"layout": "padded", **CHECKPOINTING}),
    GpuSetting(
        shape="Qwen3-0.6B",
        learn={"layout": "packed", **CHECKPOINTING},
        groups=1,
        group_size=2,
        prompt=1024,
        sampled=15_360,
        micro_batch=16_384,
    ),
    GpuSetting(shape="Qwen3-1.7B", learn={"layout": "packed", **CHECKPOINTING}),
    GpuSetting(
        shape="Qwen3-4B",
        learn={"layout": "packed", "lora": {"rank": 16}, **CHECKPOINTING},
        groups=1,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """The fastest step of a setting, and the most bytes that any took."""

    first_s: float
    step_s: float
    peak_bytes: int


def list_samples(batch: TrainingBatch) -> list[TrainingSample]:
    """Return the samples of a batch."""
    return [sample for group in batch.groups for sample in group.samples]


def make_model(setting: GpuSetting) -> PreTrainedModel:
    """Return the model on the GPU, with random weights."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return shape_at(setting.shape).make().eval()


def measure_step(setting: GpuSetting) -> MeasuredStep:
    """Return what steps of a setting take on the GPU."""
    base_bytes = torch.cuda.memory_allocated()
    batch = setting.build_batch()
    trainer = PolicyTrainer(make_model(setting), setting.section, seed=0)
    seconds: list[float] = []
    for number in range(1 + STEPS):
        torch.cuda.synchronize()
        if number == 1:
            torch.cuda.reset_peak_memory_stats()
        start_s = time.perf_counter()
        trainer.learn(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start_s)
    peak_bytes = torch.cuda.max_memory_allocated() - base_bytes
    return MeasuredStep(first_s=seconds[0], step_s=min(seconds[1:]), peak_bytes=peak_bytes)


def predict(setting: GpuSetting) -> tuple[TrainingCost, float]:
    """Return the planned cost of the largest micro-batch, and how many of it the step is."""
    samples = list_samples(setting.build_batch())
    layout = LAYOUTS[setting.section.layout](setting.section.micro_batch_tokens)
    plan: Sequence[Sequence[int]] = layout.plan(samples)
    passes = [[samples[index] for index in indices] for indices in plan]
    count = partial(count_places, layout)
    cost = trace_training(shape_at(setting.shape).make, setting.section, max(passes, key=count))
    return cost, sum(map(count, passes)) / cost.places


def find_device() -> DeviceSpec:
    """Return what a plan knows of this GPU. Raises `ConfigError` where it knows none."""
    name = torch.cuda.get_device_name().replace("NVIDIA", "").split()
    return find_machine(f"1x{name[0]}").device


def compare(bench: Benchmark, setting: GpuSetting, device: DeviceSpec) -> None:
    """State memory and time of a setting, planned and measured."""
    cost, passes = predict(setting)
    planned_s = passes * pass_s(cost, device) + optimizer_s(cost, device)
    seen = measure_step(setting)
    gc.collect()
    torch.cuda.empty_cache()
    tokens = sum(len(sample.token_ids) for sample in list_samples(setting.build_batch()))
    state(bench, f"peak, {setting.name}", cost.peak_bytes / GIB, seen.peak_bytes / GIB, "GiB")
    state(bench, f"step, {setting.name}", planned_s, seen.step_s, "s")
    bench.row(f"first step, {setting.name}", seen.first_s, unit="s")
    bench.row(f"speed, {setting.name}", tokens / seen.step_s, unit="tokens/s")
    mfu = passes * cost.flops / seen.step_s / device.bf16_flops_per_s
    bench.row(f"operations, {setting.name}", mfu, unit="of the data sheet's")


def main() -> None:
    """Run it."""
    bench = Benchmark.from_command_line("plan_gpu", __doc__)
    if not torch.cuda.is_available():
        raise SystemExit("plan_gpu measures a GPU, and torch finds none; plan.py measures a CPU")
    device = find_device()
    for setting in SETTINGS[:1] if bench.quick else SETTINGS:
        compare(bench, setting, device)
    bench.finish()


if __name__ == "__main__":
    main()

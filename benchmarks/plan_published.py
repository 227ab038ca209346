"""Planned training speeds beside published ones: nothing is run, so any machine will do.

The figures are of prime-rl's `benchmarks/baselines/` (January and February 2026): steps of
two micro-batches of one sequence per device, layers recomputed, FlashAttention 3, bfloat16 over
float32. Its throughput counts the time from step to step, in which whole weights are written to
files for the engines; `step_time` begins after that, so it is what a plan of training is beside.
What lies between is stated as a rate of the weights. A plan is a roofline of the kernels that
transformers calls one by one, so it is the most that agentrl's trainer can reach there, and no
forecast of another program.
"""

from dataclasses import dataclass

import numpy as np
import torch

from agentrl.config.learn import LearnSection
from agentrl.config.run import RunConfig
from agentrl.learn.sequence_layout import MaskedTokens
from agentrl.plan.machine import find_machine
from agentrl.plan.model_shape import shape_at
from agentrl.plan.run_plan import training_time
from agentrl.plan.training import optimizer_s, trace_training
from benchmarks.harness import Benchmark

MICRO_BATCHES = 2


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A training step that somebody has measured."""

    model: str
    machine: str
    length: int
    step_s: float
    tokens_per_s: float
    """Of all devices, from step to step."""
    gib: float
    kind: str = ""
    """`LoRA`, or `SFT`: a step of supervised training, in which no weights are sent."""

    @property
    def name(self) -> str:
        """Return the name of its rows."""
        kind = f" {self.kind}" if self.kind else ""
        return f"{self.model}{kind}, {self.machine}, {self.length // 1024}k"

    def between_s(self, devices: int) -> float:
        """Return the seconds between the end of a step and the begin of the next."""
        return MICRO_BATCHES * self.length * devices / self.tokens_per_s - self.step_s


PUBLISHED = (
    PublishedStep("Qwen3-0.6B", "1xH100-80GB", 16384, 1.2819, 25486, 52.8, kind="SFT"),
    PublishedStep("Qwen3-0.6B", "1xH100-80GB", 16384, 1.9923, 11896, 12.5),
    PublishedStep("Qwen3-0.6B", "1xH100-80GB", 65536, 12.1756, 10147, 19.6),
    PublishedStep("Qwen3-4B", "8xH100-80GB", 16384, 4.6877, 26026, 17.1),
    PublishedStep("Qwen3-4B", "8xH100-80GB", 65536, 30.2863, 28966, 36.1),
    PublishedStep("Qwen3-4B", "8xH100-80GB", 16384, 5.4572, 48002, 11.1, kind="LoRA"),
    PublishedStep("Qwen3-4B", "8xH100-80GB", 65536, 32.6404, 32138, 31.7, kind="LoRA"),
    PublishedStep("Qwen3-30B-A3B", "8xH100-80GB", 16384, 8.1739, 6113, 74.6),
    PublishedStep("Qwen3-30B-A3B", "8xH200-141GB", 65536, 42.8913, 12748, 105.4),
)


def state(bench: Benchmark, published: PublishedStep) -> None:
    """State the planned and the published figures of one run."""
    machine = find_machine(published.machine)
    learn = LearnSection.model_validate(
        {
            "layout": "padded",
            "micro_batch_tokens": published.length,
            "precision": "bfloat16",
            "gradient_checkpointing": True,
            "devices": {"count": machine.count},
            "lora": {"rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
            if published.kind == "LoRA"
            else None,
        }
    )
    config = RunConfig.model_validate(
        {"env": {"id": "x"}, "policy": {"path": "x", "dtype": "bfloat16"}, "learn": learn}
    )
    tokens = np.arange(published.length)
    sequence = MaskedTokens(tokens % 1000, tokens > 0)
    shape = shape_at(published.model)
    cost = trace_training(shape.make, learn, [sequence], dtype=torch.bfloat16, ranks=machine.count)
    tokens = float(MICRO_BATCHES * published.length * machine.count)
    time = training_time(config, shape, cost, machine, tokens=tokens)
    name, between_s = published.name, published.between_s(machine.count)
    reached = tokens / machine.count / published.step_s
    bench.row(f"{name}, planned", time.tokens_per_s, unit="tokens/s")
    bench.row(f"{name}, published", reached, unit="tokens/s")
    bench.row(f"{name}, ratio", time.tokens_per_s / reached, unit="of published")
    bench.row(f"{name}, planned peak", cost.peak_bytes / 2**30, unit="GiB")
    bench.row(f"{name}, published peak", published.gib, unit="GiB")
    bench.row(f"{name}, between two steps", between_s, unit="s")
    if not published.kind:
        rate = 2 * shape.parameters / between_s / 1e9
        bench.row(f"{name}, weights written between them", rate, unit="GB/s")
    calls = sum(cost.forward.values()) + sum(cost.backward.values())
    bench.console.print(
        f"{name}: {time.tokens_per_s:,.0f} tokens/s planned, {reached:,.0f} published; a pass "
        f"{time.pass_s:.3g} s, in it {calls} launches {calls * machine.device.call_s:.2g} s; "
        f"collectives {time.collect_s:.2g} s, optimiser {optimizer_s(cost, machine.device):.2g} s; "
        f"{cost.peak_bytes / 2**30:.1f} GiB planned, {published.gib} published",
        highlight=False,
    )


def state_all(bench: Benchmark) -> None:
    """State all of them; of a quick benchmark the first."""
    for published in PUBLISHED[:1] if bench.quick else PUBLISHED:
        state(bench, published)

"""Planned training speeds beside published ones: nothing is run, so any machine will do.

The figures are those of RL training steps in prime-rl's `benchmarks/baselines/` (January 2026): one
sequence per device, layers recomputed, FlashAttention 3, bfloat16 over float32. A plan is a
roofline of the kernels that transformers calls one by one, so it is the most that agentrl's trainer
can reach there, and no forecast of another program.
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
from agentrl.plan.training import trace_training
from benchmarks.harness import Benchmark


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """Tokens per second and device that somebody has measured."""

    model: str
    machine: str
    length: int
    tokens_per_s: float
    gib: float
    lora: bool = False

    @property
    def name(self) -> str:
        """Return the name of its rows."""
        lora = " LoRA" if self.lora else ""
        return f"{self.model}{lora}, {self.machine}, {self.length // 1024}k"


PUBLISHED = (
    PublishedSpeed("Qwen3-0.6B", "1xH100-80GB", 16384, 11896, 12.5),
    PublishedSpeed("Qwen3-0.6B", "1xH100-80GB", 65536, 10147, 19.6),
    PublishedSpeed("Qwen3-4B", "8xH100-80GB", 16384, 3253, 17.1),
    PublishedSpeed("Qwen3-4B", "8xH100-80GB", 65536, 3621, 36.1),
    PublishedSpeed("Qwen3-4B", "8xH100-80GB", 16384, 6090, 10.3, lora=True),
    PublishedSpeed("Qwen3-4B", "8xH100-80GB", 65536, 4100, 28.8, lora=True),
    PublishedSpeed("Qwen3-30B-A3B", "8xH100-80GB", 16384, 764, 74.6),
    PublishedSpeed("Qwen3-30B-A3B", "8xH200-141GB", 65536, 1594, 105.0),
)


def state(bench: Benchmark, published: PublishedSpeed) -> None:
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
            if published.lora
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
    time = training_time(config, cost, machine, tokens=float(published.length * machine.count))
    name = published.name
    bench.row(f"{name}, planned", time.tokens_per_s, unit="tokens/s")
    bench.row(f"{name}, published", published.tokens_per_s, unit="tokens/s")
    bench.row(f"{name}, ratio", time.tokens_per_s / published.tokens_per_s, unit="of published")
    bench.row(f"{name}, planned peak", cost.peak_bytes / 2**30, unit="GiB")
    bench.row(f"{name}, published peak", published.gib, unit="GiB")
    bench.console.print(
        f"{name}: {time.tokens_per_s:,.0f} tokens/s planned, {published.tokens_per_s:,.0f} "
        f"published; compute {time.pass_s:.3g} s, collectives {time.collect_s:.3g} s; "
        f"{cost.peak_bytes / 2**30:.1f} GiB planned, {published.gib} published",
        highlight=False,
    )


def state_all(bench: Benchmark) -> None:
    """State all of them; of a quick benchmark the first."""
    for published in PUBLISHED[:1] if bench.quick else PUBLISHED:
        state(bench, published)

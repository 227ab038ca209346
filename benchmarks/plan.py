"""How right `agentrl plan` is about memory and time: its figures beside measured ones, on this CPU.

- Memory: peak resident bytes that the trainer adds to a process of its own in its second step, when
  moments are there, beside the traced peak. Small models of different shapes; padded rows, packed
  ones and prefix trees; LoRA; checkpointing; two ranks. The allocator gives freed memory back at
  once (`MALLOC_*`): what it would keep is no property of the model.
- Published speeds: planned training beside what others measured on H100 and H200
  (plan_published.py).
- Time: seconds of that step beside the roofline of its kernels, with this machine's measured roofs.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl.config.learn import LearnSection
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.sample import TrainingSample
from agentrl.learn.sequence_layout import SequenceLayout
from agentrl.learn.sharded.balance import split
from agentrl.plan.machine import DeviceSpec, measure_device
from agentrl.plan.training import TrainingCost, optimizer_s, pass_s, trace_training
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from benchmarks import plan_published
from benchmarks.harness import Benchmark

MEBI = 2**20
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
MEMORY_GOAL, TIME_GOAL = 0.10, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, a way to train it, and a batch."""

    name: str
    hidden: int = 384
    layers: int = 4
    vocabulary: int = 8192
    learn: dict[str, Any]
    ranks: int = 1
    groups: int = 2
    group_size: int = 4
    prompt: int = 128
    sampled: int = 256

    @property
    def section(self) -> LearnSection:
        """Return its config section."""
        return LearnSection.model_validate(
            {"micro_batch_tokens": 1536, "gap_alarm": {"action": "none"}, **self.learn}
        )

    def model(self) -> PreTrainedModel:
        """Return the model, with random weights."""
        config = Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            num_key_value_heads=max(1, self.hidden // 128),
            head_dim=64,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
        return Qwen3ForCausalLM(config)

    def trees(self, version: int = 0) -> list[Tree]:
        """Return a batch: groups of trajectories of one prompt."""
        random = np.random.default_rng(version)

        def draw(count: int) -> tuple[int, ...]:
            return tuple(random.integers(2, self.vocabulary, count).tolist())

        trees: list[Tree] = []
        for group in range(self.groups):
            tree = Tree(Task(prompt="q", id=f"t{group}"))
            prompt = tree.add(
                Node(parent=None, source="prompt", token_ids=draw(self.prompt), turn=0)
            )
            for sample in range(self.group_size):
                node = tree.add(
                    Node(
                        parent=prompt,
                        source="sampled",
                        token_ids=draw(self.sampled),
                        turn=0,
                        logprobs=(-9.0,) * self.sampled,
                        versions=(version,) * self.sampled,
                    )
                )
                tree.end(Leaf(node=node, outcome=Finished(float(sample)), sample=sample))
            trees.append(tree)
        return trees

    def samples(self) -> list[TrainingSample]:
        """Return the samples of a batch."""
        batch = TrainingBatch.from_trees(self.trees())
        return [sample for group in batch.groups for sample in group.samples]

    def passes(self) -> list[list[TrainingSample]]:
        """Return the micro-batches of the busiest rank."""
        samples, layout = (
            self.samples(),
            LAYOUTS[self.section.layout](self.section.micro_batch_tokens),
        )
        if self.ranks == 1:
            plan: Sequence[Sequence[int]] = layout.plan(samples)
        else:
            plan = split(layout, samples, ranks=self.ranks).passes[0]
        return [[samples[i] for i in indices] for indices in plan]


CHECKPOINTING: dict[str, Any] = {"gradient_checkpointing": True}
LORA: dict[str, Any] = {"lora": {"rank": 16}}
SETTINGS = (
    Setting(name="padded", learn={"layout": "padded"}),
    Setting(name="packed, checkpointing", learn={"layout": "packed", **CHECKPOINTING}),
    Setting(name="tree", learn={"layout": "tree"}),
    Setting(name="tree, wide", hidden=768, layers=2, vocabulary=4096, learn={"layout": "tree"}),
    Setting(
        name="padded, large head",
        hidden=256,
        layers=2,
        vocabulary=49152,
        learn={"layout": "padded"},
    ),
    Setting(name="padded, LoRA", learn={"layout": "padded", **LORA}),
    Setting(name="tree, LoRA, checkpointing", learn={"layout": "tree", **LORA, **CHECKPOINTING}),
    Setting(name="padded, two ranks", ranks=2, learn={"layout": "padded"}, groups=4),
    Setting(
        name="tree, checkpointing, two ranks",
        ranks=2,
        learn={"layout": "tree", **CHECKPOINTING},
        groups=4,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements of one rank."""

    peak_bytes: int
    step_s: float
    """CPU seconds, of one thread."""
    device: DeviceSpec
    """Roofs, measured right after."""


def resident(key: str) -> int:
    """Return a figure of this process's memory, in bytes: VmRSS or VmHWM."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(key))
    return int(line.split()[1]) * 1024


def train_two_steps(setting: Setting, rank: int, port: int, pipe: Connection) -> None:
    """Train two steps as one rank, and send what the second took."""
    from agentrl.learn.ranks import ALONE
    from agentrl.learn.sharded.mesh import MeshRanks
    from agentrl.learn.trainer import PolicyTrainer

    torch.set_num_threads(1)
    ranks = ALONE
    if setting.ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=setting.ranks)
        control: Any = dist.new_group(backend="gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (setting.ranks,))
        ranks = MeshRanks(mesh, control)
    tiny = Setting(name="", hidden=64, layers=1, vocabulary=64, learn=setting.learn, sampled=8)
    # What code and libraries take once is no cost of the model.
    PolicyTrainer(tiny.model(), tiny.section, seed=0).step(tiny.trees())
    base = resident("VmRSS")
    trainer = PolicyTrainer(setting.model(), setting.section, seed=0, ranks=ranks)
    trainer.step(setting.trees())
    trees = setting.trees(1)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    start_s = time.process_time()
    trainer.step(trees)
    step_s = time.process_time() - start_s
    peak_bytes = resident("VmHWM") - base
    device = measure_device(clock=time.process_time)
    pipe.send(Observed(peak_bytes=peak_bytes, step_s=step_s, device=device))


def observe(setting: Setting, environ: Mapping[str, str]) -> Observed:
    """Return what a step of a setting takes, on its first rank, with these variables set."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = get_context("spawn")
    before = {name: os.environ.get(name) for name in environ}
    os.environ |= environ
    try:
        pairs = [context.Pipe(duplex=False) for _ in range(setting.ranks)]
        processes = [
            context.Process(target=train_two_steps, args=(setting, rank, port, pairs[rank][1]))
            for rank in range(setting.ranks)
        ]
        for process in processes:
            process.start()
        results: list[Observed] = []
        for (reader, writer), process in zip(pairs, processes, strict=True):
            writer.close()
            results.append(reader.recv())
            process.join()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return results[0]


def count_places(layout: SequenceLayout, samples: Sequence[TrainingSample]) -> int:
    """Return the places of these samples in one micro-batch."""
    return layout.measure(samples).places(range(len(samples)))


def predict(setting: Setting) -> TrainingCost:
    """Return the planned cost of a setting."""
    layout = LAYOUTS[setting.section.layout](setting.section.micro_batch_tokens)
    largest = max(setting.passes(), key=partial(count_places, layout))
    return trace_training(setting.model, setting.section, largest, ranks=setting.ranks)


def step_s(setting: Setting, cost: TrainingCost, device: DeviceSpec) -> float:
    """Return the planned seconds of a step: its micro-batches, and the optimiser."""
    layout = LAYOUTS[setting.section.layout](setting.section.micro_batch_tokens)
    passes = sum(count_places(layout, each) for each in setting.passes()) / cost.places
    return passes * pass_s(cost, device) + optimizer_s(cost, device)


def compare(bench: Benchmark, setting: Setting) -> None:
    """State the memory and the time of a setting, planned and measured."""
    cost, peak_bytes = predict(setting), observe(setting, ALLOCATOR).peak_bytes
    state(bench, f"peak, {setting.name}", cost.peak_bytes / MEBI, peak_bytes / MEBI, "MiB")
    if setting.ranks == 1:
        seen = observe(setting, {})
        planned_s = step_s(setting, cost, seen.device)
        state(bench, f"step, {setting.name}", planned_s, seen.step_s, "CPU-s")


def state(bench: Benchmark, name: str, planned: float, measured: float, unit: str) -> None:
    """State a planned and a measured figure, and how far they are apart."""
    goal = MEMORY_GOAL if unit.endswith("iB") else TIME_GOAL
    bench.console.print(
        f"{name}: {planned:.4g} {unit} planned, {measured:.4g} measured", highlight=False
    )
    bench.row(f"{name}, planned", planned, unit=unit)
    bench.row(f"{name}, measured", measured, unit=unit)
    error = abs(planned / measured - 1)
    bench.row(f"{name}, error", error, unit="of measured", goal=goal, better="lower")


def main() -> None:
    """Run it."""
    bench = Benchmark.from_command_line("plan", __doc__)
    torch.set_num_threads(1)
    for setting in SETTINGS[:3] if bench.quick else SETTINGS:
        compare(bench, setting)
    plan_published.state_all(bench)
    bench.finish()


if __name__ == "__main__":
    main()

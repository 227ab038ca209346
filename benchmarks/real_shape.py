"""One whole step of a real model's shape in 16 GiB, beside the memory that `agentrl plan` predicts.

- `agentrl train`, one sync step on the CPU: rollouts by the local engine with the Python tool,
  training in float32, new weights in the engine, a checkpoint. The model is as large as Qwen3-0.6B
  (28 layers, 151,936 ids, tied embeddings), with random weights.
- Such a policy calls no tool by itself. After its first turn the environment gives the right call
  in its place (`Patch`), so each trajectory has a call, its answer, and a turn after it. The reward
  counts characters: a group whose rewards are all equal would train nothing.
- The tokenizer has as many ids as the model: merges of this environment's texts, and names that no
  text becomes.
- Peak: PSS of the whole process tree, twice a second, or the resident peak of its largest
  process where that is more. The same step of a model of a few MiB says what code, libraries and
  sandbox take; a plan does not count them.

A run that takes more than 16 GiB is ended, and so is one that leaves the machine less than 1.5 GiB.
No process may map more than 24 GiB for itself; files that are only mapped count there. `--quick`
takes the small model alone.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import Qwen3Config, Qwen3ForCausalLM

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.authoring.toolset import schemas_of
from agentrl.chat.tokenizer import conversation_text, train_tokenizer
from agentrl.config.load import load_config
from agentrl.env import Action, Info, Observation, Patch, Step
from agentrl.message import Message
from agentrl.plan.machine import MachineSpec, measure_device
from agentrl.plan.model_shape import PUBLISHED, shape_at
from agentrl.plan.run_plan import RunPlan, peak_beside_engines, plan_run
from agentrl.simulate.synthetic import synthetic
from agentrl.task import Split, Task
from agentrl_tools.python import Python
from benchmarks.harness import Benchmark
from benchmarks.sessions.memory import available_bytes, tree_pss_bytes

ROOT = Path(__file__).parents[1]
GIB = 2**30
LIMIT_BYTES = 16 * GIB
MAPPED_BYTES = 24 * GIB
LEFT_BYTES = 3 * GIB // 2
"""Memory that the machine must keep."""
DEADLINE_S = 3600.0
EVERY_S = 0.5

SHAPE = PUBLISHED["Qwen3-0.6B"]
SMALL_SHAPE: Mapping[str, Any] = {
    **SHAPE,
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
}
"""Few MiB, with the same kinds of layers."""

METRICS = {
    "rollout/tool_calls": "calls",
    "tokens/trained": "tokens",
    "engine_gap/mean_abs": "nats",
    "seconds/rollout": "s",
    "seconds/learn": "s",
}
"""Metrics of the step, and their units."""

CONFIG: Mapping[str, Any] = {
    "env": {"id": "benchmarks.real_shape:ProductEnv"},
    "engine": {"slots": 4, "context_tokens": 512},
    "sampling": {"max_turn_tokens": 8},
    "rollout": {"tasks_per_step": 1, "group_size": 4, "concurrency": 4, "max_turns": 3},
    "learn": {
        "layout": "packed",
        "micro_batch_tokens": 512,
        "head_chunk_tokens": 128,
        "gradient_checkpointing": True,
        "optimizer": {"learning_rate": 1.0e-6},
    },
    "evaluate": {"tasks": 1},
    "metrics": {"tensorboard": False},
}


class ProductEnv(ToolEnv):
    """Products by a Python tool, whose right call is put in the place of the first turn."""

    def __init__(self) -> None:
        super().__init__(tasks=products, reward=count_characters, tools=[Python], gold=solve)
        self._is_first = True

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._is_first = True
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        if not self._is_first:
            return await super().step(action)
        self._is_first = False
        task, _ = self._require_running()
        call = solve(task, self._messages)
        observation, reward, terminated, truncated, info = await super().step(call)
        return observation, reward, terminated, truncated, {**info, "patch": Patch(call)}


def products(split: Split, seed: int) -> Iterator[Task]:
    """Yield products of two numbers."""
    for a, b in agentrl.sample_pairs(split, seed):
        yield Task(prompt=f"What is {a} * {b}?", answer=str(a * b), data={"a": a, "b": b})


def solve(task: Task, seen: Sequence[Message]) -> Action:
    """Call the tool, then say what it answered."""
    if len(seen) == 1:
        return agentrl.call("python", code=f"print({task.data['a']} * {task.data['b']})")
    return agentrl.say(seen[-1].text.strip())


def count_characters(task: Task, messages: Sequence[Message]) -> float:
    """Return a reward that a policy of random weights gets various values of."""
    return len(messages[-1].text) % 17 / 16


def write_policy(folder: Path, shape: Mapping[str, Any]) -> None:
    """Write a model of a shape with random weights, and a tokenizer with as many ids."""
    texts = [
        conversation_text(
            [
                *task.messages,
                solve(task, task.messages).message,
                Message("tool", task.answer or ""),
                Message("assistant", task.answer or ""),
            ],
            schemas_of([Python]),
        )
        for _, task in zip(range(200), products("train", 0), strict=False)
    ]
    tokenizer = train_tokenizer(texts, vocab_size=1024, folder=folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = content["model"]["vocab"]
    size = int(shape["vocab_size"])
    vocabulary |= {f"<unused{index}>": index for index in range(len(tokenizer), size)}
    file.write_text(json.dumps(content), encoding="utf-8")
    fields = {name: value for name, value in shape.items() if name != "model_type"}
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(end, int)
    assert isinstance(pad, int)
    torch.manual_seed(0)
    config = Qwen3Config(
        **fields,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Measurements of one step."""

    peak_bytes: int
    seconds: float
    metrics: Mapping[str, Any]
    changed: int
    """Weights that the step changed."""


def plan_step(config_file: Path, folder: Path) -> RunPlan:
    """Return the plan of the run on a machine of 16 GiB."""
    config = load_config(config_file)
    device = replace(measure_device(), memory_bytes=LIMIT_BYTES)
    machine = MachineSpec(device=device, count=1, per_node=1)
    return plan_run(config, shape_at(str(folder)), machine, synthetic("agentic"))


def run_step(config_file: Path, run_folder: Path) -> StepRecord:
    """Run `agentrl train` in processes of its own. `RuntimeError` with its last words."""
    said = config_file.with_suffix(".log")
    command = [sys.executable, "-m", "agentrl", "train", str(config_file)]
    start_s = time.monotonic()
    peak_bytes = 0
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MAPPED_BYTES, MAPPED_BYTES))
        fault = ""
        while not has_ended(process):
            with suppress(PermissionError):  # of the sandbox, for others than root
                peak_bytes = max(peak_bytes, tree_pss_bytes())
            if available_bytes() < LEFT_BYTES or peak_bytes > LIMIT_BYTES:
                fault = f"ended at {peak_bytes / GIB:.1f} GiB: too little memory"
            elif time.monotonic() - start_s > DEADLINE_S:
                fault = f"not done after {DEADLINE_S:.0f} s"
            if fault:
                process.terminate()
                break
            time.sleep(EVERY_S)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start_s
    if fault or process.returncode:
        words = said.read_text(encoding="utf-8", errors="replace")[-4000:]
        raise RuntimeError(f"{fault or f'exit code {process.returncode}'}: {words}")
    (line,) = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return StepRecord(
        peak_bytes=max(peak_bytes, usage.ru_maxrss * 1024),
        seconds=seconds,
        metrics=json.loads(line),
        changed=count_changes(run_folder),
    )


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, which stays to be waited for."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def count_changes(run_folder: Path) -> int:
    """Return the number of tensors that differ between the first policy and the checkpoint."""
    before = run_folder / "policy" / "model.safetensors"
    after = run_folder / "checkpoints" / "step-000001" / "model.safetensors"
    with safe_open(before, framework="pt") as old, safe_open(after, framework="pt") as new:
        names = [*new.keys()]
        return sum(not torch.equal(old.get_tensor(n), new.get_tensor(n)) for n in names)


def compare(
    bench: Benchmark, name: str, shape: Mapping[str, Any], base_bytes: int | None, scratch: Path
) -> int:
    """State the peak of a step, planned and measured; return what was measured beyond the plan."""
    folder, config_file = scratch / f"{name}-policy", scratch / f"{name}.yaml"
    folder.mkdir()
    # In a process of its own, which gives its memory back.
    code = f"from benchmarks.real_shape import *; write_policy(Path({str(folder)!r}), "
    code += "SHAPE)" if shape is SHAPE else "SMALL_SHAPE)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    run = {"name": name, "folder": str(scratch), "steps": 1}
    values = {"run": run, "policy": {"path": str(folder)}, **CONFIG}
    config_file.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    plan = plan_step(config_file, folder)
    seen = run_step(config_file, scratch / name)
    planned = peak_beside_engines(plan.training, plan.rollout)
    for part, size in (
        ("weights, gradients, optimiser", plan.training.held_bytes),
        ("activations and head", plan.training.activation_bytes),
        ("engine: weights", plan.rollout.weight_bytes),
        ("engine: KV cache", plan.rollout.cache_bytes),
        ("engine: new weights", plan.rollout.loading_bytes),
        ("all", planned),
    ):
        bench.row(f"{name}, planned, {part}", size / GIB, unit="GiB")
    goal = LIMIT_BYTES / GIB
    bench.row(f"{name}, peak", seen.peak_bytes / GIB, unit="GiB", goal=goal, better="lower")
    if base_bytes is not None:
        expected = planned + base_bytes
        bench.row(f"{name}, planned, with code and sandbox", expected / GIB, unit="GiB")
        error = abs(expected / seen.peak_bytes - 1)
        bench.row(f"{name}, error", error, unit="of measured", goal=0.10, better="lower")
    bench.row(f"{name}, tensors changed", seen.changed, unit="tensors", goal=1)
    for metric, unit in METRICS.items():
        bench.row(f"{name}, {metric}", seen.metrics[metric], unit=unit)
    bench.row(f"{name}, whole run", seen.seconds, unit="s")
    return seen.peak_bytes - planned


def main() -> None:
    """Run it."""
    bench = Benchmark.from_command_line("real_shape", __doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="agentrl-real-shape-") as scratch:
        base_bytes = compare(bench, "small", SMALL_SHAPE, None, Path(scratch))
        if not bench.quick:
            compare(bench, "qwen3-0.6b", SHAPE, base_bytes, Path(scratch))
    bench.finish()


if __name__ == "__main__":
    main()

"""A run of a program with two conversations by turns, killed with `kill -9` and resumed.

Its end is that of a run nobody killed, to the bit: contexts, noise and what the program was told.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.load import load_config
from agentrl.events.kinds import MISMATCH, RERUN
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import sample_of
from agentrl.run.train import warmstart
from agentrl.store.reader import StoreReader
from agentrl.task import Task
from agentrl_envs.blackbox import ProgramEndpoint
from tests.support.agent_programs import with_two_conversations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 3
KILLS = 2
START_S = 300.0
TAUGHT = """
run: {{name: taught, folder: {folder}}}
env: {{id: tests.support.tiny_run:Doubles}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 20, batch_size: 8, demonstrations: 20}}
"""
CONFIG = """
run: {{name: whole, folder: {folder}, steps: 3, checkpoint_every: 1, seed: 3, threads: 1}}
env:
  id: blackbox/Program-v0
  kwargs:
    tasks: "tests.support.doubles:doubles"
    score: "tests.run.test_blackbox_kill:how_long"
    agent: "tests.run.test_blackbox_kill:agent"
policy: {{path: {policy}}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 16}}
rollout: {{mode: sync, tasks_per_step: 2, group_size: 3, concurrency: 4, max_turns: 6}}
evaluate: {{tasks: 1}}
store: {{keep: all}}
metrics: {{tensorboard: false}}
"""


def how_long(task: Task, result: str) -> float:
    """Pay by length, so that a policy that has learnt nothing earns something."""
    return len(result) % 8 / 7


async def agent(task: Task, endpoint: ProgramEndpoint) -> str:
    """Work on a task in two conversations."""
    url = endpoint.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key=endpoint.key) as client:
        return await with_two_conversations(client, endpoint.model, task.messages[-1].text)


def begin(config: Path, root: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    places = ":".join(str(root / place) for place in (".", "envs", "tools", "sandbox"))
    with (config.parent / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "agentrl", "train", str(config), *arguments],
            env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )


@pytest.mark.nightly
def test_a_killed_run_of_interleaved_conversations_ends_as_if_nothing_had_been(
    tmp_path: Path, root: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TAUGHT.format(folder=tmp_path))
    policy = warmstart(load_config(config))
    config.write_text(CONFIG.format(folder=tmp_path, policy=policy))
    assert begin(config, root).wait(START_S) == 0, (tmp_path / "log").read_text()[-3000:]
    folder = tmp_path / "killed"
    whole = recorded_bytes(tmp_path / "whole")
    for kill in range(KILLS):
        resume = ("--resume",) if kill else ()
        run = begin(config, root, "run.name=killed", *resume)
        until = whole * (kill + 1) // (KILLS + 1)
        ends = time.monotonic() + START_S
        while recorded_bytes(folder) < until and run.poll() is None and time.monotonic() < ends:
            time.sleep(0.002)
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    end = begin(config, root, "run.name=killed", "--resume").wait(START_S)
    assert end == 0, (tmp_path / "log").read_text()[-3000:]
    name = f"checkpoints/step-{STEPS:06d}/model.safetensors"
    one, other = load_file(tmp_path / "whole" / name), load_file(folder / name)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    with StoreReader(folder / "store") as reader:
        groups = [reader.group(group) for group in reader.groups("trained")]
        reasons = {t.reason for group in groups for t in group.rollouts.values() if t.reason}
    assert not reasons & {RERUN, MISMATCH}
    samples = [
        sample_of(group.tree, found.leaf)
        for group in groups
        for found in group.rollouts.values()
        if found.leaf is not None
    ]
    assert samples
    for sample in samples:
        assert sample is not None
        assert len(contexts(sample)) == 2, "two conversations, and each is one context"


def recorded_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("store/segments/*.segment"))

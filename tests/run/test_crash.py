"""A real run, killed with `kill -9` at 18 points and resumed after each.

A tiny model, the code environment, its Python tool in real bubblewrap sandboxes, all three modes.
The kills fall at seeded moments, right after the log has grown, and while a checkpoint is written;
the supervisor of the sandboxes is killed too, and the run goes on.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.events.kinds import MISMATCH, RERUN, RolloutAbandoned, TurnCompleted
from agentrl.store.reader import StoreReader
from agentrl.store.record import LogRecord
from agentrl.store.segment import HEAD_BYTES, scan
from benchmarks.seen import Seen, position_of
from tests.support import processes

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(1200)]

CONFIG = """
run: {{name: first, folder: {folder}, steps: 1, checkpoint_every: 2, seed: 3}}
env:
  id: code/Mix-v0
  task_limit: 8
  kwargs:
    families: {{chain_sum: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}}}}
    system: ""
    partial_credit: false
split_guard: {{allow: true}}
policy:
  make: {{hidden_size: 48, layers: 2, heads: 2, kv_heads: 2, head_dim: 24, intermediate_size: 96}}
warmstart:
  {{steps: 120, batch_size: 16, demonstrations: 60, learning_rate: 8.0e-3, warmup_steps: 10}}
engine: {{slots: 8, context_tokens: 192}}
sampling: {{max_turn_tokens: 40}}
rollout: {{tasks_per_step: 2, group_size: 3, concurrency: 6, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-4}}}}
evaluate: {{tasks: 2}}
store: {{keep: all}}
metrics: {{tensorboard: false}}
"""

ZYGOTE = """
import json, os, sys
import torch, transformers
import agentrl.run.train, agentrl.engine.local, agentrl.learn.trainer, agentrl.learn.checkpoint
from agentrl.cli.app import main
torch.set_num_threads(1)
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((null, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        sys.argv = ["agentrl", *asked["arguments"]]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Starts runs as forks of one process that has imported everything: an import takes seconds."""

START_S = 200.0


@dataclass
class Runs:
    """Starts and kills the runs of one config."""

    zygote: "subprocess.Popen[str]"
    config: Path
    folder: Path
    log: Path
    started: "list[Running]" = field(default_factory=list["Running"])

    def start(self, *arguments: str, name: str) -> "Running":
        self.end()
        command = ["train", str(self.config), f"run.name={name}", *arguments]
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.write(json.dumps({"arguments": command, "log": str(self.log)}) + "\n")
        self.zygote.stdin.flush()
        running = Running(self, self.folder / name, int(self.zygote.stdout.readline()))
        self.started.append(running)
        return running

    def end(self) -> None:
        """End what a test that failed has left: the zygote starts nothing beside it."""
        for running in self.started:
            if running.code is None:
                with suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGKILL)
                running.wait()
        self.started.clear()

    def to_the_end(self, *arguments: str, name: str) -> int:
        return self.start(*arguments, name=name).wait()


@dataclass
class Running:
    """One process of a run."""

    runs: Runs
    folder: Path
    pid: int
    code: int | None = None

    def wait(self) -> int:
        if self.code is None:
            assert self.runs.zygote.stdout is not None
            self.code = int(self.runs.zygote.stdout.readline())
        return self.code

    @property
    def is_alive(self) -> bool:
        return processes.runs(self.pid)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.runs.log.read_text()[-3000:]

    @property
    def log_bytes(self) -> int:
        return sum(f.stat().st_size for f in self.folder.glob("store/segments/*.segment"))

    def await_growth(self, at_least: int) -> None:
        """Return as soon as the log has grown by so many bytes."""
        before = self.log_bytes
        self.until(lambda: self.log_bytes >= before + at_least)

    def await_log(self, beyond: int) -> None:
        """Return when the log is longer than so many bytes."""
        self.until(lambda: self.log_bytes > beyond)

    def await_tool(self) -> None:
        """Return when a tool has answered, so that there is a sandbox that works."""
        at = max((number for number, _ in Seen.of(self.folder).events), default=-1)

        def used() -> bool:
            time.sleep(0.02)
            with StoreReader(self.folder / "store") as reader:
                return any(
                    isinstance(event, TurnCompleted) and event.exchange.tool_calls
                    for _, event in reader.events(after=at)
                )

        self.until(used)

    def await_checkpoint(self) -> None:
        """Return while a checkpoint is being written."""
        self.until(lambda: self.is_saving)

    @property
    def is_saving(self) -> bool:
        return any(self.folder.glob("checkpoints/.step-*.partial"))

    def until(self, happened: Any) -> None:
        ends = time.monotonic() + START_S
        while not happened():
            if not self.is_alive or time.monotonic() > ends:
                # Its end is read off the zygote, which would answer the next run with it.
                if self.is_alive:
                    self.kill()
                self.wait()
                pytest.fail(f"the run did not come so far: {self.runs.log.read_text()[-3000:]}")
            time.sleep(0.0005)

    def supervisors(self) -> list[int]:
        """Return the sandbox's processes: the children of the run."""
        return processes.children(self.pid)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Runs]:
    """Return runs that begin with a policy that was warm-started once."""
    folder = tmp_path_factory.mktemp("crash")
    places = ":".join(str(root / place) for place in (".", "envs", "tools", "sandbox"))
    zygote = subprocess.Popen(
        [sys.executable, "-c", ZYGOTE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
    )
    config = folder / "crash.yaml"
    config.write_text(CONFIG.format(folder=folder / "runs"))
    found = Runs(zygote, config, folder / "runs", folder / "log")
    try:
        assert found.to_the_end(name="first") == 0, found.log.read_text()[-3000:]
        config.write_text(
            config.read_text()
            .replace("checkpoint_every: 2", "checkpoint_every: 2, keep_checkpoints: 2")
            .replace(
                "policy:\n  make: ", f"policy: {{path: {found.folder}/first/policy}}\nunused: "
            )
        )
        text = [line for line in config.read_text().splitlines() if not line.startswith("unused")]
        text = [line for line in text if not line.startswith(("warmstart", "  {steps"))]
        config.write_text("\n".join(text))
        yield found
    finally:
        found.end()
        assert zygote.stdin is not None
        zygote.stdin.close()
        zygote.wait(60)
        assert zygote.stdout is not None
        zygote.stdout.close()


def log_of(folder: Path) -> bytes:
    return b"".join(f.read_bytes() for f in sorted((folder / "store/segments").iterdir()))


MODES = {
    "sync": ("rollout.mode=sync",),
    "partial": ("rollout.mode=partial", "rollout.over_provision=2.0"),
    "async": ("rollout.mode=async", "rollout.max_staleness=1"),
}

KILLS = ["moment"] * 2 + ["growth"] * 2 + ["checkpoint", "supervisor"]
"""Of each mode, in a seeded order; `benchmarks/kills.py` has hundreds."""


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_killed_again_and_again_loses_nothing(runs: Runs, mode: str) -> None:
    draw = random.Random(f"crash {mode}")
    kills = draw.sample(KILLS, len(KILLS))
    folder = runs.folder / mode
    arguments = (*MODES[mode], "run.steps=10000")
    known = b""
    for number, kind in enumerate(kills):
        resume = ("--resume",) if number else ()
        running = runs.start(*arguments, *resume, name=mode)
        running.await_log(max(len(known), HEAD_BYTES))
        strike(running, kind, draw)
        log = log_of(folder)
        assert log.startswith(known), "what was recorded is not in the log any more"
        known = complete_part(log, folder)
    reached, _ = position_of(folder)
    steps = f"run.steps={reached + 4}"
    assert runs.to_the_end(*MODES[mode], steps, "--resume", name=mode) == 0, runs.log.read_text()
    check(folder, mode, steps=reached + 4)
    if mode == "sync":
        assert runs.to_the_end(*MODES[mode], steps, name="whole") == 0
        same_weights(folder, runs.folder / "whole", reached + 4)


def strike(running: Running, kind: str, draw: random.Random) -> None:
    if kind == "moment":
        time.sleep(draw.uniform(0, 1.0))
    elif kind == "growth":
        running.await_growth(draw.randrange(1, 60_000))
    elif kind == "checkpoint":
        running.await_checkpoint()
        time.sleep(draw.choice([0, 0.005, 0.02]))
    else:
        # Not while it starts: a sandbox that cannot be built ends a run.
        running.await_tool()
        for pid in running.supervisors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # It goes on: another checkpoint is written.
        running.await_checkpoint()
        running.until(lambda: not running.is_saving)
        running.await_checkpoint()
    running.kill()


def complete_part(log: bytes, folder: Path) -> bytes:
    """Return the log without a record that the kill has cut short."""
    (file,) = (folder / "store/segments").glob("*.segment")
    ends = [
        place.end
        for place, found in scan(file, offset=HEAD_BYTES, sequence=0)
        if isinstance(found, LogRecord)
    ]
    return log[: max(ends, default=HEAD_BYTES)]


def check(folder: Path, mode: str, *, steps: int) -> None:
    seen = Seen.of(folder)
    step, position = position_of(folder)
    assert step == steps
    trained = seen.trained_until(position)
    assert set(trained.values()) == {1}, "a group was trained twice"
    assert len(trained) <= 2 * steps
    with StoreReader(folder / "store") as reader:
        assert reader.find_trained(position).keys() == trained.keys()
        counts = reader.counts()
        left = [reader.group(group) for group in reader.groups("open", "complete")]
    assert counts["resumptions"] == len(KILLS)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["resumed"]["restored_turns"] > 0
    assert set(seen.resets().values()) == {1}, "a trajectory began again under its own name"
    reasons = seen.reasons()
    assert reasons[RERUN] == reasons[MISMATCH] == 0, "the tool's answers are a function of its code"
    assert reasons.keys() <= {"failed", "begun again", "surplus"}, reasons
    lost = [
        e for _, e in seen.events if isinstance(e, RolloutAbandoned) and e.reason == "begun again"
    ]
    assert not any(event.turns for event in lost), "a completed turn was played again"
    assert summary["resumed"]["rerun_trajectories"] == reasons[RERUN]
    # Nothing is left behind but what the end of the run found in flight.
    assert len(left) <= (0 if mode == "sync" else 8)
    if mode == "sync":
        assert len(trained) == 2 * steps


def same_weights(one: Path, other: Path, step: int) -> None:
    name = f"checkpoints/step-{step:06d}/model.safetensors"
    first, second = load_file(one / name), load_file(other / name)
    for tensor, value in first.items():
        assert torch.equal(value, second[tensor]), tensor


@pytest.mark.nightly
def test_a_torn_record_is_tolerated_and_damage_is_refused_until_it_is_cut(runs: Runs) -> None:
    running = runs.start(*MODES["sync"], "run.steps=10000", name="damaged")
    running.await_checkpoint()
    running.until(lambda: not running.is_saving)
    running.await_growth(8_000)
    running.kill()
    folder = running.folder
    (file,) = (folder / "store/segments").glob("*.segment")
    with file.open("ab") as log:
        log.write(b"\1\0\0")
    steps = f"run.steps={position_of(folder)[0] + 2}"
    assert runs.to_the_end(*MODES["sync"], steps, "--resume", name="damaged") == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["resumed"]["torn_bytes"] >= 3

    running = runs.start(*MODES["sync"], "run.steps=10000", "--resume", name="damaged")
    running.await_growth(20_000)
    running.kill()
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)
    steps = f"run.steps={position_of(folder)[0] + 2}"
    assert runs.to_the_end(*MODES["sync"], steps, "--resume", name="damaged") == 2
    assert "--cut-damaged" in runs.log.read_text()
    arguments = (*MODES["sync"], steps, "--resume", "--cut-damaged")
    assert runs.to_the_end(*arguments, name="damaged") == 0, runs.log.read_text()[-3000:]
    seen = Seen.of(folder)
    trained = seen.trained_until(position_of(folder)[1])
    assert set(trained.values()) == {1}
    assert len(trained) == 2 * position_of(folder)[0]

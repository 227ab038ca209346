"""Kills parts of a run on a Ray cluster at random, and counts what was lost. Prints a table.

    python benchmarks/chaos.py [--kills 20] [--seed 0] [--folder DIR] [--json FILE]

Workers for environments, engines, whole machines (simulated ones, of one real machine) and the
trainer itself, by SIGKILL; after the trainer, `--resume`. What was lost is read off the run's
store. The exit code is 1 when a complete turn was lost, a group was trained twice, or a process
is left.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentrl.cluster.engines.host import EngineHost
from agentrl.cluster.env_worker import EnvWorkerHost
from agentrl_sandbox.inside.processes import descendants
from benchmarks.seen import Seen, position_of

Kind = Literal["worker", "engine", "machine", "trainer"]
SHARES: tuple[Kind, ...] = (
    "worker", "engine", "worker", "machine", "trainer", "worker", "engine", "worker",
)  # fmt: skip
"""What is killed, as often as it is here."""
MARK = "AGENTRL_CHAOS"
"""In the environment of every process of this run, so that none is overlooked."""
AWAIT_S = 900.0
WORKERS, ENGINES = 3, 2
CONFIG = """
run: {{name: chaos, folder: {folder}, steps: 100000, checkpoint_every: 1, seed: 3}}
env: {{id: "benchmarks.chaos_world:Corridor"}}
policy:
  make: {{hidden_size: 48, layers: 2, heads: 2, kv_heads: 2, head_dim: 24, intermediate_size: 96}}
engine: {{processes: {engines}, slots: 8, context_tokens: 256, max_restarts: 1000}}
sampling: {{max_turn_tokens: 8}}
rollout:
  {{mode: async, max_staleness: 1, tasks_per_step: 2, group_size: 4, concurrency: 12, max_turns: 8,
    retries: 10, turn_s: 900, step_s: 300, reset_s: 300}}
cluster:
  {{kind: ray, address: "{address}", workers: {workers}, worker_cpus: 0.5, engine_cpus: 0.5,
    engine_strategy: SPREAD, start_s: 900, max_restarts: 1000}}
evaluate: {{tasks: 2}}
store: {{keep: all}}
metrics: {{tensorboard: false}}
"""


@dataclass(slots=True)
class Lost:
    """What a run with so many kills has lost."""

    kills: dict[str, int] = field(default_factory=dict[str, int])
    turns: int = 0
    """Complete turns that were recorded."""
    lost_turns: int = 0
    """Of those, what had to be played again or did not count, because something died."""
    groups: int = 0
    """Trained, on the line of the last checkpoint."""
    trained_twice: int = 0
    begun_twice: int = 0
    """Trajectories that were reset twice under one name."""
    orphans: int = 0
    """Processes of the run that outlive it."""
    rebuilt_worlds: int = 0
    replayed_turns: int = 0
    recovery_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """From a kill to the next complete turn with everything there again, by what was killed."""

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was lost that must not be."""
        return not (self.lost_turns or self.trained_twice or self.begun_twice or self.orphans)

    def table(self) -> str:
        """Return the figures as Markdown."""
        killed = ", ".join(f"{count} {kind}" for kind, count in self.kills.items())
        rows = [
            ("kills", killed),
            ("complete turns", self.turns),
            ("complete turns lost", self.lost_turns),
            ("groups trained", self.groups),
            ("groups trained twice", self.trained_twice),
            ("trajectories begun twice under one name", self.begun_twice),
            ("processes left behind", self.orphans),
            ("worlds made again; turns replayed for that",
             f"{self.rebuilt_worlds}; {self.replayed_turns}"),
        ]  # fmt: skip
        rows += [
            (f"recovery, {kind}", f"{statistics.median(s):.1f} s (at most {max(s):.1f})")
            for kind, s in self.recovery_s.items()
        ]
        return "\n".join(
            ["| what | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
        )


class Chaos:
    """One run, on a cluster of its own. `close` ends both."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        from ray.cluster_utils import Cluster

        self._mark = f"{os.getpid()}-{seed}-{folder.name}"
        os.environ[MARK] = self._mark
        # Ray renames its processes, over their environment unless told not to.
        os.environ["SPT_NOENV"] = "1"
        roots = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
        self._draw = random.Random(f"chaos {seed}")
        # The machine of the trainer, with no room for anything else.
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self._machines = [self._cluster.add_node(num_cpus=3) for _ in range(2)]
        self._config = folder / "chaos.yaml"
        self._config.write_text(
            CONFIG.format(
                folder=folder, engines=ENGINES, workers=WORKERS, address=self._cluster.address
            )
        )
        self._log = folder / "log"
        self._run = folder / "chaos"
        self._trainer: subprocess.Popen[bytes] | None = None
        self._seen_turns = 0
        self.lost = Lost()

    def strike(self, kinds: Sequence[Kind]) -> None:
        """Kill in this order, each time with everything there, and wait for what follows."""
        self._start()
        self._until_whole(self._turns())
        for kind in kinds:
            time.sleep(self._draw.uniform(0, 1.0))
            began = time.monotonic()
            self._kill(kind)
            # What was complete by then says nothing of what is there now.
            before = self._turns()
            self.lost.kills[kind] = self.lost.kills.get(kind, 0) + 1
            self._until_whole(before)
            self.lost.recovery_s.setdefault(kind, []).append(time.monotonic() - began)

    def finish(self) -> Lost:
        """Play one step more than are saved, to the end, and count."""
        # Few kills take less time than a first step.
        saved = self._run / "checkpoints"
        self._until(lambda: any(saved.glob("step-*")), "a step is saved")
        self._kill_trainer()
        step = position_of(self._run)[0] + 1
        self._start(f"run.steps={step}")
        trainer = self._trainer
        assert trainer is not None
        if code := trainer.wait(AWAIT_S):
            raise RuntimeError(f"the run ended with {code}: {self._tail()}")
        self._cluster.shutdown()
        self._count()
        self.lost.orphans = len(self._until_gone())
        return self.lost

    def close(self) -> None:
        """End everything, whatever has happened."""
        if self._trainer is not None and self._trainer.poll() is None:
            self._trainer.kill()
            self._trainer.wait()
        with suppress(Exception):
            self._cluster.shutdown()
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        del os.environ[MARK], os.environ["SPT_NOENV"]

    def _start(self, *keys: str) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "agentrl.cli", "train", str(self._config)]
        command += keys
        if self._run.exists():
            command.append("--resume")
        with self._log.open("ab") as log:
            self._trainer = subprocess.Popen(command, stdout=log, stderr=log)

    def _kill(self, kind: Kind) -> None:
        if kind == "trainer":
            self._kill_trainer()
            self._start()
        elif kind == "machine":
            machine = self._machines.pop(self._draw.randrange(len(self._machines)))
            (raylet,) = machine.all_processes["raylet"]
            below = descendants(raylet.process.pid)
            self._cluster.remove_node(machine, allow_graceful=False)
            self._await_end(below)
            self._machines.append(self._cluster.add_node(num_cpus=3))
        else:
            # An engine's process, or the actor that holds it.
            found = self._workers if kind == "worker" else lambda: self._engines() + self._holders()
            self._until(lambda: self._struck(found()), f"there is {kind} to be killed")

    def _struck(self, found: list[int]) -> bool:
        """Kill one of these processes, with what it started; False when there is none any more."""
        if not found:
            return False
        pid = self._draw.choice(found)
        below = descendants(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._await_end(below)
        return True

    def _await_end(self, doomed: Collection[int]) -> None:
        """Wait for processes that are about to end: they would be taken for those that replace
        them."""
        self._until(lambda: not {*doomed} & {*self._left()}, "what died with it is gone")

    def _kill_trainer(self) -> None:
        assert self._trainer is not None
        self._trainer.kill()
        self._trainer.wait()
        self._until(lambda: not (self._workers() or self._engines()), "what it started is gone")

    def _until_whole(self, turns: int) -> None:
        """Wait until everything is there again and more turns are complete than so many."""
        self._until(
            lambda: len(self._workers()) == WORKERS and len(self._engines()) == ENGINES,
            f"{WORKERS} workers and {ENGINES} engines are there",
        )
        self._until(lambda: self._turns() > turns, "another turn is complete")

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + AWAIT_S
        while not happened():
            if self._trainer is not None and self._trainer.poll() not in (None, -signal.SIGKILL):
                raise RuntimeError(f"the run ended: {self._tail()}")
            if time.monotonic() > ends:
                raise TimeoutError(f"not within {AWAIT_S:g} s: {what}; {self._tail()}")
            time.sleep(0.05)

    def _count(self) -> None:
        seen, (_, position) = Seen.of(self._run), position_of(self._run)
        trained, lost = seen.trained_until(position), self.lost
        lost.turns = seen.turns()
        lost.lost_turns = seen.lost_turns("failed", "rerun", "begun again")
        lost.groups = len(trained)
        lost.trained_twice = sum(count > 1 for count in trained.values())
        lost.begun_twice = sum(count > 1 for count in seen.resets().values())
        lost.rebuilt_worlds, lost.replayed_turns = self._rebuilt()

    def _rebuilt(self) -> tuple[int, int]:
        """Return the counts of every process of the run together; each begins at 0."""
        totals, before = [0.0, 0.0], [0.0, 0.0]
        for line in (self._run / "metrics.jsonl").read_text().splitlines():
            figures = json.loads(line)
            now = [figures["worlds/rebuilt"], figures["worlds/replayed_turns"]]
            grown = now if now[0] < before[0] else [n - b for n, b in zip(now, before, strict=True)]
            totals = [total + more for total, more in zip(totals, grown, strict=True)]
            before = now
        return int(totals[0]), int(totals[1])

    def _turns(self) -> int:
        with suppress(Exception):  # it is only being made
            self._seen_turns = max(self._seen_turns, Seen.of(self._run).turns())
        return self._seen_turns

    def _until_gone(self) -> list[int]:
        ends = time.monotonic() + 120.0
        while (left := self._left()) and time.monotonic() < ends:
            time.sleep(0.1)
        return left

    def _left(self) -> list[int]:
        return [pid for pid, _ in self._ours() if pid != os.getpid()]

    def _workers(self) -> list[int]:
        return [
            pid for pid, line in self._ours() if line.startswith(f"ray::{EnvWorkerHost.__name__}")
        ]

    def _holders(self) -> list[int]:
        return [pid for pid, line in self._ours() if line.startswith(f"ray::{EngineHost.__name__}")]

    def _engines(self) -> list[int]:
        return [pid for pid, line in self._ours() if "agentrl.engine.remote" in line]

    def _ours(self) -> list[tuple[int, str]]:
        """Return the processes that carry our mark, with their command lines."""
        mark = f"{MARK}={self._mark}".encode()
        found: list[tuple[int, str]] = []
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal():
                continue
            with suppress(OSError):
                line = (place / "cmdline").read_bytes()
                if line and mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append(
                        (int(place.name), line.replace(b"\0", b" ").decode(errors="replace"))
                    )
        return found

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def strikes(kills: int, *, seed: int) -> list[Kind]:
    """Return what is killed, in a random order in which everything has its share."""
    kinds: list[Kind] = [SHARES[number % len(SHARES)] for number in range(kills)]
    random.Random(f"strikes {seed}").shuffle(kinds)
    return kinds


def chaos(folder: Path, kinds: Sequence[Kind], *, seed: int) -> Lost:
    """Return what a run in `folder` has lost over these kills."""
    run = Chaos(folder, seed=seed)
    try:
        run.strike(kinds)
        return run.finish()
    finally:
        run.close()


def main() -> None:
    """Read the arguments, kill, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as made:
        kinds = strikes(given.kills, seed=given.seed)
        lost = chaos(given.folder or Path(made), kinds, seed=given.seed)
    sys.stdout.write(lost.table() + "\n")
    if given.json:
        given.json.write_text(json.dumps(asdict(lost), indent=2))
    sys.exit(not lost.is_clean)


if __name__ == "__main__":
    main()

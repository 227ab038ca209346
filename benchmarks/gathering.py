"""What it takes of memory to hand the weights of a trainer on two devices to engines.

The model is a random 75 M Qwen3 (float32, 300 MB), in shards on two processes of this machine, one
thread each. An update is what a run does: the weights are put together, and are then in memory that
engines read; the update before is still held, for an engine that has to be replaced meanwhile.

Memory is what a process has for itself and what it has in files in memory, looked at every
millisecond; a figure is how much more of it there is at most than before the first update, over the
bytes of the model. Two of it are the update and the one before.
"""

import ctypes
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self, cast

import torch

from agentrl.config.run import RunConfig
from agentrl.engine.remote.shared_weights import share_weights
from agentrl.run.build_trainer import build_leading_trainer
from agentrl.run.policy_model import PolicyModel
from benchmarks.adapters import policy
from benchmarks.harness import Benchmark

LOOK_S = 0.001
M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""
MMAP_THRESHOLD_BYTES = 2**16
CONFIG: dict[str, Any] = {
    "env": {"id": "none/None-v0"},
    "run": {"threads": 1},
    "learn": {"devices": {"count": 2}},
}


def held_bytes(pid: int) -> int:
    """Return what a process has: memory of its own, and files in memory, mapped or not."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    files: dict[int, int] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:agentrl" in str(link.readlink()):
                stat = link.stat()
                files[stat.st_ino] = 512 * stat.st_blocks
        except FileNotFoundError:  # closed meanwhile
            continue
    return 1024 * own + sum(files.values())


class Watch:
    """The most that processes have had beyond what they had when the block began."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._before = [held_bytes(pid) for pid in pids]
        self._most = list(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def grown_bytes(self) -> list[int]:
        """Return it by process."""
        return [most - had for most, had in zip(self._most, self._before, strict=True)]

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            found = map(held_bytes, self._pids)
            self._most = [max(pair) for pair in zip(self._most, found, strict=True)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def other_rank() -> int:
    """Return the process of the rank that follows."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = (
        int(pid)
        for pid in children
        if b"agentrl.learn.sharded.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return found


def main() -> None:
    """Measure and print."""
    bench = Benchmark.from_command_line("gathering", __doc__)
    torch.set_num_threads(1)
    # What is freed is given back at once, here and in the other process: else it hides growth.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
    model = policy()
    model_bytes = sum(parameter.nbytes for parameter in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        first = PolicyModel(Path(folder), model, cast(Any, None), cast(Any, None))
        trainer = build_leading_trainer(RunConfig.model_validate(CONFIG), first)
        held: Any = None
        seconds: list[float] = []
        try:
            trainer.logprobs((1, 2, 3))  # both ranks are there, with all that they keep
            with Watch([os.getpid(), other_rank()]) as watch:
                for _ in range(bench.rounds + 1):
                    began_s = time.perf_counter()
                    new = share_weights(trainer.weights())
                    seconds.append(time.perf_counter() - began_s)
                    held = new
            del held
        finally:
            trainer.close()
    bench.row("bytes of the model", model_bytes / 1e6, unit="MB")
    for rank, grown in enumerate(watch.grown_bytes):
        bench.row(f"rank {rank}, more memory at most", grown / model_bytes, unit="models")
    bench.row("an update, shortest", min(seconds), unit="s")
    bench.finish()


if __name__ == "__main__":
    main()

"""Fill the disk of a run at a random moment, or make it read-only, and resume the run.

    python benchmarks/full_disk.py --tries 30                # as root: each disk is its own tmpfs
    python benchmarks/full_disk.py --tries 30 --read-only    # its own ext4, after an error

A small run in `sync` is started in a private mount namespace. Its disk is filled to the last byte
or nearly, or the kernel makes it read-only as it does after an error of the device. The run must
end with one sentence that says so. When the disk can be written again the run is resumed, and must
end with the weights of a run that was never stopped.
"""

import argparse
import hashlib
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.message import Message
from agentrl.task import Split, split_of

CONFIG = """
run: {{name: small, folder: {folder}, steps: 4, threads: 1, checkpoint_every: 1}}
env: {{id: "benchmarks.full_disk:Doubles"}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 20, batch_size: 8, demonstrations: 60, guess_fraction: 0.3}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 6, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 6}}
metrics: {{tensorboard: false}}
"""
IMPORTS = ("cli.app", "engine.local", "learn.checkpoint", "learn.trainer", "run.train")
DISK_BYTES = 64 * 2**20
LIMIT_S = 300.0


@agentrl.tool
def double(number: int) -> int:
    """Return twice the number.

    Args:
        number: Any.
    """
    return 2 * number


class Doubles(ToolEnv):
    """Doubles numbers with a tool, and pays by the length of the answer."""

    def __init__(self) -> None:
        def tasks(split: Split, seed: int) -> Iterable[agentrl.Task]:
            for number in range(500):
                if split_of(str(number)) == split:
                    yield agentrl.Task(prompt=f"Double {number}", answer=str(2 * number))

        def reward(task: agentrl.Task, messages: Sequence[Message]) -> float:
            return len(messages[-1].text) % 8 / 7

        def gold(task: agentrl.Task, seen: Sequence[Message]) -> agentrl.Action:
            if len(seen) == 1:
                return agentrl.call("double", number=int(task.answer) // 2)
            return agentrl.say(seen[-1].text)

        super().__init__(tasks=tasks, tools=[double], reward=reward, gold=gold)


def start(folder: Path, log: Path, *options: str) -> int:
    """Start a run in a fork of this process, which has imported everything; return its id."""
    config = log.with_suffix(".yaml")
    config.write_text(CONFIG.format(folder=folder))
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = io.open(1, "w"), io.open(2, "w")  # noqa: UP020, SIM115
        sys.argv = ["agentrl", "train", str(config), *options]
        from agentrl.cli.app import main as run

        run()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(process: int) -> int:
    """Wait for a run to end and return its exit status; -9 for one that does not."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return -9


def weights_of(folder: Path) -> str:
    """Return the digest of a run's last weights."""
    last = max((folder / "small" / "checkpoints").glob("step-*"))
    return hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()


SAYS: dict[bool, tuple[str, ...]] = {
    False: ("No space left on device", "disk is full"),
    True: ("Read-only file system", "readonly database", "I/O error", "Input/output error"),
}
"""Words of which one must be in what a run says, for a full disk and for a read-only one."""


def fill(disk: Path, left_bytes: int) -> Path:
    """Write a file until the disk is full but for so many bytes."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with suppress(OSError):
        os.truncate(ballast, max(0, ballast.stat().st_size - left_bytes))
    return ballast


@contextmanager
def mounted_tmpfs(disk: Path) -> Generator[None]:
    """Mount an empty tmpfs."""
    run_command("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk)
    try:
        yield
    finally:
        run_command("umount", "-l", disk)


@contextmanager
def mounted_ext4(disk: Path) -> Generator[None]:
    """Mount an empty ext4 that its first error makes read-only."""
    image = disk.with_name("image")
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    run_command("mkfs.ext4", "-q", "-F", image)
    run_command("mount", "-o", "loop,errors=remount-ro", image, disk)
    try:
        yield
    finally:
        run_command("umount", disk)


def run_command(*command: str | Path) -> None:
    """Run a command; raises `CalledProcessError` where it fails."""
    subprocess.run(command, check=True)


def break_filesystem(disk: Path) -> None:
    """Have the kernel find an error in an ext4: it is read-only from then on."""
    number = os.stat(disk).st_dev
    name = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")


def mend_filesystem(disk: Path) -> None:
    """Check an ext4 that an error has made read-only, and mount it again."""
    image = disk.with_name("image")
    run_command("umount", disk)
    # 1: errors were found and corrected.
    if subprocess.run(["e2fsck", "-fy", image], stdout=subprocess.DEVNULL).returncode > 1:
        raise RuntimeError(f"{image} cannot be repaired")
    run_command("mount", "-o", "loop,errors=remount-ro", image, disk)


def try_once(
    place: Path, draw: random.Random, *, whole: str, whole_s: float, read_only: bool
) -> tuple[str, str]:
    """Stop a run by its disk once, and resume it; return what came of it, and the details."""
    disk, log = place / "disk", place / "log"
    disk.mkdir(exist_ok=True)
    with (mounted_ext4 if read_only else mounted_tmpfs)(disk):
        process = start(disk, log)
        time.sleep(draw.uniform(0.02, 1.0) * whole_s)
        mend: Callable[[], None]
        if read_only:
            break_filesystem(disk)
            mend = partial(mend_filesystem, disk)
        else:
            ballast = fill(disk, draw.choice([0, 0, 4096, 65536, 2**20]))
            mend = partial(ballast.unlink, missing_ok=True)
        code = ended(process)
        said = log.read_text(errors="replace")
        if code == 0:
            return "ended before its disk failed", ""
        wrong = code != 2 or "Traceback" in said or "damaged" in said
        if wrong or not any(words in said for words in SAYS[read_only]):
            return "another error", f"{code}: {said[-1500:]}"
        mend()
        options = ["--resume"] if (disk / "small" / "config.yaml").exists() else []
        code, outcome = ended(start(disk, log, *options)), "identical"
        if code == 2 and read_only and "--cut-damaged" in (refusal := log.read_text()):
            # What was not on the disk yet is gone, as when a machine stops.
            code, outcome = ended(start(disk, log, *options, "--cut-damaged")), "identical, cut"
            said += refusal
        if code != 0:
            return "not resumed", f"{code}: {said[-1600:]}\n{log.read_text()[-1500:]}"
        if weights_of(disk) != whole:
            return "other weights", said[-600:]
        return outcome, said.strip().replace("\n", " ")[-300:]


def main() -> None:
    """Stop, resume, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two tries")
    parser.add_argument("--read-only", action="store_true", help="do not fill the disk")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        own = [sys.executable, "-m", "benchmarks.full_disk", "--inside", *sys.argv[1:]]
        sys.exit(subprocess.run(["unshare", "-m", *own]).returncode)
    for module in IMPORTS:
        import_module(f"agentrl.{module}")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        began = time.monotonic()
        if ended(start(place / "whole", place / "log")) != 0:
            sys.exit((place / "log").read_text())
        whole_s, whole = time.monotonic() - began, weights_of(place / "whole")
        print(f"a whole run takes {whole_s:.1f} s", flush=True)
        draw = random.Random(given.seed)
        for number in range(2 if given.quick else given.tries):
            outcome, details = try_once(
                place, draw, whole=whole, whole_s=whole_s, read_only=given.read_only
            )
            counts[outcome] += 1
            print(f"{number}: {outcome}: {details}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    sys.exit(any(counts[bad] for bad in ("another error", "not resumed", "other weights")))


if __name__ == "__main__":
    main()

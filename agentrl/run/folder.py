"""The folder of one run: who owns it, what made it, and where its parts lie.

runs/NAME/
  config.yaml        the complete config; a folder that has one holds a run
  environment.json   versions and machine, one entry each time the run was started
  metrics.jsonl      numbers per step
  summary.json       evaluations, and seconds per phase
  evaluations/       the whole report of each evaluation, for `agentrl compare`
  policy/            the first policy, a Hugging Face folder
  checkpoints/       weights, optimiser and samplers
  store/             every turn that was played, see docs/durability.md
  credit/            what each step made of each token, see store/token_credit.py
  lock               held while a process works here
"""

import fcntl
import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from agentrl.config.load import changes, load_config, save_resolved
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, ConfigError
from agentrl.runtime.atomic_files import load_json, write_json
from agentrl.runtime.machine import environment

MAY_CHANGE = (
    "run.steps",
    "learn.devices.",
    "cluster.",
    "run.name",
    "run.folder",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "store.",
    "metrics.",
    "view.",
    "evaluate.",
)
"""Keys a resumed run may change: how long it is, where it lies, how many devices train it, on which
machines, and what is written about it."""

_STEP = re.compile(r"step-(\d+)")
"""Name of a checkpoint."""
LOCK_ATTEMPTS = 5
LISTED_NAMES = 8


class RunFolder:
    """A run's folder, held by this process until it is closed. Made by `open`."""

    def __init__(self, path: Path, lock: int, *, made: Sequence[Path]) -> None:
        self._named = path
        self.path = path = path.absolute()  # whatever an environment makes the working directory
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.policy = path / "policy"
        self.warmstart = path / "warmstart-state.safetensors"
        self.checkpoints = path / "checkpoints"
        self.store = path / "store"
        self._lock: int | None = lock
        self._made = tuple(made)
        """The folders this run had to make, innermost first; none when it was resumed."""

    @classmethod
    def open(cls, config: RunConfig, *, resume: bool) -> Self:
        """Make or reopen the folder `run.folder`/`run.name`, lock it, and record what runs in it.

        Raises `ConfigError`, and leaves everything as it was, if another process holds the folder,
        if it holds a run and `resume` is off, if it holds none and `resume` is on, or if the run
        in it had another config. The lock is the kernel's: it ends with its process, also by
        `kill -9`.
        """
        path = config.run.folder / config.run.name
        whole = path.absolute()
        new_folders = [folder for folder in (whole, *whole.parents) if not folder.exists()]
        was_there = (path / "lock").exists()
        try:
            folder = cls(path, _lock(path), made=new_folders)
            try:
                folder._begin(config, resume=resume)
            except BaseException:
                folder._release(keep_file=was_there)
                raise
        except BaseException as error:
            _remove_empty(new_folders)
            if isinstance(error, OSError):
                raise ConfigError(
                    f"{error.filename or path}: {error.strerror}; a run is written to "
                    "run.folder/run.name: choose a run.folder that is writable"
                ) from error
            raise
        return folder

    def close(self) -> None:
        """Let other processes have the folder. Idempotent."""
        self._release(keep_file=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close, and leave no trace of a new run that an error ended before it had a policy.

        Its config or its environment can only be mended, and then it is another run.
        """
        wrong = kind is not None and issubclass(kind, AgentrlError)
        if wrong and self.path in self._made and not (self.policy.exists() or self._has_steps):
            with suppress(OSError):
                for file in (self.config, self.environment, self.summary, self.warmstart):
                    file.unlink(missing_ok=True)
            self._release(keep_file=False)
            _remove_empty(self._made)
        self.close()

    @property
    def _has_steps(self) -> bool:
        return self.checkpoints.exists() or self.metrics.exists()

    def _begin(self, config: RunConfig, *, resume: bool) -> None:
        is_run = self.config.exists()
        if is_run and not resume:
            raise ConfigError(
                f"{self._named} already holds a run; resume it with --resume (resume=True), or "
                "choose another run.name"
            )
        if resume and not is_run:
            raise ConfigError(
                f"{self._named} holds no run to resume; start one without --resume, or check "
                "run.folder and run.name"
            )
        if is_run:
            self._check_same(config)
            self._check_length(config.run.steps)
            sessions = self._sessions()
            write_json(self.environment, [*sessions, environment()])
            save_resolved(config, self.config)
            return
        self._check_empty()
        try:
            write_json(self.environment, [environment()])
            # Last, because it is what makes the folder a run.
            save_resolved(config, self.config)
        except BaseException:
            self.environment.unlink(missing_ok=True)
            raise

    def _sessions(self) -> list[Any]:
        if not self.environment.exists():
            return []
        advice = "remove it to resume: it only records the machines on which the run was started"
        return load_json(self.environment, list, advice=advice)

    def _check_empty(self) -> None:
        ours = {"lock", self.environment.name}
        names = sorted(f.name for f in self.path.iterdir() if f.name not in ours)
        if strange := [name for name in names if not name.endswith(".partial")]:
            raise ConfigError(
                f"{self._named} holds {', '.join(strange[:LISTED_NAMES])} but no run; a run needs "
                "a folder of its own: choose another run.name"
            )

    def _check_same(self, config: RunConfig) -> None:
        was = load_config(self.config)
        if changed := changes(was, config, counts=lambda key: not key.startswith(MAY_CHANGE)):
            raise ConfigError(
                f"{self._named} holds a run with a different config: {changed}. Resume it with the "
                "original values, or choose another run.name"
            )

    def _check_length(self, steps: int) -> None:
        names = (path.name for path in self.checkpoints.glob("step-*"))
        trained = max(
            (int(match[1]) for name in names if (match := _STEP.fullmatch(name))), default=0
        )
        if steps < trained:
            raise ConfigError(
                f"run.steps is {steps}, but {self._named} has trained {trained} steps; set it to "
                f"{trained} or more"
            )

    def _release(self, *, keep_file: bool) -> None:
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        # The lock goes with its descriptor; on a read-only disk its file stays.
        with suppress(OSError):
            if keep_file:
                os.ftruncate(lock, 0)
            else:
                (self.path / "lock").unlink(missing_ok=True)
        os.close(lock)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _lock(path: Path) -> int:
    for _ in range(LOCK_ATTEMPTS):
        path.mkdir(parents=True, exist_ok=True)
        file = path / "lock"
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that failed to open may have removed the file between our open and our lock.
            if not _is_same_file(descriptor, file):
                os.close(descriptor)
                continue
            _sign(descriptor)
        except BlockingIOError as error:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise ConfigError(
                f"{path} is in use by {owner}; two runs cannot share a folder: choose another "
                "run.name, or stop the other run"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    raise ConfigError(
        f"{path} was removed {LOCK_ATTEMPTS} times while it was being opened, because another "
        "process is cleaning it up; choose another run.name"
    )


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    owner = {"pid": os.getpid(), "host": platform.node()}
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError):
        return "another process, which is still starting"


def _is_same_file(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False

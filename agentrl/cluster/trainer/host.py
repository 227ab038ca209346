"""Actor of a rank: it is that rank, and answers with values only."""

import os
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from agentrl.cluster.env_worker import RemoteFailure
from agentrl.cluster.interface import listen_at
from agentrl.errors import ConfigError
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, load_rank
from agentrl.learn.trainer import PolicyTrainer

SAID_CHARS = 4_000
"""Characters kept of the end of a trace, where the reason is."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank that has its model, and where it is."""

    address: str
    pid: int


class RankHost:
    """One rank. It is asked for one thing after the other, in the order of the leading rank."""

    def __init__(self, setup: RankSpec, where: Callable[[], str]) -> None:
        """`where` tells the address of the machine."""
        self._setup = setup
        self._where = where
        self._joins: Callable[[Store | None], PolicyTrainer] | None = None
        self._trainer: PolicyTrainer | None = None
        self._stack = ExitStack()

    def load(self) -> RankInfo | RemoteFailure:
        """Load the model, so that it can join."""
        self._stack.enter_context(listen_at(self._where()))
        if not Path(self._setup.policy).is_dir():
            return RemoteFailure.from_error(
                ConfigError(
                    f"{self._setup.policy} does not exist on {self._where()}, where rank "
                    f"{self._setup.rank} of the trainer runs; set run.folder to a folder that all "
                    "machines with ranks see under the same path"
                )
            )
        try:
            self._joins = load_rank(self._setup)
        except ConfigError as error:
            return RemoteFailure.from_error(error)
        return RankInfo(self._where(), os.getpid())

    def join(self) -> str | None:
        """Join the others, who have to do so meanwhile; return the end of a trace if it fails."""
        try:
            assert self._joins is not None, "a rank joins when it has loaded its model"
            self._trainer = self._joins(None)
        except Exception:  # noqa: BLE001 - told to the leading rank, which ends this one
            return traceback.format_exc()[-SAID_CHARS:]
        return None

    def run(self, command: RankCommand) -> str | None:
        """Take part in a command; return the end of a trace if that fails."""
        try:
            assert self._trainer is not None, "a rank takes part when it has joined"
            command.run(self._trainer)
        except Exception:  # noqa: BLE001 - told to the leading rank, which ends this one
            return traceback.format_exc()[-SAID_CHARS:]
        return None

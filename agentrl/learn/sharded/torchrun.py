"""The other ranks as the other processes of `torchrun`, on one machine or many.

The store that torchrun's processes meet at says what they are to be: in JSON, for the store asks
nobody for a key. It also says that there is a command; the command itself is broadcast. Who waits
for one asks the store again and again: steps may be hours apart. torchrun ends all processes when
one of them fails.
"""

import contextlib
import datetime
import json
import signal
from dataclasses import asdict
from typing import Any

from torch.distributed import (
    DistStoreError,
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    rendezvous,  # pyright: ignore[reportPrivateImportUsage]
)

from agentrl.errors import LearnError
from agentrl.learn.sharded.mesh import MeshRanks
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, follower, leave
from agentrl.runtime.json_limits import JsonLimitError, read_json
from agentrl.runtime.torchrun import TorchrunLaunch

SETUP = "setup"
ASK_S = 60.0
"""Seconds of one wait at the store; it is repeated until there is an answer."""


def meeting_point() -> Store:
    """Return the store of torchrun's processes."""
    store: Any = next(rendezvous("env://"))[0]
    return PrefixStore("agentrl", store)


class TorchrunRankLink:
    """A `RankLink` to torchrun's other processes."""

    def __init__(self, store: Store, ranks: MeshRanks) -> None:
        self._store = store
        self._ranks = ranks
        self._told = 0
        self._open = True

    def tell(self, command: RankCommand) -> None:
        self._store.set(_key(self._told), "go")
        self._told += 1
        self._ranks.broadcast(command)

    def blame(self) -> str | None:
        """Return that one of them broke off: which one, torchrun knows."""
        return "another torchrun process has ended; see the output of torchrun"

    def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(RuntimeError):  # they are gone, and so is the store
                self._store.set(_key(self._told), "end")
            leave()


def announce(store: Store, setup: RankSpec) -> None:
    """Tell the others what they are to be; each puts its own rank in."""
    store.set(SETUP, json.dumps(asdict(setup)))


def follow(launch: TorchrunLaunch) -> None:
    """Be a rank for the process that holds the run, until it says that this is the end."""
    # torchrun passes on what stops it, and the one that holds the run decides when a step is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    store = meeting_point()
    trainer = follower(await_setup(store, launch), lambda: None, store)
    ranks = trainer.ranks
    assert isinstance(ranks, MeshRanks)
    step = 0
    while _await_key(store, _key(step)) == b"go":
        step += 1
        command: RankCommand = ranks.broadcast(None)
        command.run(trainer)
    leave()


def await_setup(store: Store, launch: TorchrunLaunch) -> RankSpec:
    """Wait for the setup of this process, and return it.

    Raises `LearnError` where the store says something else.
    """
    try:
        setup = RankSpec(**read_json(_await_key(store, SETUP)))
    except (JsonLimitError, TypeError) as error:
        raise LearnError(
            f"the store of the torchrun processes has no setup under {SETUP!r} ({error}), because "
            "another program writes to it: give torchrun a --rdzv-endpoint of its own"
        ) from error
    return setup.for_rank(rank=launch.rank, local_rank=launch.local_rank)


def _await_key(store: Store, key: str) -> bytes:
    while True:
        with contextlib.suppress(DistStoreError):
            store.wait([key], datetime.timedelta(seconds=ASK_S))
            return store.get(key)


def _key(number: int) -> str:
    return f"command/{number}"

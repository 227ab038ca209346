"""An engine that somebody else serves, at an address: lost now and then, and found again."""

import asyncio
import math
import sys
from pathlib import Path

from agentrl.engine.remote.client import RemoteEngine, connect
from agentrl.engine.remote.replicas import EngineReplica
from agentrl.engine.remote.shared_weights import SharedWeights, find_missing_base, share_weights
from agentrl.engine.remote.weight_check import VersionedWeights
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError, WeightsUnproven
from agentrl.runtime.threads import run_in_thread

FIRST_WAIT_S, MOST_WAIT_S = 0.5, 30.0
"""Between two tries to reach an address, doubled with each."""
LEAST_KEY_BYTES = 16


class EngineConnection:
    """One connection to an address. Owned by an `AddressEngine`."""

    def __init__(self, engine: RemoteEngine, address: str) -> None:
        self.engine = engine
        self.name = f"connection to {address}"

    @property
    def is_open(self) -> bool:
        return self.engine.is_open

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        """Have the engine take weights: a copy of ours is sent, a path is read over there."""
        if (base := find_missing_base(weights, self.engine)) is not None:
            await self.engine.send_base(base.path, base.id)
        if isinstance(weights, SharedWeights):
            await self.engine.send(weights.path, version)
        else:
            await self.engine.load(weights, version)

    async def read_output(self) -> str:
        return "nothing that is visible from here"

    async def close(self) -> None:
        await self.engine.close()


class AddressEngine(EngineReplica):
    """The engine at `host:port`, connected to again whenever the connection is lost.

    An address that is away is tried again, ever more seldom. Weights that are loaded meanwhile are
    sent when it is back, before it is asked for anything.
    """

    def __init__(
        self,
        address: str,
        *,
        key: bytes,
        start_s: float = 600.0,
        patience_s: float = 600.0,
        silence_s: float = 60.0,
    ) -> None:
        """Nobody is asked before the first call, or `async with`, which wait `start_s` for the
        engine; a call later on waits `patience_s` for one that is away, and then fails."""
        super().__init__(max_restarts=sys.maxsize)
        self._address = address
        self._key = key
        self._start_s = start_s
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._was_here = False
        self._tries = 0
        self._not_before_s = -math.inf

    async def start(self) -> EngineConnection:
        """Connect, as soon as the engine is there. Raises `EngineError` when it stays away."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + (self._patience_s if self._was_here else self._start_s)
        while True:
            wait_s = self._not_before_s - now_s()
            if now_s() + wait_s > until_s:
                raise EngineError(
                    f"the engine at {self._address} is unreachable; next attempt in {wait_s:.1f} s"
                )
            await asyncio.sleep(max(0.0, wait_s))
            try:
                engine = await connect(
                    self._address, key=self._key, start_s=self._start_s, silence_s=self._silence_s
                )
            except EngineError:
                # Doubled no more often than counts: a day of tries is beyond what is a float.
                pause_s = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._tries, 30))
                self._tries += 1
                self._not_before_s = now_s() + pause_s
                if self._not_before_s > until_s:
                    raise
            else:
                self._tries, self._was_here = 0, True
                return EngineConnection(engine, self._address)

    async def load(self, weights: Weights | SharedWeights, version: int) -> None:
        """Take new weights: a state dict is sent, a folder is read by the server, under the same
        path. One that is away is given them when it is back.

        Weights of another model raise `ValueError` and change nothing.
        """
        try:
            await super().load(weights, version)
        except WeightsUnproven:
            raise
        except EngineError:
            if not self._open or self._alive() is not None:
                raise
            self._held = VersionedWeights(await run_in_thread(share_weights, weights), version)


def read_key(file: Path | None) -> bytes:
    """Return the key that engines and their users share.

    Raises `ConfigError` for a file that is missing, cannot be read or holds next to nothing.
    """
    if file is None:
        raise ConfigError(
            "engine.key_file is not set, but both sides must prove that they have the same key of "
            f"at least {LEAST_KEY_BYTES} bytes; create one with `openssl rand -hex 32 > FILE`"
        )
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"engine.key_file {file} cannot be read: {error}") from error
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(
            f"engine.key_file {file} holds {len(key)} bytes, but a secure key needs at least "
            f"{LEAST_KEY_BYTES}; create one with `openssl rand -hex 32 > {file}`"
        )
    return key

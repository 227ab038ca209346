"""A server as an engine that takes whole weights.

The server is paused while it has parts of two versions. Requests in flight are asked for again with
what they have (`recompute`), so that a stream is of one version, or stay there with their cached
keys (`keep`), and the server says which tokens are of which version.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from agentrl.engine.endpoint.control import build_control
from agentrl.engine.endpoint.server_engine import ServedVersion, ServerEngine
from agentrl.engine.endpoint.settings import ServerSettings
from agentrl.engine.endpoint.transfer import WeightTransfer, share_whole_weights
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.stopping import Decode
from agentrl.errors import ConfigError, EngineError, WeightsUnproven
from agentrl.runtime.threads import finish_in_thread
from agentrl.weight_sync.check import TRIES, CheckedWeights, WeightCheck, complaint

if TYPE_CHECKING:
    import httpx


class WeightsEngine(ServerEngine):
    """Samples and scores by a server that is given whole weights."""

    def __init__(
        self,
        settings: ServerSettings,
        transfer: WeightTransfer,
        *,
        decode: Decode | None = None,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """Take what `ServerEngine` takes, and a way for the weights.

        Raises `ConfigError` for `keep` from a server that names no versions.
        """
        if settings.update == "keep" and settings.api == "completions":
            raise ConfigError(
                "requests are kept over new weights (update: keep), but the server's completions "
                "name no weight versions; set engine.endpoint.api: generate"
            )
        super().__init__(settings, decode=decode, first_wait_s=first_wait_s, transport=transport)
        self._transfer = transfer
        self._control = build_control(settings.api, self._client)
        self._keeps_requests = settings.update == "keep"
        self._asleep = False

    async def load(
        self, weights: Mapping[str, Tensor] | SharedWeights | Path, version: int
    ) -> None:
        """Take a state dict, or what has a path. Requests in flight go on with the new version.

        Weights with a proof (`CheckedWeights`) are proven, before a request meets them unless it
        was kept at the server, and sent once more where they are not: then `WeightsUnproven`, and
        the engine is of no use any more, as where a server takes a part of them only.
        """
        proof = weights.proof if isinstance(weights, CheckedWeights | SharedWeights) else None
        shared = (
            weights
            if isinstance(weights, SharedWeights)
            else await finish_in_thread(share_whole_weights, weights)
        )
        async with self._loading:
            await self._load_proven(shared, version, proof)

    async def send(self, weights: Path | SharedWeights, version: int) -> None:
        """Take weights without a proof; a server of which there are parts of two versions when this
        raises `EngineError` is of no use any more."""
        async with self._loading:
            await self._load_proven(weights, version, None)

    async def sleep(self) -> None:
        """Give up the server's memory until the next load; requests wait for that."""
        level = self._settings.sleep_level
        if not level or self._asleep:
            return
        async with self._loading:
            self._whole.clear()
            self._asleep = True
            self._restart_all()
            await self._control.pause(keep=False)
            await self._control.sleep(level)

    async def release(self) -> None:
        await self._transfer.close()

    async def _load_proven(
        self, weights: Path | SharedWeights, version: int, proof: WeightCheck | None
    ) -> None:
        self._whole.clear()
        keep = self._keeps_requests and not self._asleep
        if not keep:
            self._restart_all()
        try:
            why = ""
            for _ in range(TRIES):
                await self._replace_weights(weights, version, keep=keep)
                if proof is None or not (why := await self._prove(proof, version)):
                    break
            else:
                raise WeightsUnproven(
                    f"{self._endpoint} did not load version {version} of the weights after {TRIES} "
                    f"tries: {why}"
                )
        except BaseException as error:
            # Nobody knows what it computes with.
            self.fail(
                error
                if isinstance(error, EngineError)
                else EngineError(f"loading version {version} of the weights ended with {error!r}")
            )
            raise
        self._whole.set()

    async def _replace_weights(
        self, weights: Path | SharedWeights, version: int, *, keep: bool
    ) -> None:
        """Have the server take weights, and go on with them."""
        await self._control.pause(keep=keep)
        if self._asleep:
            await self._control.wake("weights")
        await self._transfer.send(self._control, weights, version)
        if self._asleep:
            await self._control.wake("kv_cache")
            self._asleep = False
        if not keep:
            await self._control.empty_cache()
        self._held = ServedVersion(self._settings.model, version)
        await self._control.resume()

    async def _prove(self, proof: WeightCheck, version: int) -> str:
        """Have the server score a proof; return what is wrong with it."""
        try:
            async with asyncio.timeout(proof.deadline_s):
                request = proof.request(f"proof/{next(self._numbers)}")
                scores = await self._scores(request, self._held)
        except TimeoutError:
            return f"scoring took longer than {proof.deadline_s:g} s (engine.probe.deadline_s)"
        return complaint(proof, scores, version=version) or ""

    def _restart_all(self) -> None:
        for errand in self._errands.values():
            errand.restart()

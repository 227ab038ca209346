"""A server that somebody else started, as a policy engine that scores and takes adapters.

Each version is an adapter of a name of its own, which a request names: so every token is of the
version that it carries, whatever the server does meanwhile.
"""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from torch import Tensor

from agentrl.engine.endpoint.adapters import write_adapter
from agentrl.engine.endpoint.server_engine import ServedVersion, ServerEngine
from agentrl.engine.endpoint.settings import ServerSettings
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.replicas import ReplicatedEngine
from agentrl.engine.stopping import Decode
from agentrl.errors import ConfigError, EngineError, EngineLost, WeightsUnproven
from agentrl.runtime.http_endpoint import (
    EndpointRefusedError,
    EndpointUnavailableError,
    RetryPolicy,
)
from agentrl.runtime.threads import finish_in_thread, run_in_thread
from agentrl.weight_sync.adapters import AdapterWeights, find_adapters
from agentrl.weight_sync.check import TRIES, CheckedWeights, WeightCheck, complaint

if TYPE_CHECKING:
    import httpx

UNLOAD_S = 30.0
"""Deadline of letting go of an adapter, which the server may as well keep."""


class CompletionsEngine(ServerEngine):
    """Samples and scores by a server's completions, with adapters that it is given."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        decode: Decode | None = None,
        first_wait_s: float = 0.5,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """Take what `ServerEngine` takes."""
        super().__init__(settings, decode=decode, first_wait_s=first_wait_s, transport=transport)
        self._before: ServedVersion | None = None
        # A server may go on with what it knew under a name, so that none is used twice.
        self._name = f"agentrl-{secrets.token_hex(6)}"
        self._folder = settings.adapters.absolute() / self._name
        self._made_parent = False

    async def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take a base with adapters, of which the server is given the adapters.

        Requests in flight go on under the new version; what they have keeps the old one. With a
        proof (`CheckedWeights`) the server scores its tokens first, and requests meet the new
        version only when it agrees. Raises `WeightsUnproven` where it does not after another try,
        or is late, and `ConfigError` for weights that are no adapters, and where the server takes
        none; then the old version stays.
        """
        adapted = find_adapters(weights)
        if adapted is None:
            raise ConfigError(
                "a server of engine.kind endpoint accepts adapters, but these are full weights; "
                "set learn.lora"
            )
        proof = weights.proof if isinstance(weights, CheckedWeights) else None
        async with self._loading:
            new = await self._load_version(adapted, version, proof)
            old, self._held = self._held, new
            for errand in self._errands.values():
                errand.restart()
            await self._unload_adapter(old)
            before, self._before = self._before, old
            # The server may still be at a step of the last version: its folder stays until now.
            if before is not None and before.folder is not None:
                await run_in_thread(shutil.rmtree, before.folder, ignore_errors=True)

    async def release(self) -> None:
        await self._unload_adapter(self._held)
        await finish_in_thread(self._clear)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._made_parent = not self._settings.adapters.exists()
        return self

    async def _load_version(
        self, weights: AdapterWeights, version: int, proof: WeightCheck | None
    ) -> ServedVersion:
        why = ""
        for _ in range(TRIES):
            name = f"{self._name}-{next(self._numbers)}-version-{version}"
            folder = self._folder / name
            new = ServedVersion(name, version, folder, proof)
            try:
                await finish_in_thread(write_adapter, weights, folder)
                why = await self._load_adapter(new)
            except BaseException:
                await self._discard_version(new)
                raise
            if not why:
                return new
            await self._discard_version(new)
        raise WeightsUnproven(
            f"{self._endpoint} did not load version {version} of the weights after {TRIES} tries: "
            f"{why}"
        )

    async def _load_adapter(self, new: ServedVersion) -> str:
        """Have the server load an adapter and prove it; return what is wrong with it then."""
        proof = new.proof
        deadline_s = None if proof is None else proof.deadline_s
        doing = "loading"
        try:
            async with asyncio.timeout(deadline_s):
                await self._post_adapter(new)
            if proof is None:
                return ""
            doing = f"scoring {len(proof.logprobs)} tokens"
            async with asyncio.timeout(deadline_s):
                request = proof.request(f"proof/{next(self._numbers)}")
                scores = await self._scores(request, new)
        except TimeoutError as error:
            raise WeightsUnproven(
                f"{self._endpoint} did not load version {new.version} of the weights: {doing} took "
                f"longer than {deadline_s:g} s (engine.probe.deadline_s)"
            ) from error
        return complaint(proof, scores, version=new.version) or ""

    async def _post_adapter(self, new: ServedVersion) -> None:
        payload = {"lora_name": new.name, "lora_path": str(new.folder)}
        try:
            await self._client.tell("load_lora_adapter", payload)
        except EngineLost:
            raise
        except (EngineError, ConfigError) as error:
            if "already been loaded" in str(error):
                return  # an answer that was lost on its way
            raise ConfigError(
                f"{self._endpoint} rejects the adapter in {new.folder}: {error}; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank of at least "
                "learn.lora.rank, on a machine that can read engine.endpoint.adapters"
            ) from error

    async def _recover(
        self, held: ServedVersion, losses: int, error: EndpointRefusedError, patience: RetryPolicy
    ) -> None:
        """Give a server that was started anew what it had; raises the error for any other, and
        `EngineLost` for one that goes on forgetting it."""
        if error.status != 404 or held.folder is None:
            raise error
        async with self._loading:
            if self._held is held and held.losses == losses:
                if why := await self._load_adapter(held):
                    raise WeightsUnproven(
                        f"{self._endpoint} lost version {held.version} of the weights, and loading "
                        f"it again failed: {why}"
                    )
                held.losses += 1
        forgotten = f"it loads version {held.version} of the weights and loses it again: {error}"
        await patience.wait(EndpointUnavailableError(forgotten), of=self._endpoint)

    async def _discard_version(self, new: ServedVersion) -> None:
        await self._unload_adapter(new)
        if new.folder is not None:
            await finish_in_thread(shutil.rmtree, new.folder, ignore_errors=True)

    async def _unload_adapter(self, held: ServedVersion) -> None:
        """Have the server forget an adapter; one that cannot be asked has forgotten it already."""
        if held.folder is None:
            return
        with contextlib.suppress(EngineError, ConfigError, TimeoutError):
            async with asyncio.timeout(UNLOAD_S):
                payload = {"lora_name": held.name}
                await self._client.tell("unload_lora_adapter", payload, once=True)

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._made_parent:
            with contextlib.suppress(OSError):
                self._settings.adapters.rmdir()


class EndpointReplicas(ReplicatedEngine[ServerEngine]):
    """An `EngineRouter` over servers: each is given every version, and proves it."""

    async def prepare(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor] | SharedWeights:
        """Return a copy of the adapters, or of weights that have none: the trainer goes on with its
        own."""
        adapted = find_adapters(weights)
        if adapted is None:
            return await run_in_thread(SharedWeights, weights)
        copies = {
            name: replace(adapter, a=adapter.a.clone(), b=adapter.b.clone())
            for name, adapter in adapted.adapters.items()
        }
        copy = AdapterWeights(adapted.base, copies)
        return CheckedWeights(copy, weights.proof) if isinstance(weights, CheckedWeights) else copy

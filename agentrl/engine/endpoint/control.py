"""Control of a server over HTTP: pausing, new weights, caches, sleep. Tensors go other ways.

vLLM's paths are those that `VLLM_SERVER_DEV_MODE=1` opens.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agentrl.engine.endpoint.dialects import Api
from agentrl.errors import ConfigError, EngineError
from agentrl.runtime.http_endpoint import EndpointRefusedError, HttpEndpointClient

MemoryTag = Literal["weights", "kv_cache"]
"""Part of a server's memory that sleep gives up, as vLLM and SGLang both name it."""
RESET_TRIES, RESET_WAIT_S = 50, 0.1
"""Tries to empty a cache, and the wait between them: blocks are held while requests are ended."""


class ServerControl(ABC):
    """Commands to a server."""

    hint: str
    """Requirement on the server, for errors."""

    def __init__(self, client: HttpEndpointClient) -> None:
        self._client = client

    async def tell(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Have the server do something, once; return its answer.

        Raises `ConfigError` for a path that it does not have, `EngineError` for any other failure.
        """
        try:
            return await self._client.ask_once(path, {} if body is None else body)
        except EndpointRefusedError as error:
            raise ConfigError(f"{error}; {path} needs {self.hint}") from error

    @abstractmethod
    async def pause(self, *, keep: bool) -> None:
        """Stop sampling; requests in flight are ended, or kept as they are."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on sampling."""

    @abstractmethod
    async def load_folder(self, folder: Path, version: int) -> None:
        """Take the weights in a folder of safetensors, under a version."""

    @abstractmethod
    async def empty_cache(self) -> None:
        """Forget every cached key. Raises `EngineError` where some stay."""

    @abstractmethod
    async def sleep(self, level: int) -> None:
        """Give up memory."""

    @abstractmethod
    async def wake(self, tag: MemoryTag) -> None:
        """Take a part of the memory back; weights of level 2 are then none."""


class VllmControl(ServerControl):
    """Control of vLLM's server."""

    hint = "VLLM_SERVER_DEV_MODE=1 in the server's environment"

    async def pause(self, *, keep: bool) -> None:
        await self.tell(f"/pause?mode={'keep' if keep else 'abort'}")

    async def resume(self) -> None:
        await self.tell("/resume")

    async def load_folder(self, folder: Path, version: int) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self.tell("/collective_rpc", call)
        await self.tell("/update_weight_version", {"new_version": str(version)})

    async def empty_cache(self) -> None:
        for _ in range(RESET_TRIES):
            answer = await self.tell("/reset_prefix_cache?reset_running_requests=true")
            if isinstance(answer, dict) and answer.get("success") is True:  # pyright: ignore[reportUnknownMemberType]
                return
            await asyncio.sleep(RESET_WAIT_S)
        raise EngineError(
            f"the server kept cached keys of older weights over {RESET_TRIES} requests to forget "
            "them; restart it"
        )

    async def sleep(self, level: int) -> None:
        await self.tell(f"/sleep?level={level}")

    async def wake(self, tag: MemoryTag) -> None:
        await self.tell(f"/wake_up?tags={tag}")

    # --- the weight-transfer API: the calls of vLLM's `VLLMWeightSyncClient` ----------------------

    async def read_world_size(self) -> int:
        """Return the number of workers, over all kinds of parallelism."""
        answer = await self._client.ask("/get_world_size")
        size = answer.get("world_size") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(size, int) or size < 1:
            raise EngineError(
                f"/get_world_size answers {answer!r:.100}, which is no count of workers"
            )
        return size

    async def init_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Have the workers meet the trainer."""
        await self.tell("/init_weight_transfer_engine", {"init_info": dict(init_info)})

    async def start_update(self) -> None:
        """Begin a round of new weights."""
        await self.tell("/start_weight_update")

    async def update(self, update_info: Mapping[str, Any]) -> None:
        """Have the workers receive what the trainer sends meanwhile."""
        await self.tell("/update_weights", {"update_info": dict(update_info)})

    async def finish_update(self, version: int) -> None:
        """End a round; from here on tokens are of a version."""
        await self.tell("/finish_weight_update", {"weight_version": str(version)})


class SglangControl(ServerControl):
    """Control of SGLang's server."""

    hint = "a server of SGLang that has it; sleep needs --enable-memory-saver"

    async def pause(self, *, keep: bool) -> None:
        await self.tell("/pause_generation", {"mode": "in_place" if keep else "abort"})

    async def resume(self) -> None:
        await self.tell("/continue_generation")

    async def load_folder(self, folder: Path, version: int) -> None:
        body = {"model_path": str(folder), "flush_cache": False, "weight_version": str(version)}
        answer = await self.tell("/update_weights_from_disk", body)
        if not isinstance(answer, dict) or answer.get("success") is not True:  # pyright: ignore[reportUnknownMemberType]
            raise EngineError(f"the server did not load the weights in {folder}: {answer!r:.300}")

    async def empty_cache(self) -> None:
        await self.tell("/flush_cache")

    async def sleep(self, level: int) -> None:
        await self.tell("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})

    async def wake(self, tag: MemoryTag) -> None:
        await self.tell("/resume_memory_occupation", {"tags": [tag]})


def build_control(api: Api, client: HttpEndpointClient) -> ServerControl:
    """Return the control of a server that speaks a dialect."""
    return SglangControl(client) if api == "sglang" else VllmControl(client)

"""Ways of whole weights to a server: a folder that it reads, or vLLM's weight-transfer API.

folder      the server reads safetensors, each of its workers what it needs; works everywhere
nccl, ipc   tensors go from device to device, by the trainer's half of vLLM's transfer
            engines, which this process must have; HTTP carries the control alone
"""

import asyncio
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from agentrl.engine.endpoint.control import ServerControl, VllmControl
from agentrl.engine.remote.shared_weights import SharedWeights, path_of, share_weights
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError
from agentrl.runtime.extras import install_command
from agentrl.runtime.threads import finish_in_thread, run_in_thread
from agentrl.weight_sync.adapters import find_adapters
from agentrl.weight_sync.check import CheckedWeights
from agentrl.weight_sync.shared_memory import SharedMemoryFile

DeviceRoute = Literal["nccl", "ipc"]
"""Back-end of vLLM's weight transfer between devices."""
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
"""Name of a head, and the end of the name of the embedding that it may be tied to."""


class OutgoingWeights(SharedWeights):
    """A copy of whole weights in this machine's memory, and the tensors that they were copied
    from, while those are still the same."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a state dict; adapters are merged into their base."""
        whole = merge_weights(weights)
        super().__init__(whole)
        self.live: Mapping[str, Tensor] | None = (
            whole.weights if isinstance(whole, CheckedWeights) else whole
        )


def merge_weights(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a state dict with its adapters merged, and its proof."""
    if find_adapters(weights) is None:
        return weights
    # Each is made anew when it is asked for, and tensors of one storage are told by it.
    merged = {name: weights[name] for name in weights}
    return CheckedWeights(merged, weights.proof) if isinstance(weights, CheckedWeights) else merged


def share_whole_weights(weights: Weights | SharedWeights) -> Path | SharedWeights:
    """Return whole weights as something that has a path, copying a state dict that has none."""
    return OutgoingWeights(weights) if isinstance(weights, Mapping) else share_weights(weights)


class WeightTransfer(ABC):
    """Brings weights to one server, which is paused."""

    @abstractmethod
    async def send(
        self, control: ServerControl, weights: Path | SharedWeights, version: int
    ) -> None:
        """Return when the server has the weights. Raises `EngineError` where it has not: then it
        may have a part of them."""

    @abstractmethod
    async def close(self) -> None:
        """Remove what was made for it."""


class FolderTransfer(WeightTransfer):
    """Has a server read weights from a folder.

    `linked` leaves them in this machine's memory, to which the folder has a link, so that nothing
    is written to a disk or stays behind; without it they are written, for another machine or user.
    `untied` adds the head of a model whose head is tied, for a server that keeps one of its own.
    """

    def __init__(self, folder: Path, *, linked: bool, untied: bool = False) -> None:
        self._folder = folder
        self._linked = linked
        self._untied = untied
        self._last: Path | None = None

    async def send(
        self, control: ServerControl, weights: Path | SharedWeights, version: int
    ) -> None:
        source = path_of(weights)
        folder = self._folder / f"version-{version}"
        kept = await finish_in_thread(self._fill, folder, source)
        try:
            await control.load_folder(folder.absolute(), version)
        finally:
            last, self._last = self._last, folder
            if last is not None and last != folder:
                await finish_in_thread(shutil.rmtree, last, ignore_errors=True)
            del kept

    async def close(self) -> None:
        await finish_in_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _fill(self, folder: Path, source: Path) -> SharedMemoryFile | None:
        """Make the folder; return what has to live until it is read."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
        for number, file in enumerate(files):
            target = folder / f"model-{number:05}.safetensors"
            if self._linked:
                target.symlink_to(file.absolute())
            else:
                shutil.copyfile(file, target)
        head = build_head(files) if self._untied else None
        if head is not None:
            (folder / "head.safetensors").symlink_to(head.path)
        return head


def build_head(files: list[Path]) -> SharedMemoryFile | None:
    """Return the head of a tied model as a file of its own; None where the files have one."""
    embedding: Tensor | None = None
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name == HEAD:
                    return None
                if name.endswith(EMBEDDING):
                    embedding = opened.get_tensor(name)
    return None if embedding is None else SharedMemoryFile.from_weights({HEAD: embedding})


TrainerBuilder = Callable[[Any, Any], Any]
"""Function that makes the trainer's half of a transfer from a client and a source of weights."""


class DeviceTransfer(WeightTransfer):
    """Sends tensors from the trainer's device by vLLM's weight-transfer API.

    A server that is started anew, or takes weights later than the others, is given the copy in
    memory, by `fallback`: by then the trainer's own have changed.
    """

    def __init__(
        self,
        route: DeviceRoute,
        fallback: WeightTransfer,
        *,
        host: str = "127.0.0.1",
        build_trainer: TrainerBuilder | None = None,
    ) -> None:
        """`build_trainer` is vLLM's own unless given."""
        self._route: DeviceRoute = route
        self._fallback = fallback
        self._host = host
        self._build = build_trainer
        self._trainer: Any = None
        self._source = StateSource()

    async def send(
        self, control: ServerControl, weights: Path | SharedWeights, version: int
    ) -> None:
        live = weights.live if isinstance(weights, OutgoingWeights) else None
        if live is None:
            await self._fallback.send(control, weights, version)
            return
        if not isinstance(control, VllmControl):
            raise ConfigError(
                f"weights by {self._route} use vLLM's weight-transfer API, which this server does "
                "not have; use a folder"
            )
        client = SyncClient(control, asyncio.get_running_loop(), version)
        self._source.weights = live
        try:
            if self._trainer is None:
                build = self._build or build_vllm_trainer(
                    self._route, workers=await control.read_world_size(), host=self._host
                )
                self._trainer = await run_in_thread(build, client, self._source)
            self._trainer.client = client
            await run_in_thread(self._trainer.send_weights)
        except BaseException:
            # Its group is of no use any more, and the next round forms another one.
            self._trainer = None
            raise
        finally:
            self._source.weights = {}

    async def close(self) -> None:
        if self._trainer is not None:
            await run_in_thread(self._trainer.shutdown)
        await self._fallback.close()


class StateSource:
    """State dict as a source of weights for vLLM's transfer: names and shapes, then tensors."""

    def __init__(self) -> None:
        self.weights: Mapping[str, Tensor] = {}

    def metadata(self) -> list[Any]:
        """Return name, type and shape of every tensor, in their order."""
        from vllm.distributed.weight_transfer import (  # pyright: ignore[reportMissingImports]
            ParamMeta,
        )

        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        for name, tensor in self.weights.items():
            yield name, tensor.detach().to(device)


class SyncClient:
    """vLLM's `VLLMWeightSyncClient`: what its trainer's half calls from its thread."""

    def __init__(self, control: VllmControl, loop: asyncio.AbstractEventLoop, version: int) -> None:
        self._control = control
        self._loop = loop
        self._version = version

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have the workers meet the trainer."""
        self._await(self._control.init_transfer(init_info))

    def start_weight_update(self) -> None:
        """Begin a round."""
        self._await(self._control.start_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Have the workers receive."""
        self._await(self._control.update(write_handles(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the round under the version that is on its way."""
        self._await(self._control.finish_update(self._version))

    def _await(self, call: Any) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


def write_handles(update_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return update info as JSON carries it: CUDA's handles are pickled, as vLLM reads them where
    `VLLM_ALLOW_INSECURE_SERIALIZATION=1`."""
    if update_info.get("ipc_handles") is None:
        return dict(update_info)
    import base64
    import pickle

    rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
    pickled = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
    return {**rest, "ipc_handles_pickled": pickled}


def build_vllm_trainer(route: DeviceRoute, *, workers: int, host: str) -> TrainerBuilder:
    """Return a function that makes vLLM's trainer for so many workers.

    Raises `ConfigError` where this process has no vLLM.
    """
    try:
        from vllm.distributed.weight_transfer import (  # pyright: ignore[reportMissingImports]
            WeightTransferTrainerFactory,
        )
        from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
            IPCTrainerInitInfo,
        )
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )
    except ImportError as error:
        raise ConfigError(
            f"engine.vllm.transfer is {route}, which needs vLLM in the trainer's interpreter, too "
            f"({error}); {install_command('vllm')}, or set engine.vllm.transfer: folder"
        ) from error

    def build(client: Any, source: Any) -> Any:
        if route == "ipc":
            init_info = IPCTrainerInitInfo(rank=0, packed=True)
        else:
            init_info = NCCLTrainerInitInfo(
                rank=0, master_address=host, master_port=_free_port(host), world_size=workers + 1
            )
        return WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=source)

    return build


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])

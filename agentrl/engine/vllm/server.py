"""vLLM's own server as an engine: a child process, asked and told over a socket of this user's.

    process   `runtime/supervisor.py` runs the server, and ends all of it with us
    requests  token ids in and out, by `ServerEngine`
    weights   whole (`WeightsEngine`), or adapters (`CompletionsEngine`)

Nothing of agentrl runs in the server, and nothing of vLLM here, but for the trainer's half of its
weight transfer where that was chosen: only its documented arguments and paths are used. So any of
its kinds of parallelism works.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from agentrl.engine.endpoint import CompletionsEngine, ServerSettings
from agentrl.engine.endpoint.server_engine import ServerEngine
from agentrl.engine.endpoint.transfer import (
    DeviceTransfer,
    FolderTransfer,
    OutgoingWeights,
    WeightTransfer,
    build_head,
    share_whole_weights,
)
from agentrl.engine.endpoint.weights_engine import WeightsEngine
from agentrl.engine.remote.replicas import EngineReplica
from agentrl.engine.remote.shared_weights import SharedWeights, path_of, share_weights
from agentrl.engine.replicas import ReplicatedEngine
from agentrl.engine.stopping import Decode
from agentrl.engine.vllm.launch import (
    MODULE,
    NAME,
    VllmServerSettings,
    build_arguments,
    build_environment,
)
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.runtime import supervisor
from agentrl.runtime.child_process import LOG_BYTES, stop, tail
from agentrl.runtime.http_endpoint import HttpEndpoint, HttpEndpointClient
from agentrl.runtime.threads import finish_in_thread, run_in_thread
from agentrl.runtime.vllm_release import TEMPERATURES
from agentrl.weight_sync.adapters import BaseWeights, unpack_adapters
from agentrl.weight_sync.safetensors import header_of

STOP_S = 30.0
"""Seconds that the server has to end; its supervisor kills it before."""
LOOK_S, SILENCE_S = 5.0, 60.0
"""Between two looks at the server's health, and the silence after which it is given up."""
MISSING = "No module named 'vllm'"
REFUSED = ("error: ", "ValidationError", "ValueError: ", "TypeError: ", "NotImplementedError: ")
"""Marks of lines with which vLLM rejects its arguments."""
CONSEQUENCES = ("root cause", "initialization failed", "EngineDeadError")
"""Marks of errors that only say that another process had one."""
START_LOG_BYTES = 2**18
"""Output of a server that did not start in which its cause is looked for: processes of vLLM report
each other's end in many lines."""
URL = "http://vllm/v1"
"""Name of the server in requests; the socket says where it is."""

_ERROR_LINE = re.compile(
    # Of a log: (Worker_TP0 pid=7) ERROR 01-31 12:00:00 [file.py:1] torch.OutOfMemoryError: CUDA ...
    r"(?:\(\S+ pid=\d+\) )?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] )?"
    r"((?:\w+\.)*\w*(?:Error|Exception)(?::.*)?)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerRecipe:
    """A server, and what the engine over it is asked."""

    settings: VllmServerSettings
    vocabulary: int
    python: str = sys.executable
    """Interpreter that has vLLM."""
    cuda_devices: str | None = None
    """`CUDA_VISIBLE_DEVICES` of the server; ours unless set."""
    samplings: tuple[Sampling, ...] = (Sampling(),)
    start_s: float = 600.0
    max_restarts: int = 10
    host: str = "127.0.0.1"
    """Address at which workers meet the trainer for NCCL."""


class VllmServerProcess:
    """One server that answers to us. Owned by a `VllmServerEngine`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        engine: ServerEngine,
        folder: Path,
        log: IO[bytes],
        owner_end: int,
    ) -> None:
        self._process = process
        self._folder = folder
        self._log = log
        self._owner_end = owner_end
        self._watch: asyncio.Task[None] | None = None
        self._is_lost = False
        self.engine = engine

    @classmethod
    async def start(cls, recipe: VllmServerRecipe, decode: Decode | None) -> "VllmServerProcess":
        """Start a server and wait until it is ready.

        Raises `ConfigError` where vLLM is missing or rejects its arguments, with what it said,
        `EngineLost` where it is killed meanwhile, `EngineError` when it is not ready in time.
        """
        folder = Path(tempfile.mkdtemp(prefix="agentrl-vllm-"))  # only this user may enter it
        log = (folder / "log").open("w+b")
        owner_end: int | None = None
        process: asyncio.subprocess.Process | None = None
        try:
            arguments, cpu = await finish_in_thread(_prepare_start, recipe, folder)
            process, owner_end = await _spawn(recipe, arguments, folder, log, cpu=cpu)
            engine = _build_engine(recipe, folder, decode, cpu=cpu)
            server = cls(process, engine, folder, log, owner_end)
            await _await_ready(server, recipe)
        except BaseException:
            if owner_end is not None:
                os.close(owner_end)
            if process is not None:
                await stop(process, within_s=STOP_S)
            log.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        server._watch = asyncio.create_task(server._watch_health(), name="agentrl-vllm-health")
        return server

    @property
    def pid(self) -> int:
        """Return the id of its supervisor."""
        return self._process.pid

    @property
    def name(self) -> str:
        return f"vLLM server {self.pid}"

    @property
    def is_open(self) -> bool:
        return not self._is_lost and self._process.returncode is None

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        """Have the server take whole weights, or adapters over the base that it began with."""
        if isinstance(self.engine, WeightsEngine):
            await self.engine.send(weights, version)
            return
        await self.engine.load(await run_in_thread(_read_adapters, weights), version)

    async def read_output(self) -> str:
        return tail(self._log)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if not self.is_open:
            self.engine.fail(EngineLost(f"{self.name} is gone"))
        with contextlib.suppress(EngineError, ConfigError):
            await self.engine.close()
        os.close(self._owner_end)
        await stop(self._process, within_s=STOP_S)
        self._log.close()
        await finish_in_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _watch_health(self) -> None:
        """Fail the engine as soon as the server has ended, or has said nothing for too long."""
        client = HttpEndpointClient(
            HttpEndpoint(url=URL, model=NAME, timeout_s=SILENCE_S, retries=0),
            transport=build_transport(self._folder),
        )
        ended = asyncio.create_task(self._process.wait())
        fault: BaseException | None = None
        try:
            while fault is None and not ended.done():
                asked = asyncio.create_task(client.ask_once("/health"))
                await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    fault = asked.exception()
                    await asyncio.wait([ended], timeout=LOOK_S)
                else:
                    asked.cancel()
        finally:
            is_gone = ended.done()
            ended.cancel()
            await client.close()
        self._is_lost = True
        why = "has ended" if is_gone else f"does not answer ({fault})"
        output = tail(self._log)[-LOG_BYTES // 4 :]
        self.engine.fail(EngineLost(f"{self.name} {why}; the end of its output: {output}"))


class VllmServerEngine(EngineReplica):
    """vLLM's server in a process of its own, replaced when it dies; see `EngineReplica`."""

    def __init__(self, recipe: VllmServerRecipe, *, decode: Decode | None = None) -> None:
        super().__init__(max_restarts=recipe.max_restarts)
        self._recipe = recipe
        self._decode = decode

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None while there is none."""
        return self.served.pid if isinstance(self.served, VllmServerProcess) else None

    async def start(self) -> VllmServerProcess:
        return await VllmServerProcess.start(self._recipe, self._decode)

    async def generate(self, request: GenerateRequest) -> Completion:
        check_request_fits(request)
        return await super().generate(request)

    async def load(self, weights: "Weights | SharedWeights", version: int) -> None:
        shared = await self.prepare(weights)
        try:
            await super().load(shared, version)
        finally:
            if isinstance(shared, OutgoingWeights) and shared is not weights:
                shared.live = None

    async def prepare(self, weights: "Weights | SharedWeights") -> Path | SharedWeights:
        """Return weights that several servers can be given: adapters alone where they take those,
        else whole ones."""
        if self._recipe.settings.adapter_rank:
            return await run_in_thread(share_weights, weights)
        return await run_in_thread(share_whole_weights, weights)

    async def sleep(self) -> None:
        """Give up the server's memory until the next load, where `sleep_level` says so."""
        if isinstance(served := self.served, VllmServerProcess) and served.is_open:
            engine = served.engine
            if isinstance(engine, WeightsEngine):
                await engine.sleep()


class VllmServers(ReplicatedEngine[VllmServerEngine]):
    """Several servers as one engine; weights are copied once."""

    async def load(self, weights: Any, version: int) -> None:
        shared = await self._several[0].prepare(weights)
        try:
            await super().load(shared, version)
        finally:
            if isinstance(shared, OutgoingWeights):
                shared.live = None

    async def prepare(self, weights: Any) -> Any:
        """Return a copy of the weights: the trainer goes on with its own."""
        shared = await self._several[0].prepare(weights)
        if isinstance(shared, OutgoingWeights):
            shared.live = None
        return shared

    async def sleep(self) -> None:
        """Have every server give up its memory."""
        await asyncio.gather(*(engine.sleep() for engine in self._several))


def check_request_fits(request: GenerateRequest) -> None:
    """Raise `ValueError` for what the server's own sampler does not tell, or not as it is asked."""
    if request.entropies:
        raise ValueError(
            f"request {request.id!r} asks for entropies, which vLLM's own sampler does not "
            "report; set engine.vllm.sampler: agentrl"
        )
    if request.images:
        raise ValueError(
            f"request {request.id!r} shows images, which vLLM's server is not given; set "
            "engine.vllm.sampler: agentrl"
        )
    temperature, (least, most) = request.sampling.temperature, TEMPERATURES
    if temperature and not least <= temperature <= most:
        raise ValueError(
            f"request {request.id!r} asks for temperature {temperature:g}, but vLLM's own "
            f"sampler accepts only 0 and {least:g} to {most:g}; set engine.vllm.sampler: agentrl"
        )


def build_transport(folder: Path) -> Any:
    """Return httpx's transport over a server's socket."""
    import httpx

    return httpx.AsyncHTTPTransport(
        uds=str(_socket_of(folder)), limits=httpx.Limits(max_connections=None)
    )


def _socket_of(folder: Path) -> Path:
    return folder / "socket"


def _prepare_start(recipe: VllmServerRecipe, folder: Path) -> tuple[list[str], bool]:
    """Return the server's arguments, and whether it computes on a CPU."""
    cpu = not torch.cuda.is_available()
    model = str(recipe.settings.model)
    if cpu and not recipe.settings.adapter_rank:
        model = untie_folder(model, folder / "model")
    socket = str(_socket_of(folder))
    return build_arguments(recipe.settings, model=model, socket=socket, cpu=cpu), cpu


def untie_folder(model: str, folder: Path) -> str:
    """Return a folder of the same model with a head of its own, for one whose head is tied.

    vLLM's CPU build packs a tied head when it starts, and leaves it as it was when new weights
    come. Files are linked, but for the config and the head. Raises `ConfigError` for what is no
    model.
    """
    source = _find_folder(model)
    try:
        config = json.loads((source / "config.json").read_text())
        is_tied = config.get("tie_word_embeddings", False)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the model {model!r} of engine.kind vllm cannot be read: {error}; give a Hugging Face "
            "folder with config.json and weights, or the name of a model"
        ) from error
    head = build_head(sorted(source.glob("*.safetensors"))) if is_tied else None
    if head is None:
        return model
    folder.mkdir()
    for file in source.iterdir():
        # An index would leave out a file that it does not name.
        if file.is_file() and file.name != "config.json" and not file.name.endswith(".index.json"):
            (folder / file.name).symlink_to(file.absolute())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    shutil.copyfile(head.path, folder / "head.safetensors")
    return str(folder)


def _find_folder(model: str) -> Path:
    if Path(model).is_dir():
        return Path(model)
    from transformers.utils.hub import cached_file

    try:
        # What the trainer has loaded by its name is in the folder of this file.
        config = cached_file(model, "config.json")
    except OSError as error:
        raise ConfigError(
            f"the model {model!r} is no folder, and not to be had: {error}"
        ) from error
    return Path(str(config)).parent


def _build_engine(
    recipe: VllmServerRecipe, folder: Path, decode: Decode | None, *, cpu: bool
) -> ServerEngine:
    settings = recipe.settings
    server = ServerSettings(
        url=URL,
        model=NAME,
        adapters=folder / "adapters",
        vocabulary=recipe.vocabulary,
        context_tokens=settings.context_tokens,
        samplings=recipe.samplings,
        start_s=recipe.start_s,
        api="generate" if settings.update == "keep" else "completions",
        update=settings.update,
        sleep_level=settings.sleep_level,
    )
    transport = build_transport(folder)
    if settings.adapter_rank:
        return CompletionsEngine(server, decode=decode, transport=transport)
    transfer: WeightTransfer = FolderTransfer(folder / "weights", linked=True, untied=cpu)
    if settings.transfer != "folder":
        transfer = DeviceTransfer(settings.transfer, transfer, host=recipe.host)
    return WeightsEngine(server, transfer, decode=decode, transport=transport)


async def _spawn(
    recipe: VllmServerRecipe, arguments: Sequence[str], folder: Path, log: IO[bytes], *, cpu: bool
) -> tuple[asyncio.subprocess.Process, int]:
    """Start the supervisor with the server; return it, and the descriptor that keeps it alive."""
    environment = build_environment(
        recipe.settings, os.environ, cuda_devices=recipe.cuda_devices, cpu=cpu
    )
    theirs, ours = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(supervisor.__file__), str(theirs), str(folder)),
            *(recipe.python, "-m", MODULE, *arguments),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours


async def _await_ready(server: VllmServerProcess, recipe: VllmServerRecipe) -> None:
    """Wait until the engine is begun; raise why the server ended where it did."""
    ready = asyncio.create_task(server.engine.__aenter__())
    ended = asyncio.create_task(server._process.wait())  # pyright: ignore[reportPrivateUsage]
    try:
        await asyncio.wait(
            {ready, ended}, timeout=recipe.start_s, return_when=asyncio.FIRST_COMPLETED
        )
        if ended.done():
            output = tail(server._log, START_LOG_BYTES)  # pyright: ignore[reportPrivateUsage]
            raise explain_end(output, ended.result(), recipe.python)
        if not ready.done():
            raise EngineError(
                f"vLLM's server was not ready within {recipe.start_s:g} s; raise engine.start_s if "
                f"loading its model takes longer; its output: {await server.read_output()}"
            )
        ready.result()
    finally:
        for task in (ready, ended):
            task.cancel()
        await asyncio.wait([ready, ended])
        if not (ready.done() and not ready.cancelled() and ready.exception() is None):
            with contextlib.suppress(EngineError, ConfigError):
                server.engine.fail(EngineLost("the server did not start"))
                await server.engine.close()


def explain_end(output: str, status: int, python: str) -> ConfigError | EngineError:
    """Return why a server of an interpreter ended before it was ready."""
    if MISSING in output or status == 127:
        return ConfigError(
            f"engine.kind is vllm, but {python} has no vLLM ({output[-300:]}); install it "
            "there, or name an interpreter that has it as engine.python; docs/vllm.md has its CPU "
            "build"
        )
    if status == 137:
        return EngineLost("vLLM's server was killed while it started, possibly for lack of memory")
    if reason := find_refusal(output):
        return ConfigError(
            f"vLLM rejects its arguments or cannot start with them: {reason}; see engine.vllm"
        )
    cause = find_cause(output)
    said = f": {cause}" if cause else ""
    return EngineError(
        f"vLLM's server ended with status {status}{said}; the end of its output: "
        f"{output[-LOG_BYTES // 2 :]}"
    )


def find_cause(output: str) -> str:
    """Return the first error that a server's output names, and no consequence of another process's;
    empty without one."""
    errors = (match[1] for line in output.splitlines() if (match := _ERROR_LINE.match(line)))
    causes = (error for error in errors if not any(mark in error for mark in CONSEQUENCES))
    return next(causes, "")[:600]


def find_refusal(output: str) -> str:
    """Return the end of the last error that vLLM's arguments may have caused; empty without one."""
    lines = [line.strip() for line in output.splitlines()]
    marked = [n for n, line in enumerate(lines) if any(mark in line for mark in REFUSED)]
    # A validation error goes on in the lines that follow.
    return " ".join(lines[marked[-1] : marked[-1] + 3])[:600] if marked else ""


def _read_adapters(weights: Path | SharedWeights) -> Mapping[str, Tensor]:
    """Return adapters over a base of which only shapes are read: the server has the rest."""
    base = weights.base if isinstance(weights, SharedWeights) else None
    if base is None:
        raise EngineError(
            "engine.vllm.adapters is native, but these are whole weights; set learn.lora, or "
            "engine.vllm.adapters: merged"
        )
    with safe_open(base.path, framework="pt") as file:
        shapes = {
            name: torch.empty(file.get_slice(name).get_shape(), device="meta")
            for name in file.keys()  # noqa: SIM118 - no mapping
        }
    path = path_of(weights)
    return unpack_adapters(load_file(path), header_of(path), BaseWeights(shapes, id=base.id))

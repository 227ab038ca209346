"""Engine from the engine section of a config."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl.engine.spec import ClosableEngine, EngineSpec
from agentrl.errors import ConfigError
from agentrl.policy import Sampling
from agentrl.runtime.gpu_placement import DevicePlacement, place_devices, visible_devices
from agentrl.runtime.machine import device_of
from agentrl.runtime.torchrun import TorchrunLaunch

if TYPE_CHECKING:
    from agentrl.config.run import EngineSection, RunConfig
    from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
    from agentrl.run.policy_model import PolicyModel


def build_engine_spec(config: "RunConfig", folder: str, *, device: str) -> EngineSpec:
    """Return the recipe of a config's engine; `ConfigError` where others make it."""
    section = config.engine
    if section.kind == "endpoint":
        raise ConfigError(
            "engine.kind is endpoint, whose servers are started externally, so no engine can be "
            "built; set engine.kind: local or vllm"
        )
    return EngineSpec(
        kind=section.kind,
        folder=folder,
        slots=section.slots,
        context_tokens=section.context_tokens,
        dtype=config.policy.dtype,
        device=device,
        draft_tokens=section.draft_tokens,
        threads=config.run.threads,
        vllm=_build_vllm_fields(config) if section.kind == "vllm" else {},
    )


def _build_vllm_fields(config: "RunConfig") -> dict[str, Any]:
    section, lora = config.engine.vllm, config.learn.lora
    server_only = {"transfer", "update", "sleep_level"} if section.sampler == "agentrl" else set()
    fields = section.model_dump(exclude={"adapters", *server_only})
    if section.adapters == "native" and lora is not None:
        fields["adapter_rank"] = lora.rank
        if lora.targets != "all-linear":
            # Without it vLLM has adapters of every layer, and of experts, which it may lack.
            targets = {"lora_target_modules": [*lora.targets]}
            fields["options"] = targets | fields["options"]
    return fields


def build_engine(config: "RunConfig", policy: "PolicyModel") -> ClosableEngine:
    """Return the engine a config asks for, with the weights of `policy`.

    Raises `ConfigError` where the package behind it is missing or refuses its options.
    """
    section = config.engine
    if section.kind == "endpoint":
        return build_endpoint_engine(config, policy)
    sends_adapters = section.vllm.adapters == "native" and config.learn.lora is not None
    if section.kind == "vllm" and not sends_adapters:
        check_file_shapes(policy)
    device = device_of(config.policy.device)
    recipe = build_engine_spec(config, str(policy.path), device=device)
    placement = build_device_placement(config)
    spreader = _build_broadcaster(config, device, placement)
    if section.addresses:
        return build_address_engines(section, spreader)
    if section.processes and config.cluster.kind == "ray":
        from agentrl.cluster.engines.replicas import RayEngineReplicas

        device = "cuda" if config.cluster.engine_gpus else "cpu"
        return RayEngineReplicas(
            replace(recipe, device=device),
            config.cluster,
            count=section.processes,
            python=section.python,
            start_s=section.start_s,
            max_restarts=section.max_restarts,
            spreader=spreader,
        )
    if recipe.is_server:
        return build_vllm_servers(config, policy, recipe, placement)
    if section.processes:
        from agentrl.engine.remote import EngineReplicas, ProcessEngine

        devices = placement.engines if placement else (None,) * section.processes
        engines = [
            ProcessEngine(
                # The only device that its process sees.
                replace(recipe, device="cuda", cuda_devices=device) if device else recipe,
                python=section.python or sys.executable,
                start_s=section.start_s,
                max_restarts=section.max_restarts,
            )
            for device in devices
        ]
        is_alone = len(engines) == 1 and spreader is None
        return engines[0] if is_alone else EngineReplicas(engines, spreader)
    return recipe.open(policy.model, policy.tokenizer, policy.images)


def build_vllm_servers(
    config: "RunConfig",
    policy: "PolicyModel",
    recipe: EngineSpec,
    placement: DevicePlacement | None,
) -> ClosableEngine:
    """Return vLLM's servers as one engine: one, or as many as `engine.processes`.

    Raises `ConfigError` for tensors between devices that are not those of separate processes, or
    not the same.
    """
    from agentrl.engine.vllm.server import VllmServerEngine, VllmServers

    section = config.engine
    transfer = section.vllm.transfer
    is_apart = placement is not None and placement.has_own_devices
    is_split = placement is not None and any("," in group for group in placement.engines)
    fits = {"folder": True, "nccl": is_apart, "ipc": bool(placement) and not (is_apart or is_split)}
    if not fits[transfer]:
        where = placement.describe() if placement else f"the trainer is on {policy.model.device}"
        raise ConfigError(
            f"engine.vllm.transfer is {transfer}, but {where}: nccl needs GPUs of their own for "
            "trainer and engines, ipc the trainer's GPU for the engine, and no other; set it to "
            "folder"
        )
    launch = build_server_launch(config)
    devices = placement.engines if placement else (None,) * max(1, section.processes)

    def decode(tokens: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(tokens)))

    engines = [
        VllmServerEngine(recipe.build_server_recipe(cuda_devices=device, **launch), decode=decode)
        for device in devices
    ]
    return engines[0] if len(engines) == 1 else VllmServers(engines)


def build_server_launch(config: "RunConfig") -> dict[str, Any]:
    """Return the fields of `VllmServerRecipe` that a config decides."""
    section, draws = config.engine, config.sampling
    training = Sampling(temperature=draws.temperature, top_p=draws.top_p, top_k=draws.top_k)
    return {
        "python": section.python or sys.executable,
        "samplings": (training, Sampling(temperature=config.evaluate.temperature)),
        "start_s": section.start_s,
        "max_restarts": section.max_restarts,
    }


def check_file_shapes(policy: "PolicyModel") -> None:
    """Raise `ConfigError` for a model whose weights have another shape than in its files.

    vLLM loads weights as files have them. Others, such as those of experts that are one tensor in
    memory and many in a file, would stay as they were.
    """
    from agentrl.engine.weights import shapes_in

    in_files = shapes_in(policy.path)
    weights = policy.model.state_dict()
    unknown = [name for name, weight in weights.items() if tuple(weight.shape) not in in_files]
    if unknown:
        raise ConfigError(
            f"engine.kind is vllm, but {type(policy.model).__name__} trains weights in a different "
            f"shape than its files ({', '.join(unknown[:2])}; {len(unknown)} in all), as "
            "mixture-of-experts models do, and vLLM cannot be updated with them; train adapters "
            "of other layers (learn.lora.targets) with engine.vllm.adapters: native, or set "
            "engine.kind: local"
        )


def build_address_engines(
    section: "EngineSection", spreader: "WeightBroadcaster | None" = None
) -> ClosableEngine:
    """Return the engines that others serve. Raises `ConfigError` for a key that cannot be read."""
    from agentrl.engine.remote import AddressEngine, EngineReplicas
    from agentrl.engine.remote.address import read_key

    key = read_key(section.key_file)
    alone = len(section.addresses) == 1
    engines = [
        # With others there, whoever waits for one that is away is better off with them.
        AddressEngine(
            address, key=key, start_s=section.start_s, patience_s=section.start_s if alone else 0.0
        )
        for address in section.addresses
    ]
    return engines[0] if alone and spreader is None else EngineReplicas(engines, spreader)


def build_endpoint_engine(config: "RunConfig", policy: "PolicyModel") -> ClosableEngine:
    """Return the engine that asks servers of somebody else's, whose base is `policy`.

    Adapters that the run left in its own folder go.
    Raises `ConfigError` for a policy that sees, and where httpx is missing.
    """
    from agentrl.engine.endpoint import (
        CompletionsEngine,
        EndpointReplicas,
        ServerSettings,
        WeightsEngine,
    )
    from agentrl.engine.endpoint.transfer import FolderTransfer

    section, branching = config.engine.endpoint, config.rollout.branching
    assert section is not None, "load_config sees to it"
    if policy.images is not None:
        raise ConfigError(
            f"the policy in {policy.path} is a vision-language model, but engine.kind: endpoint "
            "supports no images; use engine.kind: local or vllm"
        )
    _ = config.engine.slots  # how many requests are decoded at once is the server's to say
    draws = config.sampling
    training = Sampling(temperature=draws.temperature, top_p=draws.top_p, top_k=draws.top_k)
    adapter_folder = config.run.folder / config.run.name / "adapters"
    if section.adapters is None:
        # What the run left when it was killed; in a run's folder there is nobody else.
        shutil.rmtree(adapter_folder, ignore_errors=True)
    branches = branching.topology != "none"
    servers = [
        ServerSettings(
            url=url,
            model=section.model,
            adapters=section.adapters or adapter_folder,
            vocabulary=policy.model.config.get_text_config().vocab_size,
            context_tokens=config.engine.context_tokens,
            samplings=(training, Sampling(temperature=config.evaluate.temperature)),
            top_logprobs=branching.top_logprobs if branches else 1,
            key_variable=section.key_variable,
            silence_s=section.silence_s,
            retries=section.retries,
            start_s=config.engine.start_s,
            api=section.api,
            update=section.update,
        )
        for url in section.urls
    ]

    def decode(tokens: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(tokens)))

    engines = [
        CompletionsEngine(server, decode=decode)
        if section.weights == "adapters"
        else WeightsEngine(
            server,
            # A server each, since each drops what it has read.
            FolderTransfer(server.adapters / f"server-{number}", linked=False),
            decode=decode,
        )
        for number, server in enumerate(servers)
    ]
    return engines[0] if len(engines) == 1 else EndpointReplicas(engines)


def build_device_placement(config: "RunConfig") -> "DevicePlacement | None":
    """Return the GPUs of this machine for ranks and engine processes.

    None on a CPU, and where Ray or torchrun place them.
    """
    kind, _, index = device_of(config.policy.device).partition(":")
    if kind != "cuda" or config.cluster.kind == "ray" or TorchrunLaunch.read() is not None:
        return None
    import torch

    from agentrl.engine.vllm.launch import count_devices

    section = config.engine
    return place_devices(
        visible_devices(torch.cuda.device_count()),
        ranks=config.learn.devices.count,
        engines=max(1, section.processes) if section.is_server else section.processes,
        first=int(index or 0),
        per_engine=count_devices(section.vllm.options) if section.is_server else 1,
    )


def _build_broadcaster(
    config: "RunConfig", device: str, placement: "DevicePlacement | None"
) -> "WeightBroadcaster | None":
    """Return the sender of weights by broadcast, where a config asks for that. `device` is the
    trainer's.

    Raises `ConfigError` for NCCL between processes that share a GPU of this machine.
    """
    section, cluster = config.engine.broadcast, config.cluster
    if section is None:
        return None
    from agentrl.engine.remote.weight_broadcast import WeightBroadcaster

    backend = section.backend
    is_apart = placement is not None and placement.has_own_devices
    if backend == "auto":
        is_apart |= cluster.kind == "ray" and cluster.engine_gpus >= 1
        backend = "nccl" if is_apart and config.engine.processes and device != "cpu" else "gloo"
    elif backend == "nccl" and config.engine.processes and cluster.kind != "ray" and not is_apart:
        description = placement.describe() if placement else f"the trainer is on {device}"
        raise ConfigError(
            "engine.broadcast.backend is nccl, which needs a separate GPU for every process, but "
            f"{description}; choose gloo, lower engine.processes, or use more GPUs"
        )
    return WeightBroadcaster(
        backend=backend, bucket_bytes=section.bucket_bytes, deadline_s=section.deadline_s
    )
